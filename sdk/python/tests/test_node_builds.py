"""Dockerfiles and commits of git become layers, on a real node."""

from __future__ import annotations

import asyncio
import subprocess
import time
from pathlib import Path

import pytest

from dsec import (
    BuildStep,
    DSecClient,
    DSecContainerRunArgs,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Unsupported,
    sync,
)

from .node import BASE, REPOSITORY, Node, binary

pytestmark = pytest.mark.node

DOCKERFILE = f"""FROM {BASE}
ARG V=1
ENV WHO=me
WORKDIR /app
COPY src ./
RUN echo "$WHO $V" > made && echo said
CMD ["cat", "made"]
"""


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


async def output(client: DSecClient, command: str, **args: str) -> str:
    async with await client.run_container(DSecContainerRunArgs(ttl=120, **args), timeout=60) as s:  # type: ignore[arg-type]
        return (await s.run_shell(command)).output


def dsec(client: DSecClient, *args: str | Path) -> str:
    """What the command line says."""
    env = {"DSEC_URL": client.url, "DSEC_API_KEY": client._t.config.key, "PATH": "/usr/bin:/bin"}
    return subprocess.run([binary(), *args], env=env, capture_output=True, text=True, check=True).stdout


async def test_build(client: DSecClient, tmp_path: Path) -> None:
    write(tmp_path, Dockerfile=DOCKERFILE, **{"src/a.txt": "hi", "src/no.log": "x", ".dockerignore": "**/*.log\n"})
    steps: list[BuildStep] = []
    said: list[bytes] = []
    layer = await client.layers.build_image(
        tmp_path, "py-built", build_args={"V": "2"}, memory_limit_mb=256, step=steps.append, output=said.append
    )
    assert (layer.ref, layer.source) == ("py-built@v1", str(tmp_path / "Dockerfile"))
    assert b"".join(said) == b"said\n"
    assert [(s.line, s.cached) for s in steps] == [(n, False) for n in range(2, 8)]
    assert await output(client, "pwd; cat made; ls; echo $WHO", base="py-built") == "/app\nme 2\na.txt\nmade\nme\n"

    again: list[BuildStep] = []
    same = await client.layers.build_image(
        tmp_path, "py-built", build_args={"V": "2"}, memory_limit_mb=256, step=again.append
    )
    assert same.ref == "py-built@v1"
    assert [s.line for s in again if s.cached] == [4, 5, 6]

    # The command line builds the same from the same.
    out = await asyncio.to_thread(dsec, client, "image", "build", tmp_path, "--name", "py-built", "--build-arg", "V=2")
    assert out.startswith("base py-built@v1 ") and "(unchanged)" in out

    for text, kind, says in [
        ("FROM scratch\nRNU x\n", InvalidArgument, "line 2: .*unknown instruction: RNU"),
        ("FROM scratch\nVOLUME /x\n", Unsupported, "line 2: .*VOLUME"),
        (f"FROM {BASE}\nRUN echo why; exit 3\n", FailedPrecondition, "line 2: .*the command of RUN ended with 3"),
        ("FROM py-nothing\n", NotFound, "FROM py-nothing"),
    ]:
        write(tmp_path, Dockerfile=text)
        with pytest.raises(kind, match=says):
            await client.layers.build_image(tmp_path, "py-bad")
    with pytest.raises(InvalidArgument, match="build_arg"):
        write(tmp_path, Dockerfile=DOCKERFILE)
        await client.layers.build_image(tmp_path, "py-bad", build_args={"": "x"})
    await client.layers.delete("base", "py-built")


def empty(directory: Path) -> None:
    """Wait until it is."""
    end = time.monotonic() + 60
    while left := [*directory.glob("*")]:
        assert time.monotonic() < end, left
        time.sleep(0.05)


async def test_a_build_that_is_cancelled_leaves_nothing(client: DSecClient, node: Node, tmp_path: Path) -> None:
    write(tmp_path, Dockerfile=f"FROM {BASE}\nRUN echo begun; sleep 600\n")
    begun = asyncio.Event()
    build = asyncio.create_task(client.layers.build_image(tmp_path, "py-cut", output=lambda _: begun.set()))
    await asyncio.wait_for(begun.wait(), 60)
    assert len([s async for s in client.list({"dsec.build": "py-cut"})]) == 1
    build.cancel()
    with pytest.raises(asyncio.CancelledError):
        await build
    async for end in client.events(labels={"dsec.build": "py-cut"}, follow=True):
        if end.type == "ended":
            break
    assert [s async for s in client.list({"dsec.build": "py-cut"})] == []
    await asyncio.to_thread(empty, node.state / "run" / "builds")
    with pytest.raises(NotFound):
        await client.layers.get("base", "py-cut")


def git(repository: Path, *args: str) -> str:
    identity = {f"GIT_{who}_{what}": "x@y" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    env = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"} | identity
    done = subprocess.run(["git", "-C", repository, *args], env=env, check=True, capture_output=True, text=True)
    return done.stdout.strip()


async def test_git(client: DSecClient, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    write(tmp_path, **{"a.txt": "question\n", "run.sh": "#!/bin/sh\necho ran\n", "d/e/f": "deep\n"})
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "link").symlink_to("d/e")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "the question")
    write(tmp_path, **{"answer.txt": "the answer is forty-two\n"})
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "the answer")
    before, answer = git(tmp_path, "rev-parse", "HEAD~1", "HEAD:answer.txt").split()

    layer = await client.layers.import_git(tmp_path, "py-git", revision="HEAD~1", prefix="/workspace")
    assert layer.source == f"git:{tmp_path}@{before}"
    show = (
        "git config --global safe.directory '*'; cd /workspace; ls; git status --porcelain; "
        "git log --oneline --all | wc -l; ./run.sh; cat link/f; "
        f"grep -r forty-two . || git cat-file -e {answer} || echo no answer"
    )
    want = "a.txt\nd\nlink\nrun.sh\n1\nran\ndeep\nno answer\n"
    assert await output(client, show, base=BASE, workspace="py-git") == want
    out = await asyncio.to_thread(
        dsec, client, "layer", "import", "--workspace", "py-git", "--prefix", "/workspace", f"git:{tmp_path}@{before}"
    )
    assert out.split()[1:3] == [layer.ref, layer.digest], "the command line makes another layer of the same commit"

    with pytest.raises(InvalidArgument, match="no commit, branch or tag of this name"):
        await client.layers.import_git(tmp_path, "py-git", revision="nothing")
    with pytest.raises(InvalidArgument, match="want a commit"):
        await client.layers.import_git(tmp_path, "py-git", revision="--all")
    with pytest.raises(InvalidArgument, match="not a git repository"):
        await client.layers.import_git("/", "py-git")
    await client.layers.delete("workspace", "py-git")


def test_without_a_loop(node: Node, tmp_path: Path) -> None:
    write(tmp_path, Dockerfile=f"FROM {BASE}\nCOPY a /a\n", a="x")
    with sync.DSecClient(node.url, node.key) as client:
        assert client.layers.build_image(tmp_path, "py-sync").name == "py-sync"
        assert client.layers.import_git(REPOSITORY, "py-sync", revision="HEAD").kind == "workspace"
        client.layers.delete("base", "py-sync")
        client.layers.delete("workspace", "py-sync")
