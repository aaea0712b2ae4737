"""Commands, on a real node."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from dsec import (
    AlreadyExists,
    Blame,
    CommandFailed,
    DeadlineExceeded,
    DSecError,
    NotFound,
    Sandbox,
    Stream,
)

pytestmark = pytest.mark.node


async def test_output_and_status(sandbox: Sandbox) -> None:
    result = await sandbox.run_shell("echo hello world; echo oops >&2; exit 3")
    assert (result.output, result.stderr_text, result.status) == ("hello world\n", "oops\n", 3)
    assert (result.kind, result.blame, result.ok, result.signal) == ("exited", Blame.TASK, False, 0)
    assert result.duration >= 0
    assert (await sandbox.run(["printf", "%s|", "a b", "$HOME", ""])).stdout == b"a b|$HOME||"


async def test_bytes_are_bytes(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * 40
    result = await sandbox.run(["cat"], stdin=data)
    assert result.stdout == data
    assert "\ufffd" in result.stdout_text


async def test_env_secrets_cwd_user(sandbox: Sandbox) -> None:
    result = await sandbox.run_shell(
        'echo "$A $B $(pwd) $(id -u)"', env={"A": "1"}, secrets={"B": "hush"}, cwd="/usr/share", user="nobody"
    )
    assert result.output == "1 hush /usr/share 65534\n"
    listed = [c async for c in sandbox.commands()]
    assert listed[-1].env == {"A": "1"}
    assert "hush" not in repr(listed)
    assert (await sandbox.run(["id", "-u"], user=1234)).output == "1234\n"


async def test_how_commands_end(sandbox: Sandbox) -> None:
    killed = await sandbox.run_shell("kill -9 $$")
    assert (killed.kind, killed.signal, killed.exit_code, killed.blame) == ("signalled", 9, 137, "task")
    late = await sandbox.run_shell("sleep 1000 & sleep 1000", timeout=0.3)
    assert (late.kind, late.blame) == ("timed_out", "task")
    gone = await sandbox.run(["/no/such/program"])
    assert (gone.exit_code, gone.kind) == (127, "cannot_start")
    assert (await sandbox.run(["/etc/passwd"])).exit_code == 126
    with pytest.raises(CommandFailed) as e:
        await sandbox.run_shell("echo why >&2; false", check=True)
    assert e.value.result.exit_code == 1
    assert "why" in str(e.value)


async def test_out_of_memory_is_told_apart(sandbox: Sandbox) -> None:
    result = await sandbox.run(["python3", "-c", "x = bytearray(2 << 30); x[::4096] = x[::4096]"])
    assert (result.kind, result.blame) == ("oom_killed", "task")
    assert result.oom_kills >= 1


async def test_a_background_server_does_not_hang_the_call(sandbox: Sandbox) -> None:
    result = await sandbox.run_shell("sleep 1000 & echo started", timeout=30)
    assert (result.output, result.kind) == ("started\n", "exited")


async def test_the_same_operation_runs_once(sandbox: Sandbox) -> None:
    first = await sandbox.run_shell("echo x >> /tmp/once; wc -l < /tmp/once", operation_id="op-once")
    again = await sandbox.run_shell("echo x >> /tmp/once; wc -l < /tmp/once", operation_id="op-once")
    assert (first.stdout, first.command_id) == (again.stdout, again.command_id)
    assert (await sandbox.files.read_text("/tmp/once")) == "x\n"


async def test_a_handle_streams_each_byte_once(sandbox: Sandbox) -> None:
    command = await sandbox.start("for i in $(seq 2000); do echo line $i; [ $i = 5 ] && echo err >&2; done; exit 7")
    got: dict[Stream, bytes] = {Stream.STDOUT: b"", Stream.STDERR: b""}
    position = 0
    async for piece in command:
        assert piece.offset == position
        position = piece.end
        got[piece.stream] += piece.data
    assert got[Stream.STDOUT] == b"".join(b"line %d\n" % i for i in range(1, 2001))
    assert got[Stream.STDERR] == b"err\n"
    assert command.end is not None
    assert command.end.exit_code == 7
    result = await sandbox.attach(command.id).wait()
    assert (result.stdout, result.exit_code) == (got[Stream.STDOUT], 7)
    tail = b"".join([p.data async for p in command.output(position - 10)])
    assert tail == b"line 2000\n"


async def test_input(sandbox: Sandbox) -> None:
    command = await sandbox.start(["sha256sum"], keep_stdin_open=True)
    data = bytes(range(251)) * 12_000  # more than one message
    await command.send_input(data)
    await command.send_input("end", close=True)
    assert (await command.wait(30)).output.split()[0] == hashlib.sha256(data + b"end").hexdigest()
    reader = await sandbox.start(["cat"], keep_stdin_open=True)
    await reader.close_input()
    assert (await reader.wait(30)).ok


async def test_signals_and_kill(sandbox: Sandbox) -> None:
    command = await sandbox.start("trap 'echo got; exit 5' TERM; echo ready; while :; do sleep 0.05; done")
    async for piece in command:
        if piece.data == b"ready\n":
            break
    assert (await command.info()).running
    with pytest.raises(DeadlineExceeded):
        await command.wait(0.01)
    await command.signal()
    assert (await command.wait(30)).exit_code == 5
    deaf = await sandbox.start("trap '' TERM; sleep 1000 & sleep 1000")
    await deaf.kill()
    result = await deaf.wait(30)
    assert (result.kind, result.blame, result.signal) == ("killed", "user", 9)
    await deaf.kill()  # it has ended: nothing happens
    ended = [c async for c in sandbox.commands() if c.id == deaf.id]
    assert ended[0].end is not None
    assert deaf.id not in [c.id async for c in sandbox.commands(running_only=True)]


async def test_order_is_the_order_of_starting(sandbox: Sandbox) -> None:
    tags = [f"t{i}" for i in range(3)]
    for t in tags:
        await sandbox.run_shell("true", tag=t)
    listed = [c async for c in sandbox.commands()]
    assert [c.tag for c in listed][-3:] == tags
    assert [c.order for c in listed] == sorted(c.order for c in listed)


async def test_sessions_keep_their_state(sandbox: Sandbox) -> None:
    async with sandbox.session() as shell:
        await shell.run_shell("cd /usr/share && export MARK=1 && greet() { echo hi $1; }")
        assert (await shell.run_shell("pwd; echo $MARK; greet you")).output == "/usr/share\n1\nhi you\n"
        assert (await shell.run_shell("cat <<EOF\na\nEOF\nsleep 1000 &\nfalse")).exit_code == 1
        assert (await shell.run_shell("echo still here")).output == "still here\n"
        assert shell.id in [s.id for s in await sandbox.sessions()]
        assert (await sandbox.run_shell("echo [$MARK]")).output == "[]\n"
        with pytest.raises(AlreadyExists):
            await sandbox.session(shell.id).open()
    with pytest.raises(DSecError):
        await shell.run_shell("true")
    await shell.close()


async def test_terminal(sandbox: Sandbox) -> None:
    terminal = await sandbox.pty("stty size; read x; stty size; echo got $x; tty -s && echo tty", columns=100, rows=30)
    shown = b""
    async for piece in terminal:
        assert piece.stream is Stream.TERMINAL
        shown += piece.data
        if shown.endswith(b"30 100\r\n"):
            await terminal.resize(120, 40)
            await terminal.send_input("word\r")
    assert b"40 120" in shown
    assert b"got word\r\ntty" in shown
    result = await terminal.wait(10)
    assert result.ok
    assert result.stdout == shown


async def test_many_at_once(sandbox: Sandbox) -> None:
    results = await asyncio.gather(*(sandbox.run(["echo", str(i)]) for i in range(100)))
    assert [r.output for r in results] == [f"{i}\n" for i in range(100)]
    assert len({r.command_id for r in results}) == 100


async def test_unknown_commands(sandbox: Sandbox) -> None:
    with pytest.raises(NotFound):
        await sandbox.attach("nonsense").wait()
    with pytest.raises(NotFound):
        await sandbox.attach("nonsense").info()


async def test_cancelling_stops_the_waiting_only(sandbox: Sandbox) -> None:
    await sandbox.run_shell("mkfifo /tmp/up /tmp/gate", check=True)
    waits = "echo up > /tmp/up; read x < /tmp/gate; echo done"
    task = asyncio.create_task(sandbox.run_shell(waits, tag="gate"))
    await sandbox.run_shell("read x < /tmp/up", timeout=30, check=True)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await sandbox.run_shell("echo go > /tmp/gate", timeout=30, check=True)
    [info] = [c async for c in sandbox.commands() if c.tag == "gate"]
    assert (await sandbox.attach(info.id).wait(30)).output == "done\n"
