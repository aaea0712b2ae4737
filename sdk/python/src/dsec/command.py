"""Commands: what to run, and the handle of one that runs."""

from __future__ import annotations

import asyncio
import math
import secrets as random_words
import signal as signals
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from . import codec
from .codec import Json, without_defaults
from .errors import (
    CommandFailed,
    ConnectionLost,
    DeadlineExceeded,
    DSecError,
    FailedPrecondition,
    InfraFailure,
    InvalidArgument,
    SandboxEnded,
)
from .failure import Blame
from .results import CommandEnd, CommandInfo, CommandResult, Output, Stream
from .retry import transient
from .transport import STREAM_IDLE, Transport


def spec(
    command: str | Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
    cwd: str | None = None,
    user: str | int | None = None,
    timeout: float | None = None,
    stdin: bytes | str | None = None,
    keep_stdin_open: bool = False,
    terminal: tuple[int, int] | None = None,
    session: str | None = None,
    tag: str | None = None,
) -> dict[str, Any]:
    """The CommandSpec of the wire contract: a string is a shell's, a sequence is an argv."""
    if not command:
        raise InvalidArgument("command: empty")
    shell = isinstance(command, str)
    data = stdin.encode() if isinstance(stdin, str) else stdin
    return without_defaults(
        shell=command if shell else None,
        argv=None if shell else [str(a) for a in command],
        env=dict(env or {}),
        secrets=dict(secrets or {}),
        cwd=cwd,
        user=None if user is None else str(user),
        timeoutSeconds=timeout,
        stdin=codec.encode_octets(data) if data else None,
        keepStdinOpen=keep_stdin_open,
        terminal={"columns": terminal[0], "rows": terminal[1]} if terminal else None,
        sessionId=session,
        tag=tag,
    )


def judged(result: CommandResult, check: bool) -> CommandResult:
    """The result, unless it says nothing about the task (InfraFailure), or check and it is not ok (CommandFailed)."""
    if result.blame is Blame.INFRA:
        raise InfraFailure(result)
    if check and not result.ok:
        raise CommandFailed(result)
    return result


class Command:
    """A command of a sandbox, running or ended.

    It belongs to the sandbox and outlives its client. Its output is read from any offset, any number of times::

        command = await sandbox.start("make -j4")
        async for piece in command:
            print(piece.data)
        result = await command.wait()

    A connection that breaks is made anew where it left off: each byte comes exactly once.
    """

    def __init__(self, transport: Transport, sandbox_id: str, command_id: str, operation_id: str = "") -> None:
        self._t = transport
        self.sandbox_id = sandbox_id
        self.id = command_id
        self.operation_id = operation_id
        self._end: CommandEnd | None = None
        self._input = asyncio.Lock()
        self._writer, self._written = _new_writer(), 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} in sandbox {self.sandbox_id}>"

    @property
    def end(self) -> CommandEnd | None:
        """How it ended, once this handle has seen it."""
        return self._end

    def __aiter__(self) -> AsyncIterator[Output]:
        return self.output()

    async def output(self, offset: int = 0, *, follow: bool = True) -> AsyncGenerator[Output, None]:
        """Yield output from an offset on, until the command has ended (follow=False: to the end of the record).

        Raises ConnectionLost when the service stays away for longer than the client's ``retry_for``.
        """
        position, patience = offset, self._t.patience()
        while True:
            body = self._body(fromOffset=str(position), noFollow=not follow)
            try:
                async with aclosing(self._t.stream("CommandService/AttachCommand", body, idle=STREAM_IDLE)) as stream:
                    async for message in stream:
                        event = codec.message(message, "event")
                        if "output" in event:
                            piece = _from(Output.from_json(codec.message(event, "output")), position)
                            if piece is not None:
                                position = piece.end
                                patience.progress()
                                yield piece
                        elif "ended" in event:
                            self._end = CommandInfo.from_json(codec.message(event, "ended")).end
                            return
                        elif "keepAlive" in event:
                            patience.progress()
                if not follow:
                    return
                lost: DSecError = ConnectionLost(f"command {self.id}: the stream ended, and not the command")
            except DSecError as e:
                if not transient(e, safe=True):
                    raise
                lost = self._t.no_service(e)
            await patience.wait(lost)

    async def wait(self, timeout: float | None = None, *, check: bool = False) -> CommandResult:
        """Wait for its end and return it with the recorded output.

        ``timeout``: seconds to wait (the command goes on); None = as long as it takes. Raises DeadlineExceeded,
        InfraFailure when the platform broke it, and with check=True CommandFailed.
        """
        out, err = bytearray(), bytearray()
        try:
            async with asyncio.timeout(timeout), aclosing(self.output()) as pieces:
                async for piece in pieces:
                    (err if piece.stream is Stream.STDERR else out).extend(piece.data)
        except TimeoutError as e:
            if isinstance(e, DSecError):
                raise
            raise DeadlineExceeded(f"command {self.id}: still running after {timeout} s") from e
        if self._end is None:
            raise ConnectionLost(f"command {self.id}: the service ended the stream without a result")
        return judged(CommandResult.of(self._end, self.id, bytes(out), bytes(err)), check)

    async def info(self) -> CommandInfo:
        """What the service knows of it."""
        o = await self._t.unary("CommandService/GetCommand", self._body(), safe=True)
        return CommandInfo.from_json(codec.message(o, "command"))

    async def signal(self, signal: int = signals.SIGTERM, *, tree: bool = False) -> None:
        """Send a signal to its leader, or to its whole tree."""
        body = self._body(signal=int(signal), tree=tree)
        await self._t.unary("CommandService/SignalCommand", body, safe=signal == signals.SIGKILL)

    async def kill(self) -> None:
        """End the whole tree: nothing escapes. One that has ended stays as it is."""
        try:
            await self.signal(signals.SIGKILL, tree=True)
        except SandboxEnded:
            raise
        except FailedPrecondition:
            pass

    async def send_input(self, data: bytes | str, *, close: bool = False) -> None:
        """Write to its stdin or terminal; returns when it was written. Needs a command started with
        keep_stdin_open=True or a terminal. Each piece says where it belongs: when the connection breaks it is sent
        again, and arrives once. Calls on one handle are carried out one after the other."""
        raw = data.encode() if isinstance(data, str) else bytes(data)
        async with self._input:
            for at in range(0, max(len(raw), 1), _INPUT):
                await self._send(raw[at : at + _INPUT], close and at + _INPUT >= len(raw))

    async def close_input(self) -> None:
        """Close its stdin: it reads the end."""
        async with self._input:
            await self._send(b"", True)

    async def _send(self, piece: bytes, close: bool) -> None:
        body = self._body(data=codec.encode_octets(piece), close=close, writer=self._writer, offset=str(self._written))
        try:
            await self._t.unary("CommandService/SendInput", body, safe=True, timeout=math.inf)
        except BaseException:
            # How much of it arrived is not known: what comes next is a new writer's.
            self._writer, self._written = _new_writer(), 0
            raise
        self._written += len(piece)

    def _body(self, **fields: Any) -> Json:
        return {"sandboxId": self.sandbox_id, "commandId": self.id, **without_defaults(**fields)}


class Terminal(Command):
    """A command that has a terminal. Iterating gives what it shows."""

    async def resize(self, columns: int, rows: int) -> None:
        """Tell it its new size."""
        body = self._body(size={"columns": columns, "rows": rows})
        await self._t.unary("CommandService/ResizeTerminal", body, safe=True)


_INPUT = 1 << 20
"""Bytes of one SendInput."""


def _new_writer() -> str:
    return random_words.token_hex(16)


def _from(piece: Output, position: int) -> Output | None:
    """The part of a piece that lies at or after position; what is missing in between is counted as cut."""
    if piece.offset < position:
        if piece.end <= position:
            return None
        return Output(position, piece.stream, piece.data[position - piece.offset :])
    gap = piece.offset - position
    return piece if gap == piece.cut_bytes else Output(piece.offset, piece.stream, piece.data, gap)


async def started(transport: Transport, body: Json) -> CommandInfo:
    """Start a detached command and return it. Safe to repeat: the body has an operation id."""

    async def once() -> CommandInfo:
        async with aclosing(transport.stream("CommandService/StartCommand", body, idle=STREAM_IDLE)) as stream:
            async for message in stream:
                event = codec.message(message, "event")
                for key in ("started", "ended"):
                    if key in event:
                        return CommandInfo.from_json(codec.message(event, key))
        raise ConnectionLost("start command: the stream ended before the command had started")

    return await transport.retrying(once, safe=True, what="start command")
