"""Broken connections: what is repeated, what is not, and that nothing is told twice or lost."""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dsec import (
    Command,
    CommandFailed,
    Conflict,
    ConnectionLost,
    DeadlineExceeded,
    DSecClient,
    DSecContainerRunArgs,
    DSecError,
    FailedPrecondition,
    InfraFailure,
    InternalError,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Sandbox,
    SandboxEnded,
    Unavailable,
    Unsupported,
)

from .wire_server import WireServer, answer, drop, hang, raw, refuse, serving, stream

ATTACH = "CommandService/AttachCommand"
EXEC = "CommandService/Exec"
ARGS = DSecContainerRunArgs(container_image="debian")


@pytest.fixture
async def wire() -> AsyncIterator[WireServer]:
    async with serving() as w:
        yield w


@pytest.fixture
async def client(wire: WireServer) -> AsyncIterator[DSecClient]:
    async with DSecClient(wire.url, "key", timeout=20, retry_for=15) as c:
        yield c


@pytest.fixture
def sandbox(client: DSecClient) -> Sandbox:
    return client.sandbox("abcd0001")


def output(offset: int, data: bytes, name: str = "STDOUT", cut: int = 0) -> dict[str, Any]:
    o = {"offset": str(offset), "stream": f"STREAM_{name}", "data": base64.b64encode(data).decode()}
    return {"event": {"output": o | ({"cutBytes": str(cut)} if cut else {})}}


def ended(**more: Any) -> dict[str, Any]:
    result = {"end": {"kind": "exited", "blame": "BLAME_TASK"}, **more}
    return {"event": {"ended": {"id": "c1", "result": result}}}


STARTED = {"event": {"started": {"id": "c1"}}}
ALIVE: dict[str, Any] = {"event": {"keepAlive": {}}}


async def test_each_byte_once_over_broken_streams(wire: WireServer, sandbox: Sandbox) -> None:
    wire.on(
        ATTACH,
        stream(STARTED, output(0, b"one "), output(4, b"two ")),  # breaks after whole messages
        stream(STARTED, output(4, b"two three "), cut=3),  # inside a message
        drop,
        refuse("unavailable", "edge is being restarted", 503),
        stream(STARTED, ALIVE, output(4, b"two three "), end={"error": {"code": "unavailable", "message": "closing"}}),
        stream(STARTED, output(14, b"err", "STDERR"), end={}),  # ends in good order, and the command did not
        stream(STARTED, output(17, b"four"), ended(exitCode=3), end={}),
    )
    pieces = [p async for p in sandbox.attach("c1")]
    assert b"".join(p.data for p in pieces) == b"one two three errfour"
    assert [p.offset for p in pieces] == [0, 4, 8, 14, 17]
    assert all(p.cut_bytes == 0 for p in pieces)
    assert [int(r.json.get("fromOffset", 0)) for r in wire.seen(ATTACH)] == [0, 8, 8, 8, 8, 14, 17]


async def test_wait_gathers_streams_and_end(wire: WireServer, sandbox: Sandbox) -> None:
    wire.on(
        ATTACH,
        stream(STARTED, output(0, b"o"), output(1, b"e", "STDERR")),
        stream(
            STARTED, output(100, b"tail", cut=98), ended(exitCode=1, outputBytes="104", outputCutBytes="98"), end={}
        ),
    )
    command = sandbox.attach("c1")
    result = await command.wait()
    assert (result.stdout, result.stderr, result.exit_code, result.output_cut_bytes) == (b"otail", b"e", 1, 98)
    assert not result.ok
    assert command.end is not None


async def test_a_gap_is_never_silent(wire: WireServer, sandbox: Sandbox) -> None:
    wire.on(ATTACH, stream(STARTED, output(0, b"ab"), output(10, b"z"), ended(), end={}))
    assert [(p.data, p.cut_bytes) async for p in sandbox.attach("c1")] == [(b"ab", 0), (b"z", 8)]


async def test_a_stream_without_an_end_is_never_exit_0(wire: WireServer, client: DSecClient) -> None:
    wire.on(ATTACH, stream(STARTED, output(0, b"x"), end={}))
    async with DSecClient(wire.url, "key", retry_for=1) as impatient:
        with pytest.raises(ConnectionLost):
            await impatient.sandbox("abcd0001").attach("c1").wait()
    assert len(wire.seen(ATTACH)) > 1


async def test_an_error_that_is_final_ends_the_stream(wire: WireServer, sandbox: Sandbox) -> None:
    wire.on(ATTACH, stream(STARTED, output(0, b"x"), end={"error": {"code": "not_found", "message": "forgotten"}}))
    with pytest.raises(NotFound, match="forgotten"):
        await sandbox.attach("c1").wait()
    assert len(wire.seen(ATTACH)) == 1


async def test_garbage_is_an_error(wire: WireServer, sandbox: Sandbox) -> None:
    wire.on(ATTACH, raw(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n\xff\xff\xff\xff\xffabcd"))
    with pytest.raises(InternalError):
        await sandbox.attach("c1").wait()
    wire.on(EXEC, raw(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\noops"))
    with pytest.raises(InternalError):
        await sandbox.run_shell("true")


async def test_wait_has_a_deadline_and_cancels_cleanly(wire: WireServer, sandbox: Sandbox) -> None:
    wire.on(ATTACH, hang)
    command = sandbox.attach("c1")
    with pytest.raises(DeadlineExceeded):
        await command.wait(timeout=0.05)
    task = asyncio.create_task(command.wait())
    await wire.arrived(ATTACH, 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


DONE = {
    "command": {"id": "c1", "result": {"end": {"kind": "exited", "blame": "BLAME_TASK"}, "exitCode": 2}},
    "stdout": "b2s=",
}


async def test_exec_is_repeated_with_the_same_operation_id(wire: WireServer, sandbox: Sandbox) -> None:
    half = b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"
    wire.on(EXEC, drop, raw(half), refuse("unavailable", "restarting", 503), answer(DONE))
    result = await sandbox.run_shell("make", timeout=5)
    assert (result.stdout, result.status, result.command_id) == (b"ok", 2, "c1")
    ids = {r.json["operationId"] for r in wire.seen(EXEC)}
    assert len(wire.seen(EXEC)) == 4
    assert len(ids) == 1
    assert next(iter(wire.seen(EXEC)[0].json)) == "sandboxId"  # where the service looks for it
    await sandbox.run_shell("make")
    assert wire.seen(EXEC)[-1].json["operationId"] not in ids


async def test_results_and_blame(wire: WireServer, sandbox: Sandbox) -> None:
    wire.on(EXEC, answer(DONE))
    with pytest.raises(CommandFailed, match="exit code 2: ok") as e:
        await sandbox.run(["make"], check=True)
    assert e.value.result.exit_code == 2
    assert e.value.blame == "task"
    broken = {"id": "c1", "result": {"end": {"kind": "store_fault", "blame": "BLAME_INFRA"}, "exitCode": 137}}
    wire.on(EXEC, answer({"command": broken}))
    with pytest.raises(InfraFailure) as lost:
        await sandbox.run_shell("make")
    assert (lost.value.blame, lost.value.reason) == ("infra", "store_fault")
    with pytest.raises(TypeError):
        await sandbox.run("a command line")
    with pytest.raises(InvalidArgument):
        await sandbox.run_shell("echo \udcff")


async def test_input_is_repeated_with_its_place(wire: WireServer, sandbox: Sandbox) -> None:
    """The service drops what it has seen of a writer: the same bytes have the same place, the next another."""
    wire.on("CommandService/SendInput", drop, answer({}), answer({}), answer({}))
    command = sandbox.attach("c1")
    await command.send_input(b"rm\n")
    await command.send_input("ls\n")
    await command.close_input()
    first, again, second, last = (r.json for r in wire.seen("CommandService/SendInput"))
    assert first == again
    assert [r["offset"] for r in (first, second, last)] == ["0", "3", "6"]
    assert len({r["writer"] for r in (first, second, last)}) == 1
    assert last["close"]


async def test_input_that_failed_is_another_writers(wire: WireServer, sandbox: Sandbox) -> None:
    wire.on("CommandService/SendInput", refuse("failed_precondition", "stdin is closed", 412), answer({}))
    command = sandbox.attach("c1")
    with pytest.raises(FailedPrecondition):
        await command.send_input(b"abc")
    await command.send_input(b"def")
    first, second = (r.json for r in wire.seen("CommandService/SendInput"))
    assert first["writer"] != second["writer"]
    assert second["offset"] == "0"


async def test_what_cannot_be_repeated_is_not(wire: WireServer, sandbox: Sandbox) -> None:
    wire.on("FileService/MoveFile", drop)
    with pytest.raises(ConnectionLost):
        await sandbox.files.move("a", "b")
    assert len(wire.seen("FileService/MoveFile")) == 1


async def test_creation_is_repeated_with_the_same_key(wire: WireServer, client: DSecClient) -> None:
    path = "SandboxService/CreateSandbox"
    wire.on(path, drop, answer({"results": [{"sandbox": {"id": "abcd0007"}}]}))
    sandbox = await client.run_container(ARGS, timeout=5, labels={"job": "1"})
    assert sandbox.id == "abcd0007"
    first, second = (r.json for r in wire.seen(path))
    assert first == second
    assert first["idempotencyKey"]
    assert first["spec"]["createTimeoutSeconds"] == 5
    assert first["spec"]["labels"] == {"job": "1"}


async def test_an_abandoned_creation_leaves_nothing(wire: WireServer) -> None:
    path = "SandboxService/CreateSandbox"
    wire.on(path, hang, answer({"results": [{"sandbox": {"id": "abcd0007"}}]}))
    wire.on("SandboxService/StopSandbox", answer({}))
    async with DSecClient(wire.url, "key") as client:
        task = asyncio.create_task(client.run_container(ARGS))
        await wire.arrived(path, 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    first, second = (r.json for r in wire.seen(path))
    assert first == second
    assert [r.json["sandboxId"] for r in wire.seen("SandboxService/StopSandbox")] == ["abcd0007"]


async def test_creations_tell_each_outcome(wire: WireServer, client: DSecClient) -> None:
    path = "SandboxService/CreateSandbox"
    failure = {"kind": "boot_failed", "blame": "BLAME_INFRA", "message": "m"}
    wire.on(
        path,
        answer(
            {
                "results": [
                    {"sandbox": {"id": "a"}},
                    {"error": {"code": "unavailable", "message": "no", "failure": failure}},
                    {"error": {"code": "resource_exhausted", "message": "full"}},
                ]
            }
        ),
    )
    one, two, three = await client.run_containers(ARGS, 3)
    assert isinstance(one, Sandbox)
    assert isinstance(two, Unavailable)
    assert two.blame == "infra"
    assert isinstance(three, ResourceExhausted)
    wire.on(path, answer({"results": [{"error": {"code": "unimplemented", "message": "no networks yet"}}]}))
    with pytest.raises(Unsupported, match="no networks yet"):
        await client.run_container(ARGS)
    wire.on(path, refuse("aborted", "a conflict", 409))
    with pytest.raises(Conflict):
        await client.run_container(ARGS, idempotency_key="k")
    with pytest.raises(InvalidArgument):
        await client.run_containers(ARGS, 0)


async def test_many_are_asked_for_in_parts(wire: WireServer, client: DSecClient) -> None:
    path = "SandboxService/CreateSandbox"

    async def some(request: Any, writer: asyncio.StreamWriter) -> None:
        n = request.json.get("count", 1)
        await answer({"results": [{"sandbox": {"id": f"{request.json['idempotencyKey']}x"}}] * n})(request, writer)

    wire.on(path, some)
    made = await client.run_containers(ARGS, 2300, idempotency_key="k")
    assert len(made) == 2300
    assert sorted(r.json["count"] for r in wire.seen(path)) == [300, 1000, 1000]
    assert {r.json["idempotencyKey"] for r in wire.seen(path)} == {"k-0", "k-1", "k-2"}


async def test_lists_go_through_all_pages(wire: WireServer, client: DSecClient) -> None:
    path = "SandboxService/ListSandboxes"
    wire.on(
        path,
        answer({"sandboxes": [{"id": "a"}, {"id": "b"}], "nextPageToken": "t"}),
        drop,
        answer({"sandboxes": [{"id": "c"}]}),
    )
    found = [s.id async for s in client.list({"job": "1"}, ["running"])]
    assert found == ["a", "b", "c"]
    assert wire.seen(path)[0].json["states"] == ["SANDBOX_STATE_RUNNING"]
    assert wire.seen(path)[-1].json["pageToken"] == "t"


def event(sandbox: str, sequence: int) -> dict[str, Any]:
    return {"event": {"sandboxId": sandbox, "sequence": str(sequence), "type": "ready"}}


async def test_events_come_once_over_broken_streams(wire: WireServer, client: DSecClient) -> None:
    path = "SandboxService/StreamEvents"
    wire.on(
        path,
        stream(event("a", 1), event("b", 1)),
        stream(event("a", 1), event("a", 2), event("b", 1), event("b", 2), {}, end={}),
    )
    got = [(e.sandbox_id, e.sequence) async for e in client.events({"job": "1"})]
    assert got == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    wire.requests.clear()
    wire.on(path, stream(event("a", 4)), stream(event("a", 5), end={}))
    assert [e.sequence async for e in client.sandbox("a").events(after=3)] == [4, 5]
    assert [r.json["afterSequence"] for r in wire.seen(path)] == ["3", "4"]


async def test_downloads_do_not_end_early_in_silence(wire: WireServer, sandbox: Sandbox) -> None:
    path = "/v1/sandboxes/abcd0001/files"
    wire.on(path, raw(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"))
    with pytest.raises(ConnectionLost):
        _ = [c async for c in sandbox.files.stream("/f")]
    chunked = raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
    whole = raw(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwhole")
    wire.requests.clear()
    wire.on(path, chunked, whole)
    assert await sandbox.files.read("/odd \udcff name") == b"whole"
    assert wire.seen(path)[0].path.endswith("?path=%2Fodd%20%FF%20name")


async def test_an_ended_sandbox(wire: WireServer, sandbox: Sandbox) -> None:
    detail = {"type": "dsec.v1.Failure", "value": base64.b64encode(b"\x0a\x0bttl_expired\x10\x03").decode()}
    wire.on(EXEC, refuse("failed_precondition", "the sandbox has ended", 400, details=[detail]))
    with pytest.raises(SandboxEnded) as e:
        await sandbox.run_shell("true")
    assert e.value.failure is not None
    assert (e.value.failure.kind, e.value.blame) == ("ttl_expired", "policy")


async def test_kill_of_an_ended_command_is_no_error(wire: WireServer, sandbox: Sandbox) -> None:
    wire.on("CommandService/SignalCommand", refuse("failed_precondition", "command c1 ended", 400))
    await sandbox.attach("c1").kill()
    with pytest.raises(DSecError, match="ended"):
        await sandbox.attach("c1").signal(15)


async def test_deadlines(wire: WireServer) -> None:
    wire.on("SandboxService/GetSandbox", hang)
    async with DSecClient(wire.url, "key", timeout=1.5) as client:
        with pytest.raises(DeadlineExceeded, match=r"within 1.5 s") as e:
            await client.sandbox("a").info()
        assert isinstance(e.value, TimeoutError)


async def test_no_service_says_what_to_do() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{s.getsockname()[1]}"  # bound, not listening
        with pytest.raises(ConnectionLost, match="dsec up --detach") as e:
            await DSecClient(url, "key", retry_for=0.2).open()
        assert e.value.unsent
        assert e.value.blame == "infra"
    with pytest.raises(RuntimeError, match="not open"):
        DSecClient(url, "key").sandbox("a")


async def test_a_service_that_comes_up_late_is_found(wire: WireServer, sandbox: Sandbox) -> None:
    """A connection that is refused is made again: nothing was sent, so that even input may be repeated."""
    handle = Command(sandbox._t, "abcd0001", "c1")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    late = DSecClient(f"http://127.0.0.1:{port}", "key")
    opening = asyncio.create_task(late.open())
    await asyncio.sleep(0)
    server = await asyncio.start_server(wire.handle, "127.0.0.1", port)
    try:
        await opening
        wire.on("CommandService/SendInput", answer({}))
        await Command(late._t, handle.sandbox_id, handle.id).send_input("x")
    finally:
        await late.close()
        server.close()
