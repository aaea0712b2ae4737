"""One commit of a local git repository as a directory: its files, and a repository of that commit alone.

No other commit, branch, tag or remote comes along, so that nothing of the history can be read inside. What is made
follows from the commit alone: the same commit gives the same layer, also by `dsec layer import git:PATH@REVISION`.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from .errors import InvalidArgument

_ALONE = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "LC_ALL": "C",
}
"""git looks at nobody's configuration, asks nobody and fetches nothing."""
_SETTINGS = ("pack.threads=1", "core.autocrlf=false", "core.hooksPath=/dev/null", "gc.auto=0")
_LEFTOVERS = ("logs", "hooks", "info/refs", "objects/info/packs", "ORIG_HEAD", "COMMIT_EDITMSG")


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A commit in a directory of its own."""

    tree: Path
    commit: str
    """The commit that was asked for; the one in the directory has another name."""
    submodules: tuple[str, ...]
    """Paths of which the commit names only a commit of another repository: they are empty."""


@asynccontextmanager
async def exported(repository: str | os.PathLike[str], revision: str) -> AsyncIterator[Export]:
    """Make the directory, and remove it at the end. Raises InvalidArgument with what git said."""
    if not revision or revision.startswith("-"):
        raise InvalidArgument(f"git revision {revision!r}: want a commit, branch or tag")
    source = Path(repository)
    if not source.is_dir():
        raise InvalidArgument(f"git repository {source}: it is no directory")
    if shutil.which("git") is None:
        raise InvalidArgument("git is not installed here: install it, or upload the files of a directory")
    top = Path(tempfile.mkdtemp(prefix="dsec-git-"))
    try:
        try:
            made = await _fill(source, revision, top / "tree")
        except _GitError as e:
            raise InvalidArgument(f"git {source}@{revision}: {e}") from e
        yield made
    finally:
        await asyncio.to_thread(shutil.rmtree, top, ignore_errors=True)


class _GitError(Exception):
    """What git said."""


async def _fill(source: Path, revision: str, tree: Path) -> Export:
    try:
        commit = await _git(source, "rev-parse", "--verify", "--end-of-options", revision + "^{commit}")
    except _GitError as e:
        raise _GitError(f"no commit, branch or tag of this name is there: {e}") from e
    content = await _git(source, "rev-parse", commit + "^{tree}")
    form = await _git(source, "rev-parse", "--show-object-format")
    objects = await _git(source, "rev-parse", "--path-format=absolute", "--git-path", "objects")
    when = int(await _git(source, "show", "-s", "--no-show-signature", "--format=%ct", commit))
    await _git(None, "init", "--quiet", "--template=", f"--object-format={form}", "--initial-branch=main", str(tree))
    date = f"{when} +0000"
    env = {f"GIT_{who}_{what}": v for who in ("AUTHOR", "COMMITTER") for what, v in _identity(date)}
    settings = [x for s in _SETTINGS for x in ("-c", s)]

    async def own(*args: str) -> str:
        return await _git(tree, *settings, *args, env=env)

    dot = tree / ".git"
    alternates = dot / "objects" / "info" / "alternates"
    alternates.parent.mkdir(parents=True, exist_ok=True)
    alternates.write_text(objects + "\n")
    own_commit = await own("commit-tree", content, "-m", f"import of {commit}")
    await own("update-ref", "refs/heads/main", own_commit)
    # A pack of what the one commit reaches; then nothing of the source is needed, or reachable, any more.
    await own("repack", "-a", "-d", "-q", "--no-write-bitmap-index", "--window=0")
    alternates.unlink()
    await own("checkout", "--quiet", "--force", "main")
    listed = await own("ls-tree", "-r", "-z", "--format=%(objecttype) %(path)", own_commit)
    # An index that knows the content and nothing of this machine's files: git looks at them once, finding no change.
    (dot / "index").unlink()
    await own("read-tree", "HEAD")
    await asyncio.to_thread(_settle, tree, when)
    submodules = tuple(e.removeprefix("commit ") for e in listed.split("\0") if e.startswith("commit "))
    return Export(tree=tree, commit=commit, submodules=submodules)


def _identity(date: str) -> tuple[tuple[str, str], ...]:
    return (("NAME", "dsec"), ("EMAIL", "dsec@localhost"), ("DATE", date))


def _settle(tree: Path, when: int) -> None:
    """Take out what depends on when, where and by whom the files were written."""
    for name in _LEFTOVERS:
        left = tree / ".git" / name
        if left.is_dir():
            shutil.rmtree(left)
        else:
            left.unlink(missing_ok=True)
    for directory, _, files in os.walk(tree, topdown=False):
        for path in [*(os.path.join(directory, f) for f in files), directory]:
            _settle_one(path, when)
        for entry in os.scandir(directory):
            if entry.is_symlink():  # to a directory: walked as one, and no file
                _settle_one(entry.path, when)


def _settle_one(path: str, when: int) -> None:
    mode = os.lstat(path).st_mode
    if not stat.S_ISLNK(mode):
        os.chmod(path, 0o755 if mode & 0o100 else 0o644)
    os.utime(path, (when, when), follow_symlinks=False)


async def _git(directory: Path | None, *args: str, env: Mapping[str, str] | None = None) -> str:
    """Run git, and return what it says without the last end of line. Cancelled, it ends git and waits for it."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")} | _ALONE | dict(env or {})
    at = ["-C", str(directory)] if directory is not None else []
    process = await asyncio.create_subprocess_exec(
        "git",
        *at,
        *args,
        env=clean,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await process.communicate()
    except BaseException:
        with suppress(ProcessLookupError):
            process.kill()
        await asyncio.shield(process.wait())
        raise
    if process.returncode != 0:
        said = err.decode(errors="replace").strip().removeprefix("fatal: ")
        raise _GitError(said or f"git {args[0]} ended with {process.returncode}")
    return os.fsdecode(out).rstrip("\n")
