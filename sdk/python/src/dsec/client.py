"""The client: the way to the service."""

from __future__ import annotations

import asyncio
import builtins
import math
import ssl
import uuid
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from types import TracebackType
from typing import Final, Self

from . import codec, config, wire_errors
from . import snapshots as snaps
from .args import DSecContainerRunArgs, DSecFullVMRunArgs, DSecMicroVMRunArgs, DSecRunArgs
from .calls import Calls, DSecFnCallArgs, DSecJudgeArgs, FnCallResult, JudgeResult, Outcome, RuntimeInfo
from .codec import Json, without_defaults
from .environments import Environments
from .errors import (
    ConnectionLost,
    DeadlineExceeded,
    DSecError,
    InternalError,
    InvalidArgument,
    PermissionDenied,
    Unavailable,
)
from .events import events
from .layers import Layers
from .network_defaults import NetworkDefaults
from .sandbox import MARGIN, Sandbox
from .transport import Transport
from .values import Event, LayerKind, NodeInfo, SandboxInfo, State

MAX_COUNT: Final = 1000
"""Sandboxes of one request; more are asked for in several."""

PAGE: Final = 500

UNDO: Final = 15.0
"""Seconds that close waits for sandboxes of abandoned creations to be stopped."""


_CREATE: Final = "SandboxService/CreateSandbox"


class DSecClient:
    """A connection to a DSec service, for one event loop.

    ::

        async with DSecClient() as client:
            args = DSecContainerRunArgs(container_image="debian", memory_limit_mb=4096)
            async with await client.run_container(args, timeout=120) as sandbox:
                result = await sandbox.run_shell("echo hello world")

    The address and key are the arguments, else DSEC_URL and DSEC_API_KEY, else the file that `dsec up` wrote
    (~/.config/dsec/client.json).

    ``timeout``: seconds that a call may take, its retries included, where it has no timeout of its own.
    ``retry_for``: seconds for which a call that may safely be repeated is tried again while the service does not
    answer, within its timeout; and for which streams are attached again. ``max_connections``: requests that are under
    way at a time, long ones too; more wait.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = 60.0,
        retry_for: float = 90.0,
        max_connections: int = 2000,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._address = (url, api_key)
        self._options = {"timeout": timeout, "retry_for": retry_for}
        self._max_connections = max_connections
        self._ssl = ssl_context
        self._transport: Transport | None = None
        self._undoing: set[asyncio.Task[None]] = set()

    @property
    def _t(self) -> Transport:
        if self._transport is None:
            raise RuntimeError("the client is not open: await client.open(), or use it as a context manager")
        return self._transport

    @property
    def url(self) -> str:
        """Address of the service."""
        return self._t.config.url

    @property
    def environments(self) -> Environments:
        """Named environments."""
        return Environments(self._t)

    @property
    def network_defaults(self) -> NetworkDefaults:
        """What sandboxes made of a name of the catalogue may reach."""
        return NetworkDefaults(self._t)

    @property
    def layers(self) -> Layers:
        """The catalogue of bases, workspaces and toolkits."""
        return Layers(self._t)

    async def open(self, timeout: float | None = None) -> Self:
        """Find the service and check that it answers and takes the key.

        Raises InvalidArgument when nothing tells where it is, ConnectionLost when nothing answers there,
        Unauthenticated when the key is wrong.
        """
        if self._transport is not None:
            return self
        self._transport = Transport(
            config.load(*self._address),
            timeout=self._options["timeout"],
            retry_for=self._options["retry_for"],
            max_connections=self._max_connections,
            ssl_context=self._ssl,
        )
        try:
            await self._transport.unary("NodeService/GetNode", {}, safe=True, timeout=timeout)
        except PermissionDenied:
            pass  # the key is known, which is what was asked
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        """Close the connections. Sandboxes live on; those of creations that were given up are stopped first."""
        if self._undoing:
            await asyncio.wait(self._undoing, timeout=UNDO)
            for task in self._undoing:
                task.cancel()
        if self._transport is not None:
            transport, self._transport = self._transport, None
            await transport.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Creating

    async def run_container(
        self,
        args: DSecContainerRunArgs,
        timeout: float | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> Sandbox:
        """Create a container and return it, ready.

        ``timeout``: seconds that creation may take; the node itself gives up then. ``labels`` are added to those of
        args. ``idempotency_key``: the same key with the same arguments returns the same sandbox, with others raises
        AlreadyExists; one is drawn when none is given, so that a broken connection makes no second sandbox, and a
        creation that is cancelled or too late leaves none behind.

        Raises ResourceExhausted when there is no room (nothing was made: wait, and try again), NotFound for an
        unknown image, Unsupported with the reason for what the node cannot do. Where ``error.failure`` is set, it says
        why this creation failed, and ``error.blame`` by whose fault.
        """
        [result] = await self._create(args, 1, timeout, labels, idempotency_key)
        if isinstance(result, DSecError):
            raise result
        return result

    async def run_containers(
        self,
        args: DSecContainerRunArgs,
        count: int,
        timeout: float | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> list[Sandbox | DSecError]:
        """Create many containers of the same arguments, and return each one's outcome: a sandbox, or why not.

        More than 1,000 are asked for in several requests. A request that is refused as a whole (a wrong argument, an
        unknown image) raises, as run_container does; where there are several, its error is the outcome of each of
        its sandboxes.
        """
        return await self._create(args, count, timeout, labels, idempotency_key)

    async def run_microvm(
        self,
        args: DSecMicroVMRunArgs,
        timeout: float | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> Sandbox:
        """Create a microVM and return it, ready; as run_container does.

        Raises Unsupported, saying what to run, where the node has no QEMU or no kernel for it.
        """
        [result] = await self._create(args, 1, timeout, labels, idempotency_key)
        if isinstance(result, DSecError):
            raise result
        return result

    async def run_fullvm(
        self,
        args: DSecFullVMRunArgs,
        timeout: float | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
    ) -> Sandbox:
        """Create a full VM and return it once its firmware has started what is on its disk; as run_container does.

        Raises Unsupported, saying what to run, where the node has no QEMU or no firmware for it. A disk with nothing to
        start is an error whose ``failure`` is boot_failed, with what the screen said as evidence.
        """
        [result] = await self._create(args, 1, timeout, labels, idempotency_key)
        if isinstance(result, DSecError):
            raise result
        return result

    async def _create(
        self,
        args: DSecRunArgs,
        count: int,
        timeout: float | None,
        labels: Mapping[str, str] | None,
        key: str | None,
    ) -> list[Sandbox | DSecError]:
        if count < 1:
            raise InvalidArgument(f"count {count}: want 1 or more")
        undo = key is None  # with a key of the caller's, the caller may ask again
        key = key or uuid.uuid4().hex
        spec = args.to_json(timeout, labels)
        sizes = [min(MAX_COUNT, count - at) for at in range(0, count, MAX_COUNT)]
        if len(sizes) == 1:
            return await self._create_part(spec, count, timeout, key, undo)

        async def part(i: int, n: int) -> list[Sandbox | DSecError]:
            try:
                return await self._create_part(spec, n, timeout, f"{key}-{i}", undo)
            except DSecError as e:  # other parts may have made sandboxes: the caller must get to know them
                return [e] * n

        async with asyncio.TaskGroup() as group:
            parts = [group.create_task(part(i, n)) for i, n in enumerate(sizes)]
        return [r for p in parts for r in p.result()]

    async def _create_part(
        self, spec: Json, count: int, timeout: float | None, key: str, undo: bool
    ) -> list[Sandbox | DSecError]:
        body = without_defaults(spec=spec, idempotencyKey=key, count=count if count > 1 else None)
        deadline = max(timeout, 0) + MARGIN + self._t.retry_for if timeout is not None else math.inf
        try:
            o = await self._t.unary(_CREATE, body, safe=True, timeout=deadline)
        except (asyncio.CancelledError, DeadlineExceeded, ConnectionLost, Unavailable):
            if undo:
                task = asyncio.create_task(self._undo(self._t, body))
                self._undoing.add(task)
                task.add_done_callback(self._undoing.discard)
            raise
        results = codec.messages(o, "results")
        if len(results) != count:
            raise InternalError(f"{count} sandboxes were asked for, {len(results)} answered")
        return [
            wire_errors.item(codec.message(r, "error"))
            if "error" in r
            else self.sandbox(codec.text(codec.message(r, "sandbox"), "id"))
            for r in results
        ]

    @staticmethod
    async def _undo(transport: Transport, body: Json) -> None:
        """Stop what a creation made whose answer nobody waits for any more: the same key tells what that is."""
        with suppress(DSecError):
            o = await transport.unary(_CREATE, body, safe=True)
            for r in codec.messages(o, "results"):
                if "sandbox" in r:
                    await Sandbox(transport, codec.text(codec.message(r, "sandbox"), "id")).stop()

    # Function calls

    async def call(
        self, args: DSecFnCallArgs, timeout: float | None = None, *, operation_id: str | None = None
    ) -> FnCallResult:
        """Run one short program, isolated, without a sandbox. Nothing of it stays.

        ``timeout``: seconds for the request, waiting in line included; the program has its own limits.
        ``operation_id``: the same id again returns the same result while the node remembers it; one is drawn when none
        is given. Errors are for calls that were not run: ResourceExhausted when too many wait (try again after
        ``retry_after``, or use call_batch, which waits), NotFound for an unknown runtime, Unsupported for GPU runtimes.
        """
        return await Calls(self._t).call(args, timeout, operation_id)

    async def call_batch(self, calls: Sequence[DSecFnCallArgs]) -> AsyncGenerator[Outcome[FnCallResult], None]:
        """Run any number of calls and yield each one's outcome, in the order in which they end; ``index`` tells which.

        Each is reported once, whatever breaks in between: what has not been reported when a connection breaks is sent
        again.
        """
        async with aclosing(Calls(self._t).call_batch(calls)) as outcomes:
            async for o in outcomes:
                yield o

    async def judge(
        self, args: DSecJudgeArgs, timeout: float | None = None, *, operation_id: str | None = None
    ) -> JudgeResult:
        """Compile a submission once, run it on each of its cases, and compare. Errors are as of ``call``."""
        return await Calls(self._t).judge(args, timeout, operation_id)

    async def judge_batch(self, submissions: Sequence[DSecJudgeArgs]) -> AsyncGenerator[Outcome[JudgeResult], None]:
        """Judge any number of submissions; as ``call_batch``."""
        async with aclosing(Calls(self._t).judge_batch(submissions)) as outcomes:
            async for o in outcomes:
                yield o

    async def runtimes(self) -> tuple[RuntimeInfo, ...]:
        """The runtimes of function calls, those that are not available too."""
        o = await self._t.unary("FnCallService/ListRuntimes", {}, safe=True)
        return tuple(RuntimeInfo.from_json(r) for r in codec.messages(o, "runtimes"))

    async def set_runtime(self, name: str, base: str) -> None:
        """Say over which base of the catalogue a runtime is; "" = it is not available."""
        await self._t.unary("FnCallService/SetRuntime", without_defaults(name=name, base=base), safe=True)

    # Finding and ending

    def sandbox(self, sandbox_id: str) -> Sandbox:
        """A handle of a sandbox by its id. Nothing is asked of the service."""
        return Sandbox(self._t, sandbox_id)

    async def get(self, sandbox_id: str) -> Sandbox:
        """A handle of a sandbox that the service knows. Raises NotFound."""
        sandbox = self.sandbox(sandbox_id)
        await sandbox.info()
        return sandbox

    async def list(
        self, labels: Mapping[str, str] | None = None, states: Iterable[State | str] | None = None
    ) -> AsyncGenerator[SandboxInfo, None]:
        """Yield sandboxes that carry all the labels, newest first. ``states``: default all but stopped."""
        body = without_defaults(
            labels=dict(labels or {}),
            states=[f"SANDBOX_STATE_{State(s).value.upper()}" for s in states or ()],
            pageSize=PAGE,
        )
        while True:
            o = await self._t.unary("SandboxService/ListSandboxes", body, safe=True)
            for s in codec.messages(o, "sandboxes"):
                yield SandboxInfo.from_json(s)
            token = codec.text(o, "nextPageToken")
            if not token:
                return
            body = {**body, "pageToken": token}

    async def stop_all(self, labels: Mapping[str, str], timeout: float | None = None) -> tuple[str, ...]:
        """End every sandbox that carries all the labels (at least one), and return their ids."""
        body = {"labels": dict(labels)}
        o = await self._t.unary("SandboxService/StopSandboxes", body, safe=True, timeout=timeout)
        return codec.texts(o, "stoppedIds")

    # Snapshots

    async def snapshots(
        self, labels: Mapping[str, str] | None = None, *, sandbox_id: str | None = None
    ) -> builtins.list[snaps.Snapshot]:
        """List snapshots that carry all the labels, newest first; of one sandbox where given."""
        return await snaps.listed(self._t, labels, sandbox_id)

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Forget a snapshot. Sandboxes that were made of it go on."""
        await snaps.delete(self._t, snapshot_id)

    async def pack_snapshot(
        self,
        snapshot_id: str,
        name: str,
        *,
        kind: LayerKind | str | None = None,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        progress: snaps.Progress | None = None,
    ) -> snaps.Pack:
        """Make a layer of a snapshot, as Sandbox.pack_diff does of a sandbox."""
        return await snaps.pack(self._t, snapshot_id, name, kind, include, exclude, False, progress)

    async def events(
        self, labels: Mapping[str, str] | None = None, *, follow: bool = False
    ) -> AsyncGenerator[Event, None]:
        """Yield the recorded events of the sandboxes that carry all the labels; follow=True goes on with new ones."""
        async for e in events(self._t, labels=labels, follow=follow):
            yield e

    async def node(self) -> NodeInfo:
        """What the node tells of itself."""
        return NodeInfo.from_json(await self._t.unary("NodeService/GetNode", {}, safe=True))
