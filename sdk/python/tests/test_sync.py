"""The synchronous face: the same surface, the same types, and threads that end."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import assert_type

import pytest

import dsec
from dsec import CommandResult, ConnectionLost, DSecContainerRunArgs, DSecError, Layer, SandboxInfo, sync
from dsec.bridge import Loop

from . import wire_server
from .test_broken import DONE, STARTED, ended, output
from .wire_server import WireServer, answer, drop, hang, refuse, stream

PAIRS: list[tuple[type, type]] = [
    (dsec.DSecClient, sync.DSecClient),
    (dsec.Sandbox, sync.Sandbox),
    (dsec.Command, sync.Command),
    (dsec.Terminal, sync.Terminal),
    (dsec.Session, sync.Session),
    (dsec.Files, sync.Files),
    (dsec.Layers, sync.Layers),
    (dsec.Forward, sync.Forward),
    (dsec.Screen, sync.Screen),
]
ONLY_ASYNC = {"connect", "vnc"}


@pytest.mark.parametrize(("asynchronous", "face"), PAIRS)
def test_nothing_is_missing(asynchronous: type, face: type) -> None:
    want = {
        n for n, v in vars(asynchronous).items() if not n.startswith("_") and (callable(v) or isinstance(v, property))
    }
    assert want - ONLY_ASYNC <= {n for n in dir(face) if not n.startswith("_")}
    assert face.__doc__
    for name in want - ONLY_ASYNC:
        here, there = getattr(face, name), getattr(asynchronous, name)
        assert here.__doc__, name
        if callable(there):
            assert list(inspect.signature(here).parameters) == list(inspect.signature(there).parameters), name
    if asynchronous is not dsec.Command:
        assert hasattr(face, "__enter__") == hasattr(asynchronous, "__aenter__")


@pytest.fixture
def wire() -> Iterator[WireServer]:
    """The faulty server, on an event loop of its own thread."""
    ready: asyncio.Queue[WireServer] = asyncio.Queue()
    loop = Loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with wire_server.serving() as w:
            await ready.put(w)
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run(serve()))
    thread.start()
    yield loop.run(ready.get())

    async def end() -> None:
        stop.set()

    loop.run(end())
    thread.join()
    loop.close()


def test_calls(wire: WireServer) -> None:
    wire.on("CommandService/Exec", drop, answer(DONE))
    wire.on("CommandService/StartCommand", stream(STARTED, end={}))
    wire.on(
        "CommandService/AttachCommand",
        stream(STARTED, output(0, b"one")),
        stream(STARTED, output(3, b"two"), ended(), end={}),
    )
    wire.on("SandboxService/CreateSandbox", answer({"results": [{"sandbox": {"id": "a1"}}]}))
    wire.on("SandboxService/ListSandboxes", answer({"sandboxes": [{"id": "a1"}]}))
    wire.on("SandboxService/StopSandbox", answer({"sandbox": {"id": "a1", "state": "SANDBOX_STATE_STOPPED"}}))
    with sync.DSecClient(wire.url, "key", retry_for=10) as client:
        with client.run_container(DSecContainerRunArgs(container_image="x"), timeout=3) as sandbox:
            result = sandbox.run_shell("make")
            assert_type(sandbox, sync.Sandbox)
            assert_type(result, CommandResult)
            assert result.status == 2
            command = sandbox.start(["sleep", "1"])
            assert_type(command, sync.Command)
            assert [p.data for p in command] == [b"one", b"two"]
            assert command.wait().ok
            assert_type(sandbox.session(), sync.Session)
        assert len(wire.seen("SandboxService/StopSandbox")) == 1
        found = list(client.list())
        assert_type(found, list[SandboxInfo])
        assert [s.id for s in found] == ["a1"]
        assert_type(client.layers.list(), list[Layer])
        made = client.run_containers(DSecContainerRunArgs(container_image="x"), 1)
        assert_type(made, list[sync.Sandbox | DSecError])
        assert isinstance(made[0], sync.Sandbox)
        with ThreadPoolExecutor(8) as pool:
            assert sum(r.status for r in pool.map(lambda _: sandbox.run_shell("x"), range(40))) == 80
    with pytest.raises(RuntimeError, match="closed"):
        client.open()
    client.close()


def test_errors_are_the_same(wire: WireServer) -> None:
    wire.on("SandboxService/GetSandbox", refuse("not_found", "no such sandbox", 404))
    with sync.DSecClient(wire.url, "key") as client, pytest.raises(dsec.NotFound, match="no such sandbox"):
        client.get("a")
    with pytest.raises(ConnectionLost), sync.DSecClient("http://127.0.0.1:1", retry_for=0.1):
        pass
    assert not [t for t in threading.enumerate() if t.name == "dsec" and t is not threading.current_thread()][1:]


def test_an_iterator_that_is_left_closes_its_stream(wire: WireServer) -> None:
    wire.on("CommandService/AttachCommand", stream(STARTED, output(0, b"one"), output(3, b"two"), ended(), end={}))
    with sync.DSecClient(wire.url, "key") as client:
        for piece in client.sandbox("a").attach("c"):
            assert piece.data == b"one"
            break


def test_close_ends_what_waits(wire: WireServer) -> None:
    arrived = threading.Event()

    async def answer_never(request: wire_server.Request, writer: asyncio.StreamWriter) -> None:
        arrived.set()
        await hang(request, writer)

    wire.on("CommandService/Exec", answer_never)
    client = sync.DSecClient(wire.url, "key").open()
    outcome: list[BaseException] = []

    def wait() -> None:
        try:
            client.sandbox("a").run_shell("sleep inf")
        except BaseException as e:
            outcome.append(e)

    thread = threading.Thread(target=wait)
    thread.start()
    arrived.wait()
    client.close()
    thread.join()
    assert outcome


def test_misuse_is_told() -> None:
    loop = Loop()

    async def inner() -> None:
        loop.run(asyncio.sleep(0))

    with pytest.raises(RuntimeError, match="callback"):
        loop.run(inner())
    pid = os.fork()
    if pid == 0:
        try:
            loop.run(asyncio.sleep(0))
        except RuntimeError as e:
            os._exit(0 if "forked" in str(e) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    loop.close()
    with pytest.raises(RuntimeError, match="closed"):
        loop.run(asyncio.sleep(0))
