"""Creation, lists, events, ends, and the synchronous face, on a real node."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from dsec import (
    AlreadyExists,
    DSecClient,
    DSecContainerRunArgs,
    DSecError,
    FailedPrecondition,
    InvalidArgument,
    LayerKind,
    NotFound,
    Sandbox,
    SandboxEnded,
    State,
    Unauthenticated,
    Unsupported,
    sync,
)

from .conftest import ARGS
from .node import BASE, Node

pytestmark = pytest.mark.node
PACKAGE = Path(__file__).resolve().parents[1]


async def test_the_papers_listing(client: DSecClient) -> None:
    args = DSecContainerRunArgs(
        container_image=BASE,
        memory_limit_mb=4096,
        cpu_cores_limit=4,
        ttl_running_stop=300,
        network_rules={"npm": False},
        init_user="root",
    )
    sandbox = await client.run_container(args, timeout=120)
    result = await sandbox.run_shell("echo hello world")
    assert (result.output, result.status) == ("hello world\n", 0)
    info = await sandbox.info()
    assert (info.state, info.memory_bytes, info.cpu_cores, info.idle_timeout) == (State.RUNNING, 4 << 30, 4, 300)
    end = await sandbox.stop()
    assert end.state is State.STOPPED
    assert end.end is not None
    assert (end.end.kind, end.end.blame) == ("stopped", "user")


async def test_what_the_node_cannot_do_is_refused_with_a_reason(client: DSecClient) -> None:
    with pytest.raises(Unsupported, match="pypi"):
        await client.run_container(dataclasses.replace(ARGS, network_rules={"pypi": True}))
    with pytest.raises(NotFound, match="no-such-image"):
        await client.run_container(dataclasses.replace(ARGS, container_image="no-such-image"))
    with pytest.raises(InvalidArgument):
        await client.run_container(dataclasses.replace(ARGS, memory_limit_mb=-1))
    with pytest.raises(InvalidArgument):
        await client.run_container(dataclasses.replace(ARGS, ttl=-1))


async def test_keys(node: Node) -> None:
    with pytest.raises(Unauthenticated):
        await DSecClient(node.url, "wrong").open()


async def test_an_ended_sandbox_says_when_and_why(client: DSecClient) -> None:
    async with await client.run_container(ARGS) as sandbox:
        pass
    with pytest.raises(SandboxEnded) as e:
        await sandbox.run_shell("true")
    assert e.value.failure is not None
    assert (e.value.failure.kind, e.value.blame) == ("stopped", "user")
    for late in (sandbox.files.read("/etc/hostname"), sandbox.files.write("/tmp/x", b"x"), sandbox.files.stat("/tmp")):
        with pytest.raises(SandboxEnded) as e:
            await late
        assert e.value.failure is not None
        assert (e.value.failure.kind, e.value.blame) == ("stopped", "user")
    assert (await sandbox.stop()).state is State.STOPPED
    with pytest.raises(NotFound):
        await client.get(sandbox.id[:-1] + ("a" if sandbox.id[-1] != "a" else "b"))


async def test_idempotency(client: DSecClient) -> None:
    key = uuid.uuid4().hex
    first = await client.run_container(ARGS, idempotency_key=key)
    async with first:
        assert (await client.run_container(ARGS, idempotency_key=key)).id == first.id
        with pytest.raises(AlreadyExists, match="another body"):
            await client.run_container(dataclasses.replace(ARGS, hostname="other"), idempotency_key=key)


async def test_many_by_label(client: DSecClient) -> None:
    labels = {"job": uuid.uuid4().hex}
    made = await client.run_containers(ARGS, 5, timeout=60, labels=labels)
    assert all(isinstance(s, Sandbox) for s in made)
    ids = {s.id for s in made if isinstance(s, Sandbox)}
    assert {s.id async for s in client.list(labels)} == ids
    assert {s.id async for s in client.list(labels, [State.PAUSED])} == set()
    assert set(await client.stop_all(labels)) == ids
    assert [s async for s in client.list(labels)] == []
    assert {s.id async for s in client.list(labels, ["stopped"])} == ids
    with pytest.raises(InvalidArgument):
        await client.stop_all({})


async def test_cancelled_creations_leave_nothing(node: Node, client: DSecClient) -> None:
    labels = {"job": uuid.uuid4().hex}
    async with DSecClient(node.url, node.key) as other:
        tasks = [asyncio.create_task(other.run_container(ARGS, labels=labels)) for _ in range(8)]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for t in tasks:
            t.cancel()
        made = await asyncio.gather(*tasks, return_exceptions=True)
    ids = {s.id for s in made if isinstance(s, Sandbox)}
    assert {s.id async for s in client.list(labels)} == ids
    await client.stop_all(labels)


async def test_pause_and_any_request_resumes(client: DSecClient) -> None:
    async with await client.run_container(ARGS) as sandbox:
        command = await sandbox.start("i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done")
        assert (await sandbox.pause()).state is State.PAUSED
        assert (await sandbox.pause()).state is State.PAUSED
        assert (await sandbox.info()).state is State.PAUSED
        assert (await sandbox.run_shell("echo awake")).output == "awake\n"
        assert (await sandbox.info()).state is State.RUNNING
        await sandbox.pause()
        assert (await sandbox.resume()).state is State.RUNNING
        await command.kill()


async def test_idle_timeout_and_extend(client: DSecClient) -> None:
    sandbox = await client.run_container(dataclasses.replace(ARGS, ttl=None, ttl_running_stop=0.5))
    end = None
    async for e in sandbox.events(follow=True):
        end = e
    assert end is not None
    assert end.type == "ended"
    failure = (await sandbox.info()).end
    assert failure is not None
    assert (failure.kind, failure.blame) == ("idle_expired", "policy")
    async with await client.run_container(ARGS) as other:
        before = (await other.info()).expires_at
        after = (await other.extend(ttl=5000)).expires_at
        assert before is not None
        assert after is not None
        assert after > before


async def test_events_and_stats(client: DSecClient) -> None:
    labels = {"job": uuid.uuid4().hex}
    async with await client.run_container(ARGS, labels=labels) as sandbox:
        await sandbox.run_shell("head -c 3M /dev/zero > /var/tmp/f")
        later = [e async for e in sandbox.events()]
        types = [e.type for e in later]
        assert types[0] == "created"
        assert {"ready", "command_started", "command_ended"} <= set(types)
        assert await anext(aiter(sandbox.events(after=2))) == later[2]
        stats = await sandbox.stats()
        assert stats.memory_bytes > 0
        assert stats.pids >= 0
        assert stats.memory_limit_bytes == 512 << 20
        followed = asyncio.create_task(_until_ended(client, labels))
    assert await asyncio.wait_for(followed, 30) == sandbox.id


async def _until_ended(client: DSecClient, labels: dict[str, str]) -> str:
    async for e in client.events(labels, follow=True):
        if e.type == "ended":
            return e.sandbox_id
    return ""


async def test_layers(client: DSecClient, tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w/task.py").write_text("print('from the workspace')")
    stages: set[str] = set()
    layer = await client.layers.upload_layer(
        tmp_path / "w", LayerKind.WORKSPACE, "py-task", prefix="/workspace", progress=lambda p: stages.add(p.stage)
    )
    assert (layer.kind, layer.name, layer.version) == (LayerKind.WORKSPACE, "py-task", "v1")
    assert layer.digest in [x.digest for x in await client.layers.list("workspace")]
    args = DSecContainerRunArgs(base=BASE, workspace=layer.ref, labels=ARGS.labels, ttl=300)
    async with await client.run_container(args) as sandbox:
        assert (await sandbox.run(["python3", "/workspace/task.py"])).output == "from the workspace\n"
    assert [x.version for x in await client.layers.delete("workspace", "py-task")] == ["v1"]
    with pytest.raises(NotFound):
        await client.run_container(args)
    with pytest.raises(DSecError):
        await client.layers.import_image("127.0.0.1:1/none:latest", insecure=True)
    with pytest.raises(DSecError):
        await client.layers.upload_layer(b"this is no tar", "workspace", "broken")


def test_the_synchronous_face(node: Node, tmp_path: Path) -> None:
    with sync.DSecClient(node.url, node.key) as client, client.run_container(ARGS, timeout=60) as sandbox:
        assert sandbox.run_shell("echo hello", check=True).output == "hello\n"
        command = sandbox.start("for i in 1 2 3; do echo $i; done")
        assert b"".join(p.data for p in command) == b"1\n2\n3\n"
        with sandbox.session() as shell:
            shell.run_shell("cd /tmp")
            assert shell.run_shell("pwd").output == "/tmp\n"
            assert sandbox.run_shell("pwd", session=shell).output == "/tmp\n"
        sandbox.files.write("/tmp/f", b"x" * 1_000_000)
        assert sum(len(c) for c in sandbox.files.stream("/tmp/f")) == 1_000_000
        sandbox.files.upload_dir(PACKAGE / "examples", "/tmp/examples")
        sandbox.files.download_dir("/tmp/examples", tmp_path)
        assert (tmp_path / "quickstart.py").read_bytes() == (PACKAGE / "examples/quickstart.py").read_bytes()
        terminal = sandbox.pty("read x; echo $x")
        terminal.resize(90, 20)
        terminal.send_input("typed\r")
        assert "typed" in terminal.wait(30).output
        assert sandbox.id in [s.id for s in client.list({"suite": "pytest"})]
        assert "ready" in [e.type for e in sandbox.events()]
        assert client.node().live_sandboxes >= 1


@pytest.mark.parametrize(
    ("name", "argv", "prints"),
    [("quickstart.py", [], "hello world\nstatus 0\n"), ("rollouts.py", ["3"], "passed \n" * 3)],
)
def test_examples(node: Node, tmp_path: Path, name: str, argv: list[str], prints: str) -> None:
    source = (PACKAGE / "examples" / name).read_text()
    with sync.DSecClient(node.url, node.key) as client:
        cores = min(4, client.node().cpus)  # a limit above the node's is refused
    (tmp_path / name).write_text(source.replace("cpu_cores_limit=4", f"cpu_cores_limit={cores}"))
    done = subprocess.run(
        [sys.executable, tmp_path / name, BASE, *argv],
        env={**os.environ, "DSEC_URL": node.url, "DSEC_API_KEY": node.key},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout, done.returncode) == (prints, 0), done.stderr


async def test_read_while_stopping(client: DSecClient) -> None:
    """A command of a sandbox that is being stopped is read like any other, whenever that is asked for."""
    async with await client.run_container(ARGS, timeout=60) as sandbox:
        command = await sandbox.start("echo begun; exec sleep 600")
        async for piece in command:
            assert piece.data == b"begun\n"
            break
        stopping = asyncio.create_task(sandbox.stop())
        while not stopping.done():
            result = await sandbox.attach(command.id).wait(60)
            assert (result.stdout, result.kind, result.exit_code) == (b"begun\n", "stopped", 137)
        await stopping
        assert (await sandbox.attach(command.id).wait(60)).kind == "stopped"


async def test_paused_when_its_time_runs_out(client: DSecClient) -> None:
    args = dataclasses.replace(ARGS, ttl=600, on_timeout="pause", paused_limit=3600, manual_resume=True)
    async with await client.run_container(args) as sandbox:
        await sandbox.extend(ttl=0.1)
        async for e in sandbox.events(follow=True):
            if e.type == "paused":
                break
        assert (await sandbox.info()).paused_until is not None
        with pytest.raises(FailedPrecondition, match="is paused"):
            await sandbox.run_shell("true")
        await sandbox.extend(ttl=600)
        assert (await sandbox.resume()).paused_until is None
        assert (await sandbox.run_shell("echo up")).stdout == b"up\n"
