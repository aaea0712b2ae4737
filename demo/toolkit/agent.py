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
import resource
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import pytest

TRIAL_CPU_SECONDS = 15
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
         (" and ", " or "), ("True", "False"), ("min(", "max(")]
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
        self.ran: set[tuple[str, int]] = set()  # (file, line), when traced

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)
            self.text += f"{report.nodeid}\n{report.longreprtext}\n"

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)
            self.text += f"{report.nodeid}\n{report.longreprtext}\n"


def trace_into(ran: set[tuple[str, int]], root: Path) -> None:
    """Notes each line of the project, tests apart, that is executed from now on."""
    prefix = f"{root}/toolz/"

    def line(frame: FrameType, event: str, arg: object) -> object:
        ran.add((frame.f_code.co_filename[len(prefix) - len("toolz/") :], frame.f_lineno))
        return line

    def call(frame: FrameType, event: str, arg: object) -> object:
        name = frame.f_code.co_filename
        return line if name.startswith(prefix) and "/tests/" not in name else None

    sys.settrace(call)  # type: ignore[arg-type]


def suite(root: Path, tests: list[str], trace: bool = False) -> tuple[bool, Report]:
    """Runs tests (all when empty) in a forked child; one that uses up its CPU time counts as failed."""
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(r)
        resource.setrlimit(resource.RLIMIT_CPU, (TRIAL_CPU_SECONDS, TRIAL_CPU_SECONDS))
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.chdir(root)
        sys.path.insert(0, str(root))
        rep = Report()
        args = ["-q", "-p", "no:cacheprovider", "--rootdir", str(root), *(tests or ["toolz"])]
        if tests and not trace:
            args.insert(0, "-x")  # one failure is answer enough
        if trace:
            trace_into(rep.ran, root)
        code = pytest.main(args, plugins=[rep])
        sys.settrace(None)
        with os.fdopen(w, "w") as f:
            json.dump({"ok": int(code) == 0, "failed": rep.failed, "text": rep.text[-200_000:], "ran": sorted(rep.ran)}, f)
        os._exit(0)
    os.close(w)
    with os.fdopen(r) as f:
        raw = f.read()
    os.waitpid(pid, 0)
    rep = Report()
    if not raw:
        return False, rep  # out of CPU time, or crashed
    d = json.loads(raw)
    rep.failed, rep.text, rep.ran = d["failed"], d["text"], {(f, n) for f, n in d["ran"]}
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
        print(f"mutation: {e.file}:{e.line}", file=sys.stderr, flush=True)
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


def candidates(root: Path, rep: Report, ran: set[tuple[str, int]]) -> list[Edit]:
    """Edits in lines that the failing tests ran, likeliest first: in functions that they are named after or that
    their tracebacks go through; then all others."""
    named = {m for t in rep.failed for m in re.findall(r"[a-z]+", t.split("::")[-1].removeprefix("test_"))}
    named |= {t.split("::")[-1].removeprefix("test_") for t in rep.failed}
    through = {(f"toolz/{f}", int(n)) for f, n in re.findall(r"toolz/(\w+\.py):(\d+)", rep.text)}
    ranked: list[tuple[int, Edit]] = []
    for f in sources(root):
        for fn in functions(ast.parse((root / f).read_text())):
            lines = range(fn.lineno, (fn.end_lineno or fn.lineno) + 1)
            score = 4 * any((f, n) in through for n in lines) + 2 * (fn.name in named)
            ranked += [(score + 8 * ((f, e.line) in ran), e) for e in edits(root, f, {fn.name})]
    ranked.sort(key=lambda s: -s[0])
    return list(dict.fromkeys(e for _, e in ranked))


def solve(project: Path) -> dict[str, object]:
    copy = scratch(project)
    try:
        ok, rep = suite(copy, [])
        if ok:
            return {"status": "nothing to mend"}
        ran = suite(copy, rep.failed, trace=True)[1].ran
        tried = 0
        for e in candidates(copy, rep, ran):
            before = (copy / e.file).read_text()
            e.apply(copy)
            try:
                ast.parse((copy / e.file).read_text())
            except SyntaxError:
                (copy / e.file).write_text(before)
                continue
            tried += 1
            print(f"trial {tried}: {e.file}:{e.line}", file=sys.stderr, flush=True)
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
