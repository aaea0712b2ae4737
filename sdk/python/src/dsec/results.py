"""How commands end, and what listings say about them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Self

from . import codec
from .codec import Json
from .failure import Blame, Failure


class Stream(StrEnum):
    """Where a piece of output was written."""

    STDOUT = "stdout"
    STDERR = "stderr"
    TERMINAL = "terminal"
    """stdout and stderr of a command with a terminal."""


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of a command's output.

    ``offset`` counts the bytes of all streams of the command in the order in which they were produced;
    ``cut_bytes`` is how many were dropped from the record right before this piece.
    """

    offset: int
    stream: Stream
    data: bytes
    cut_bytes: int = 0

    @property
    def end(self) -> int:
        """Offset of the byte after this piece."""
        return self.offset + len(self.data)

    @classmethod
    def from_json(cls, o: Json) -> Self:
        return cls(
            offset=codec.integer(o, "offset"),
            stream=Stream(codec.enum(o, "stream", "STREAM_") or "stdout"),
            data=codec.octets(o, "data"),
            cut_bytes=codec.integer(o, "cutBytes"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandEnd:
    """How a command ended."""

    failure: Failure
    """What and whose doing; kind "exited" is the ordinary end, with any exit code."""
    exit_code: int
    """As a shell shows it: the exit code, 128+signal, 126 not executable, 127 not found."""
    signal: int
    """Signal that ended the command's leader, or 0."""
    duration: float
    """Seconds."""
    oom_kills: int
    """Processes of the command that were killed for memory."""
    output_bytes: int
    """Bytes produced in all."""
    output_cut_bytes: int
    """Bytes cut out of the middle of the record: output is recorded up to a bound, head and tail."""

    @property
    def kind(self) -> str:
        """exited, signalled, timed_out, oom_killed, disk_full, cannot_start, killed, ..."""
        return self.failure.kind

    @property
    def blame(self) -> Blame:
        return self.failure.blame

    @property
    def ok(self) -> bool:
        """True when the command exited by itself with 0."""
        return self.kind == "exited" and self.exit_code == 0

    @classmethod
    def from_json(cls, o: Json) -> CommandEnd:
        return CommandEnd(
            failure=Failure.from_json(codec.message(o, "end")),
            exit_code=codec.integer(o, "exitCode"),
            signal=codec.integer(o, "signal"),
            duration=codec.number(o, "durationSeconds"),
            oom_kills=codec.integer(o, "oomKills"),
            output_bytes=codec.integer(o, "outputBytes"),
            output_cut_bytes=codec.integer(o, "outputCutBytes"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult(CommandEnd):
    """How a command ended, and its recorded output."""

    command_id: str
    stdout: bytes
    """What it wrote to stdout; to its terminal, when it had one."""
    stderr: bytes

    @property
    def stdout_text(self) -> str:
        """stdout as UTF-8; other bytes become U+FFFD."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def stderr_text(self) -> str:
        """stderr as UTF-8; other bytes become U+FFFD."""
        return self.stderr.decode("utf-8", "replace")

    @property
    def output(self) -> str:
        """Same as stdout_text."""
        return self.stdout_text

    @property
    def status(self) -> int:
        """Same as exit_code."""
        return self.exit_code

    @classmethod
    def of(cls, end: CommandEnd, command_id: str, stdout: bytes, stderr: bytes) -> CommandResult:
        """Put an end and output together."""
        same = {f.name: getattr(end, f.name) for f in fields(CommandEnd)}
        return cls(**same, command_id=command_id, stdout=stdout, stderr=stderr)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandInfo:
    """One execution in a sandbox, as listed. stdin and secrets are never in it."""

    id: str
    operation_id: str
    order: int
    """Place in the sandbox's order of commands, from 1."""
    argv: tuple[str, ...]
    shell: str
    """Exactly one of argv and shell is set."""
    cwd: str
    user: str
    env: dict[str, str]
    session_id: str
    tag: str
    terminal: bool
    pid: int
    """Process id inside the sandbox."""
    started_at: datetime | None
    ended_at: datetime | None
    end: CommandEnd | None
    """None while it runs."""

    @property
    def running(self) -> bool:
        return self.end is None

    @classmethod
    def from_json(cls, o: Json) -> Self:
        spec = codec.message(o, "spec")
        return cls(
            id=codec.text(o, "id"),
            operation_id=codec.text(o, "operationId"),
            order=codec.integer(o, "order"),
            argv=codec.texts(spec, "argv"),
            shell=codec.text(spec, "shell"),
            cwd=codec.text(spec, "cwd"),
            user=codec.text(spec, "user"),
            env=codec.mapping(spec, "env"),
            session_id=codec.text(spec, "sessionId"),
            tag=codec.text(spec, "tag"),
            terminal="terminal" in spec,
            pid=codec.integer(o, "pid"),
            started_at=codec.time(o, "startedAt"),
            ended_at=codec.time(o, "endedAt"),
            end=CommandEnd.from_json(codec.message(o, "result")) if "result" in o else None,
        )
