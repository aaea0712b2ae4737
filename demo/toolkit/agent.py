#!/usr/bin/env python3
"""The demo's scripted agent: finds and mends a one-token bug in a Python project.

    agent.py break --seed N PROJECT    plants a bug that the test suite notices (the task's author runs it)
    agent.py solve PROJECT             finds the edit that mends it, and prints it as JSON

`solve` knows nothing of the seed. It runs the suite, reads which tests fail and which functions they exercise,
tries single-token edits there in a scratch copy, and keeps the first after which the whole suite passes.
Each trial runs in a fork of a process that has imported pytest already.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

TRIAL_SECONDS = 60
SOURCES = ("itertoolz.py", "dicttoolz.py", "functoolz.py", "recipes.py")


@dataclass(frozen=True)
class Edit:
    """Replace `old` by `new` at a place of a file (1-based line, 0-based column)."""

    file: str
    line: int
    column: int
    old: str
    new: str

    def apply(self, root: Path) -> None:
        path = root / self.file
        lines = path.read_text().splitlines(keepends=True)
        line = lines[self.line - 1]
        if not line[self.column :].startswith(self.old):
            raise ValueError(f"{self.file}:{self.line}: {self.old!r} is not there")
        lines[self.line - 1] = line[: self.column] + self.new + line[self.column + len(self.old) :]
        path.write_text("".join(lines))


# Each pair is tried both ways; longer tokens first, so that "<=" is not taken for "<".
SWAPS = [("<=", "<"), (">=", ">"), ("==", "!="), (" is not ", " is "), (" not in ", " in "), (" + ", " - "),
         (" and ", " or "), ("True", "False"), ("[0]", "[1]"), ("[1:]", "[0:]"), ("first", "last"), ("min(", "max("),
         ("0", "1"), ("1", "2")]
TOKENS = sorted({(a, b) for p in SWAPS for a, b in (p, p[::-1])}, key=lambda t: -len(t[0]))


def functions(tree: ast.AST) -> list[ast.FunctionDef]:
    return [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]


def edits(root: Path, file: str, names: set[str] | None) -> list[Edit]:
    """All single-token edits in the code (not the docstrings) of the named functions of a file."""
    text = (root / file).read_text()
    lines = text.splitlines()
    out = []
    for f in functions(ast.parse(text)):
        if names is not None and f.name not in names:
            continue
        body = f.body
        if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            body = body[1:]
        if not body:
            continue
        for n in range(body[0].lineno, (f.end_lineno or body[0].lineno) + 1):
            code = lines[n - 1].split("#")[0]
            taken: set[int] = set()
            for old, new in TOKENS:
                for m in re.finditer(re.escape(old), code):
                    if taken.isdisjoint(range(m.start(), m.end())):
                        out.append(Edit(file, n, m.start(), old, new))
                        if len(old) > len(new):
                            taken.update(range(m.start(), m.end()))
    return list(dict.fromkeys(out))


def sources(root: Path) -> list[str]:
    return [f"toolz/{s}" for s in SOURCES if (root / "toolz" / s).exists()]


class Report:
    """A pytest plugin that notes which tests failed and where they went."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.text = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)
            self.text += f"{report.nodeid}\n{report.longreprtext}\n"

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)
            self.text += f"{report.nodeid}\n{report.longreprtext}\n"


def suite(root: Path, tests: list[str]) -> tuple[bool, Report]:
    """Runs tests (all when empty) in a forked child; a hanging one counts as failed."""
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(r)
        signal.alarm(TRIAL_SECONDS)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.chdir(root)
        sys.path.insert(0, str(root))
        rep = Report()
        code = pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir", str(root), *(tests or ["toolz"])], plugins=[rep])
        with os.fdopen(w, "w") as f:
            json.dump({"ok": int(code) == 0, "failed": rep.failed, "text": rep.text[-200_000:]}, f)
        os._exit(0)
    os.close(w)
    with os.fdopen(r) as f:
        raw = f.read()
    os.waitpid(pid, 0)
    rep = Report()
    if not raw:
        return False, rep  # killed by its alarm, or crashed
    d = json.loads(raw)
    rep.failed, rep.text = d["failed"], d["text"]
    return d["ok"], rep


def scratch(project: Path) -> Path:
    to = Path(tempfile.mkdtemp(prefix="agent-")) / "project"
    shutil.copytree(project, to, ignore=shutil.ignore_patterns("__pycache__"))
    return to


def plant(project: Path, seed: int) -> dict[str, object]:
    rng = random.Random(seed)
    choices = [e for f in sources(project) for e in edits(project, f, None)]
    rng.shuffle(choices)
    for e in choices[:60]:
        copy = scratch(project)
        try:
            e.apply(copy)
            ast.parse((copy / e.file).read_text())
            ok, rep = suite(copy, [])
        except SyntaxError:
            continue
        finally:
            shutil.rmtree(copy.parent)
        # One or a few failing tests make a task; a module that cannot be imported would be trivial.
        if not ok and 0 < len(rep.failed) <= 12 and all("::" in t for t in rep.failed):
            e.apply(project)
            return {"edit": e.__dict__, "failing": rep.failed}
    raise SystemExit("no mutation that the suite notices")


def candidates(root: Path, rep: Report) -> list[Edit]:
    """Edits in the functions that the failing tests name or run through, likeliest first."""
    named = {m for t in rep.failed for m in re.findall(r"[a-z]+", t.split("::")[-1].removeprefix("test_"))}
    named |= {t.split("::")[-1].removeprefix("test_") for t in rep.failed}
    ran = {(f"toolz/{f}", int(n)) for f, n in re.findall(r"toolz/(\w+\.py):(\d+)", rep.text)}
    called = set(re.findall(r"\b([a-z_]\w+)\(", rep.text))
    ranked: list[tuple[int, Edit]] = []
    for f in sources(root):
        for fn in functions(ast.parse((root / f).read_text())):
            lines = range(fn.lineno, (fn.end_lineno or fn.lineno) + 1)
            hit = any(rf == f and n in lines for rf, n in ran)
            score = 4 * hit + 2 * (fn.name in named) + (fn.name in called)
            if score:
                ranked += [(score, e) for e in edits(root, f, {fn.name})]
    ranked.sort(key=lambda s: -s[0])
    rest = [e for f in sources(root) for e in edits(root, f, None)]
    return list(dict.fromkeys([e for _, e in ranked] + rest))


def solve(project: Path) -> dict[str, object]:
    copy = scratch(project)
    try:
        ok, rep = suite(copy, [])
        if ok:
            return {"status": "nothing to mend"}
        tried = 0
        for e in candidates(copy, rep):
            before = (copy / e.file).read_text()
            e.apply(copy)
            try:
                ast.parse((copy / e.file).read_text())
            except SyntaxError:
                (copy / e.file).write_text(before)
                continue
            tried += 1
            if suite(copy, rep.failed)[0] and suite(copy, [])[0]:
                return {"status": "mended", "edit": e.__dict__, "trials": tried, "failing": rep.failed}
            (copy / e.file).write_text(before)
        return {"status": "gave up", "trials": tried, "failing": rep.failed}
    finally:
        shutil.rmtree(copy.parent)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = p.add_subparsers(dest="verb", required=True)
    b = sub.add_parser("break")
    b.add_argument("--seed", type=int, required=True)
    b.add_argument("project", type=Path)
    sub.add_parser("solve").add_argument("project", type=Path)
    a = p.parse_args()
    result = plant(a.project, a.seed) if a.verb == "break" else solve(a.project)
    print(json.dumps(result))
    if result.get("status") == "gave up":
        sys.exit(1)


if __name__ == "__main__":
    main()
