"""Function calls: short, stateless programs that run isolated, without a sandbox; and judging by test cases."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Generic, Self, TypeVar

from . import codec, wire_errors
from .codec import Json, dumps, encode_octets, without_defaults
from .errors import ConnectionLost, DSecError, InternalError, ResourceExhausted, Unavailable
from .failure import Blame, Failure
from .transport import Transport

PART: Final = 500
"""Calls of one request of a batch."""
PART_BYTES: Final = 4 << 20
AT_ONCE: Final = 2
"""Requests of a batch that are under way."""
AHEAD: Final = 1024
"""Results of a batch that wait to be taken; beyond that the service is not read."""

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DSecCallLimits:
    """What a call may use, all its processes together. None means the service's default."""

    cpu: float | None = None
    """CPU time, in seconds; default 10."""
    wall: float | None = None
    """Seconds; default 20, or twice cpu where that is more."""
    memory_mb: float | None = None
    """Memory in MiB, its files included; default 256, at least 8."""
    pids: int | None = None
    """Processes and threads; default 64."""
    output: int | None = None
    """Bytes of each of stdout and stderr; default 1 MiB. A call that writes more is ended."""
    files: int | None = None
    """Files and directories; default 256."""
    files_mb: float | None = None
    """All files together, in MiB; default 64."""

    def to_json(self) -> dict[str, Any]:
        return without_defaults(
            cpuSeconds=self.cpu,
            wallSeconds=self.wall,
            memoryBytes=_bytes(self.memory_mb),
            pids=self.pids,
            outputBytes=self.output,
            files=self.files,
            fileBytes=_bytes(self.files_mb),
        )


def _bytes(mb: float | None) -> int | None:
    return None if mb is None else int(mb * _MIB)


def _octets(v: bytes | str) -> bytes:
    return v.encode() if isinstance(v, str) else v


@dataclass(frozen=True, slots=True, kw_only=True)
class _Program:
    runtime: str
    """shell, python, node, c, cpp or go."""
    code: str = ""
    """The program's source."""
    files: Mapping[str, bytes | str] = field(default_factory=dict)
    """Files of the working directory, by path."""
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    compiler_flags: Sequence[str] = ()
    limits: DSecCallLimits = DSecCallLimits()
    compile_limits: DSecCallLimits = DSecCallLimits()

    def _program(self) -> dict[str, Any]:
        return without_defaults(
            runtime=self.runtime,
            code=self.code,
            files=[{"path": p, "data": encode_octets(_octets(d))} for p, d in self.files.items()],
            flags=list(self.compiler_flags),
            compileLimits=self.compile_limits.to_json(),
        )

    def _env(self) -> list[str]:
        return [f"{k}={v}" for k, v in self.env.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class DSecFnCallArgs(_Program):
    """One call."""

    stdin: bytes | str = b""
    collect: Sequence[str] = ()
    """Files of the working directory that are wanted back."""
    collect_limit: int | None = None
    """Bytes of each of them; default 1 MiB. Larger ones, and those that are missing, are left out."""

    def to_json(self) -> dict[str, Any]:
        """The CallSpec of the wire contract."""
        return without_defaults(
            program=self._program(),
            args=list(self.args),
            env=self._env(),
            stdin=encode_octets(_octets(self.stdin)),
            limits=self.limits.to_json(),
            collect=list(self.collect),
            collectBytes=self.collect_limit,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeCase:
    """One input and the output that it should give."""

    stdin: bytes | str
    expected: bytes | str
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DSecJudgeArgs(_Program):
    """A submission: a program and the cases that it is judged by. limits are those of each case."""

    cases: Sequence[JudgeCase]
    comparison: str = "trimmed"
    """exact; trimmed: white space at the ends of lines and empty lines at the end do not count; tokens: only the words
    count."""
    stop_early: bool = False
    """Run the cases in order, and none after the first that is not accepted."""
    show_output: int = 0
    """Bytes of each case's stdout and stderr that are wanted back."""

    def to_json(self) -> dict[str, Any]:
        """The JudgeSpec of the wire contract."""
        return without_defaults(
            program=self._program(),
            args=list(self.args),
            env=self._env(),
            limits=self.limits.to_json(),
            cases=[
                without_defaults(
                    name=c.name,
                    stdin=encode_octets(_octets(c.stdin)),
                    expected=encode_octets(_octets(c.expected)),
                )
                for c in self.cases
            ],
            comparison=f"COMPARISON_{self.comparison.upper()}",
            stopEarly=self.stop_early,
            showOutputBytes=self.show_output,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FnCallResult:
    """How a call ended."""

    failure: Failure
    """What and whose doing; kind "exited" is the ordinary end, with any exit code."""
    exit_code: int
    """As a shell shows it."""
    signal: int
    stdout: bytes
    stderr: bytes
    output_cut: bool
    """It wrote more than it may; stdout and stderr are the beginning."""
    cpu: float
    """Seconds."""
    wall: float
    """Seconds."""
    memory_peak: int
    """Bytes."""
    files: dict[str, bytes]
    """Those of ``collect`` that are there."""
    compiling: bool
    """What ended was the compiler: the program was not run, and the output is the compiler's."""
    compile_time: float
    """Seconds; 0 when there was nothing to compile."""

    @property
    def kind(self) -> str:
        """exited, signalled, timed_out, oom_killed, disk_full, output_limit, cannot_start, killed, ..."""
        return self.failure.kind

    @property
    def blame(self) -> Blame:
        return self.failure.blame

    @property
    def ok(self) -> bool:
        """True when the program ran and exited by itself with 0."""
        return self.kind == "exited" and self.exit_code == 0 and not self.compiling

    @property
    def stdout_text(self) -> str:
        """stdout as UTF-8; other bytes become U+FFFD."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def stderr_text(self) -> str:
        """stderr as UTF-8; other bytes become U+FFFD."""
        return self.stderr.decode("utf-8", "replace")

    @classmethod
    def from_json(cls, o: Json) -> Self:
        return cls(
            failure=Failure.from_json(codec.message(o, "end")),
            exit_code=codec.integer(o, "exitCode"),
            signal=codec.integer(o, "signal"),
            stdout=codec.octets(o, "stdout"),
            stderr=codec.octets(o, "stderr"),
            output_cut=codec.boolean(o, "outputCut"),
            cpu=codec.number(o, "cpuSeconds"),
            wall=codec.number(o, "wallSeconds"),
            memory_peak=codec.integer(o, "memoryPeakBytes"),
            files={codec.text(f, "path"): codec.octets(f, "data") for f in codec.messages(o, "files")},
            compiling=codec.boolean(o, "compiling"),
            compile_time=codec.number(o, "compileSeconds"),
        )


class Verdict(StrEnum):
    """What a case or a submission came to."""

    ACCEPTED = "accepted"
    WRONG_ANSWER = "wrong_answer"
    TIME_LIMIT = "time_limit"
    MEMORY_LIMIT = "memory_limit"
    RUNTIME_ERROR = "runtime_error"
    COMPILE_ERROR = "compile_error"
    OUTPUT_LIMIT = "output_limit"
    INTERNAL_ERROR = "internal_error"
    """The platform failed: nothing is known about the submission. Ask again."""
    SKIPPED = "skipped"
    """An earlier case decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """What one case came to."""

    name: str
    verdict: Verdict
    failure: Failure | None
    """How its run ended; None when it was skipped."""
    exit_code: int
    signal: int
    cpu: float
    wall: float
    memory_peak: int
    stdout: bytes
    stderr: bytes

    @classmethod
    def from_json(cls, o: Json) -> Self:
        return cls(
            name=codec.text(o, "name"),
            verdict=Verdict(codec.enum(o, "verdict", "VERDICT_")),
            failure=Failure.optional(o, "end"),
            exit_code=codec.integer(o, "exitCode"),
            signal=codec.integer(o, "signal"),
            cpu=codec.number(o, "cpuSeconds"),
            wall=codec.number(o, "wallSeconds"),
            memory_peak=codec.integer(o, "memoryPeakBytes"),
            stdout=codec.octets(o, "stdout"),
            stderr=codec.octets(o, "stderr"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeResult:
    """What a submission came to."""

    verdict: Verdict
    """Of the first case that was not accepted, or accepted."""
    cases: tuple[CaseResult, ...]
    """In the order of the request; empty after a compile error."""
    compiler_output: bytes
    compile_time: float
    accepted: int

    @property
    def ok(self) -> bool:
        """True when every case was accepted."""
        return self.verdict == Verdict.ACCEPTED

    @classmethod
    def from_json(cls, o: Json) -> Self:
        return cls(
            verdict=Verdict(codec.enum(o, "verdict", "VERDICT_")),
            cases=tuple(CaseResult.from_json(c) for c in codec.messages(o, "cases")),
            compiler_output=codec.octets(o, "compilerOutput"),
            compile_time=codec.number(o, "compileSeconds"),
            accepted=codec.integer(o, "accepted"),
        )


R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome(Generic[R]):
    """One item of a batch: its result, or why it was not run."""

    index: int
    """Place in the list that was given."""
    result: R | None
    error: DSecError | None

    def value(self) -> R:
        """The result; raises the error where there is none."""
        if self.result is None:
            raise self.error or InternalError("neither a result nor an error")
        return self.result


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeInfo:
    """A runtime of the node, and what its calls came to since the node's start."""

    name: str
    base: str
    """Empty = the runtime is not available."""
    cells: int
    calls: int
    timed_out: int
    infra_failures: int
    compile_cache_hits: int
    refused: int
    """Calls that found too many waiting."""
    waiting: int
    p50: float
    """Seconds, of the latest calls, waiting in line left out."""
    p99: float

    @classmethod
    def from_json(cls, o: Json) -> Self:
        return cls(
            name=codec.text(o, "name"),
            base=codec.text(o, "base"),
            cells=codec.integer(o, "cells"),
            calls=codec.integer(o, "calls"),
            timed_out=codec.integer(o, "timedOut"),
            infra_failures=codec.integer(o, "infraFailures"),
            compile_cache_hits=codec.integer(o, "compileCacheHits"),
            refused=codec.integer(o, "refused"),
            waiting=codec.integer(o, "waiting"),
            p50=codec.number(o, "p50Usec") / 1e6,
            p99=codec.number(o, "p99Usec") / 1e6,
        )


class Calls:
    """What the client does for function calls."""

    def __init__(self, transport: Transport) -> None:
        self._t = transport

    async def call(self, args: DSecFnCallArgs, timeout: float | None, operation_id: str | None) -> FnCallResult:
        body = {"operationId": operation_id or uuid.uuid4().hex, "call": args.to_json()}
        o = await self._t.unary("FnCallService/Call", body, safe=True, timeout=timeout)
        return FnCallResult.from_json(codec.message(o, "result"))

    async def judge(self, args: DSecJudgeArgs, timeout: float | None, operation_id: str | None) -> JudgeResult:
        body = {"operationId": operation_id or uuid.uuid4().hex, "submission": args.to_json()}
        o = await self._t.unary("FnCallService/Judge", body, safe=True, timeout=timeout)
        return JudgeResult.from_json(codec.message(o, "result"))

    def call_batch(self, calls: Sequence[DSecFnCallArgs]) -> AsyncGenerator[Outcome[FnCallResult], None]:
        items = [{"operationId": uuid.uuid4().hex, "call": c.to_json()} for c in calls]
        return _Batch(self._t, "CallBatch", "calls", items, FnCallResult.from_json).outcomes()

    def judge_batch(self, submissions: Sequence[DSecJudgeArgs]) -> AsyncGenerator[Outcome[JudgeResult], None]:
        items = [{"operationId": uuid.uuid4().hex, "submission": s.to_json()} for s in submissions]
        return _Batch(self._t, "JudgeBatch", "submissions", items, JudgeResult.from_json).outcomes()


class _Batch(Generic[R]):
    """A list of requests, sent in parts; parts whose connection breaks are sent again, without what has come."""

    def __init__(
        self, transport: Transport, method: str, name: str, items: Sequence[Json], decode: Callable[[Json], R]
    ) -> None:
        self._t = transport
        self._method = method
        self._name = name
        self._items = items
        self._decode = decode
        self._open = {codec.text(r, "operationId"): n for n, r in enumerate(items)}
        self._found: asyncio.Queue[Outcome[R] | DSecError] = asyncio.Queue(AHEAD)

    async def outcomes(self) -> AsyncGenerator[Outcome[R], None]:
        parts = iter(self._parts())
        tasks = [asyncio.create_task(self._work(parts)) for _ in range(AT_ONCE)]
        try:
            for _ in range(len(self._items)):
                found = await self._found.get()
                if isinstance(found, DSecError):
                    raise found
                yield found
        finally:
            for t in tasks:
                t.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _parts(self) -> list[list[Json]]:
        out: list[list[Json]] = []
        size = PART_BYTES
        for r in self._items:
            n = len(dumps(r))
            if size + n > PART_BYTES or len(out[-1]) >= PART:
                out.append([])
                size = 0
            out[-1].append(r)
            size += n
        return out

    async def _work(self, parts: Any) -> None:
        try:
            for part in parts:
                await self._part(part)
        except DSecError as e:
            await self._found.put(e)
        except Exception as e:
            await self._found.put(InternalError(f"{self._method}: {e}"))

    async def _part(self, part: list[Json]) -> None:
        patience = self._t.patience()
        while part:
            try:
                await self._send(part)
                error: DSecError = InternalError(f"{self._method}: results are missing")
            except DSecError as e:
                error = self._t.no_service(e)
            left = [r for r in part if codec.text(r, "operationId") in self._open]
            if not left:
                return
            if not isinstance(error, ConnectionLost | Unavailable | ResourceExhausted):
                raise error
            if len(left) < len(part):
                patience.progress()
            await patience.wait(error)
            part = left

    async def _send(self, part: list[Json]) -> None:
        # A long call sends nothing while it runs: a broken connection shows by itself.
        stream = self._t.stream(f"FnCallService/{self._method}", {self._name: part}, idle=None)
        async with aclosing(stream) as messages:
            async for o in messages:
                if "response" in o:
                    r = codec.message(o, "response")
                    await self._tell(r, result=self._decode(codec.message(r, "result")))
                elif "error" in o:
                    r = codec.message(o, "error")
                    await self._tell(r, error=wire_errors.item(codec.message(r, "error")))

    async def _tell(self, o: Json, *, result: R | None = None, error: DSecError | None = None) -> None:
        n = self._open.pop(codec.text(o, "operationId"), None)
        if n is not None:
            await self._found.put(Outcome(index=n, result=result, error=error))
