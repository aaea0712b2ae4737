"""One sandbox."""

from __future__ import annotations

import math
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from . import codec, command, ports, snapshots, wire_errors
from .codec import Json, without_defaults
from .command import Command, Terminal
from .errors import DSecError, InternalError, InvalidArgument
from .events import events
from .files import Files
from .network import Network, NetworkDecision, NetworkLimits, NetworkRules, rules_to_json
from .ports import Forward
from .results import CommandEnd, CommandInfo, CommandResult
from .screen import Screen
from .session import HasId, Session, SessionInfo
from .snapshots import Pack, Snapshot
from .values import Event, LayerKind, SandboxInfo, SandboxStats

if TYPE_CHECKING:
    import asyncio

    from .transport import Transport

MARGIN: Final = 30.0
"""Seconds beyond a command's own timeout that its answer may take."""

LOGIN_SHELL: Final = "if command -v bash >/dev/null 2>&1; then exec bash -il; else exec sh -il; fi"


class Sandbox:
    """A handle of one sandbox: commands, files, ports, screen, life.

    It is made by DSecClient.run_container, or from an id by DSecClient.sandbox. It holds no state: any number of
    handles, in any number of programs, can work on one sandbox. As a context manager it stops the sandbox at the end.
    """

    def __init__(self, transport: Transport, sandbox_id: str) -> None:
        self._t = transport
        self.id = sandbox_id
        self.files = Files(transport, sandbox_id)
        """Its files."""
        self.screen = Screen(transport, sandbox_id)
        """Its screen, keyboard and pointer, if it is a full VM."""

    def __repr__(self) -> str:
        return f"<Sandbox {self.id}>"

    # Commands

    async def run_shell(
        self,
        cmd: str,
        *,
        env: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
        timeout: float | None = None,
        stdin: bytes | str | None = None,
        session: HasId | str | None = None,
        check: bool = False,
        operation_id: str | None = None,
        tag: str | None = None,
    ) -> CommandResult:
        """Run a command line with the sandbox's own shell and return how it ended, with its output.

        ``env``, ``secrets``: environment variables; secrets are never listed or recorded. ``timeout``: seconds after
        which the command's whole tree is ended (kind "timed_out"); None = none. ``session``: a shell whose state
        persists; without one, each call is a fresh process tree. ``check``: raise CommandFailed unless it exits with
        0. ``operation_id``: the same id again returns the first result and runs nothing; one is drawn when none is
        given, so that a call whose connection breaks is repeated safely.

        A task's own failures are results: any exit code, a timeout, out of memory. What the platform broke raises
        InfraFailure. Cancelling the call stops the waiting, not the command.
        """
        return await self._exec(
            command.spec(
                cmd,
                env=env,
                secrets=secrets,
                cwd=cwd,
                user=user,
                timeout=timeout,
                stdin=stdin,
                session=session if session is None or isinstance(session, str) else session.id,
                tag=tag,
            ),
            timeout,
            operation_id,
            check,
        )

    async def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
        timeout: float | None = None,
        stdin: bytes | str | None = None,
        check: bool = False,
        operation_id: str | None = None,
        tag: str | None = None,
    ) -> CommandResult:
        """Run a program with its arguments, without a shell; else as run_shell."""
        what = command.spec(
            _argv(argv), env=env, secrets=secrets, cwd=cwd, user=user, timeout=timeout, stdin=stdin, tag=tag
        )
        return await self._exec(what, timeout, operation_id, check)

    async def start(
        self,
        cmd: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
        timeout: float | None = None,
        stdin: bytes | str | None = None,
        keep_stdin_open: bool = False,
        session: HasId | str | None = None,
        operation_id: str | None = None,
        tag: str | None = None,
    ) -> Command:
        """Start a command (a shell's line, or a program with its arguments) and return its handle at once.

        It goes on whatever happens to this client. ``keep_stdin_open``: for Command.send_input.
        """
        what = command.spec(
            cmd,
            env=env,
            secrets=secrets,
            cwd=cwd,
            user=user,
            timeout=timeout,
            stdin=stdin,
            keep_stdin_open=keep_stdin_open,
            session=session if session is None or isinstance(session, str) else session.id,
            tag=tag,
        )
        info = await self._start(what, operation_id)
        return Command(self._t, self.id, info.id, info.operation_id)

    async def pty(
        self,
        cmd: str | Sequence[str] = LOGIN_SHELL,
        *,
        columns: int = 80,
        rows: int = 24,
        env: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | int | None = None,
        timeout: float | None = None,
        operation_id: str | None = None,
        tag: str | None = None,
    ) -> Terminal:
        """Start a command with a terminal: by default a login shell."""
        what = command.spec(
            cmd,
            env={"TERM": "xterm-256color", **(env or {})},
            secrets=secrets,
            cwd=cwd,
            user=user,
            timeout=timeout,
            terminal=(columns, rows),
            tag=tag,
        )
        info = await self._start(what, operation_id)
        return Terminal(self._t, self.id, info.id, info.operation_id)

    async def commands(self, *, running_only: bool = False) -> AsyncGenerator[CommandInfo, None]:
        """Yield the sandbox's commands in their order, ended ones too."""
        token = ""
        while True:
            body = self._body(runningOnly=running_only, pageToken=token)
            o = await self._t.unary("CommandService/ListCommands", body, safe=True)
            for c in codec.messages(o, "commands"):
                yield CommandInfo.from_json(c)
            token = codec.text(o, "nextPageToken")
            if not token:
                return

    def attach(self, command_id: str) -> Command:
        """A handle of a command that runs or ran, by its id. Nothing is asked of the service yet."""
        return Command(self._t, self.id, command_id)

    def session(
        self,
        session_id: str | None = None,
        *,
        user: str | int | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Session:
        """A stateful shell, to be opened with ``async with`` or its open()."""
        return Session(self, session_id, user=user, cwd=cwd, env=env)

    async def sessions(self) -> list[SessionInfo]:
        """List its sessions."""
        o = await self._t.unary("CommandService/ListSessions", self._body(), safe=True)
        return [SessionInfo.from_json(s) for s in codec.messages(o, "sessions")]

    # Ports

    def forward(self, port: int, *, host: str = "127.0.0.1", local_port: int = 0) -> Forward:
        """A local listener for a port inside, to be opened with ``async with`` or its open()."""
        return Forward(self._t, self.id, port, host, local_port)

    async def connect(self, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a raw connection to a TCP port inside. Closing the writer is the caller's. Raises Unavailable when
        nothing listens there."""
        return await ports.connect(self._t, self.id, port)

    # Network

    async def set_network(
        self,
        rules: NetworkRules | None = None,
        *,
        limits: NetworkLimits | None = None,
        if_generation: int | None = None,
    ) -> Network:
        """Replace what it may reach, all at once, and return the rules in force with warnings of what they can leak.

        ``rules``: ``{"npm": False, "pypi": True}`` or ``["!npm", "pypi"]``; NetworkRules has the forms. An empty list,
        or ``"none"``, closes everything. When the call returns the rules are in force, and connections that they
        forbid are cut; what they still allow goes on. A paused sandbox stays paused. The change survives a restart of
        the node's processes.

        ``limits``: replace those as well; without, they stay. With limits and without rules, the rules stay.

        ``if_generation``: change only what the caller knows: Conflict is raised when another change came first. Such
        a call is not repeated over a broken connection (ConnectionLost: ask info()); without it, it is.

        Raises InvalidArgument with what to write instead, FailedPrecondition when the sandbox was created without a
        network, which cannot be added, and SandboxEnded.
        """
        if if_generation is not None and if_generation < 1:  # 0 would be the wire's "whatever there is"
            raise InvalidArgument(f"if_generation {if_generation}: generations count from 1")
        if rules is None and limits is None:
            raise InvalidArgument("set_network: give rules, limits or both")
        body = self._body(
            rules=[] if rules is None else rules_to_json(rules),
            limits=limits.to_json() if limits is not None else None,
            keepRules=rules is None,
            ifGeneration=if_generation,
        )
        o = await self._t.unary("SandboxService/SetNetwork", body, safe=if_generation is None)
        return Network.from_json(codec.message(o, "network"), codec.texts(o, "warnings"))

    async def explain_network(self, host: str, port: int = 443, protocol: str = "tcp") -> NetworkDecision:
        """Tell whether it may reach a destination, and which rule of whose decides.

        ``host``: a name or an address. ``protocol``: tcp, udp or icmp. Nothing is resolved or connected to. The
        decision is true where it may: ``if await sandbox.explain_network("pypi.org"): ...``. Raises InvalidArgument.
        """
        if port < 1:  # 0 would be the wire's default
            raise InvalidArgument(f"port {port}: want 1 to 65535")
        body = self._body(host=host, port=port, protocol=protocol)
        return NetworkDecision.from_json(await self._t.unary("SandboxService/ExplainNetwork", body, safe=True))

    # Disk

    async def snapshot(self, labels: Mapping[str, str] | None = None) -> Snapshot:
        """Keep its disk as it is now, on its node, until DSecClient.delete_snapshot.

        It is frozen for some milliseconds; processes, memory and /dev/shm are not kept. While the snapshot is there,
        what the sandbox overwrites or removes goes on counting against its disk limit. A paused one stays paused.
        """
        return await snapshots.create(self._t, self.id, labels)

    async def fork(
        self,
        count: int = 1,
        *,
        labels: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        ttl: float | None = None,
        ttl_running_stop: float | None = None,
        idempotency_key: str | None = None,
    ) -> list[Sandbox | DSecError]:
        """Make ``count`` (1 to 1,000) sandboxes from its disk, and return each one's outcome: a sandbox, or why not.

        One snapshot, on the same node; the children are like this one (limits, environment, user, network, lifetimes)
        but for what is given, and each records its own changes only. Processes are not forked. ``labels`` replace this
        one's, ``env`` and ``secrets`` are added. Secrets go along while its edge remembers them: after a restart of the
        edge FailedPrecondition asks for them. To make sandboxes of a snapshot: DSecContainerRunArgs(snapshot=...).
        """
        body = self._body(
            count=count,
            idempotencyKey=idempotency_key or uuid.uuid4().hex,
            labels=dict(labels or {}),
            env=dict(env or {}),
            secrets=dict(secrets or {}),
            ttlSeconds=ttl,
            idleTimeoutSeconds=ttl_running_stop,
        )
        if count < 1:
            raise InvalidArgument(f"count {count}: want 1 or more")
        o = await self._t.unary("SnapshotService/ForkSandbox", body, safe=True, timeout=math.inf)
        results = codec.messages(o, "results")
        if len(results) != count:
            raise InternalError(f"{count} sandboxes were asked for, {len(results)} answered")
        return [
            wire_errors.item(codec.message(r, "error"))
            if "error" in r
            else Sandbox(self._t, codec.text(codec.message(r, "sandbox"), "id"))
            for r in results
        ]

    async def pack_diff(
        self,
        name: str,
        *,
        kind: LayerKind | str | None = None,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        incremental: bool = False,
        progress: snapshots.Progress | None = None,
    ) -> Pack:
        """Make a layer of what it has changed since it was created, and publish it as the next version of ``name``.

        ``kind``: workspace (the default where it has only a base) or toolkit. ``include``, ``exclude``: paths from
        the root with * (within a name) and ** (any names), each for what it matches and all below; /etc/hosts,
        /etc/hostname and /etc/resolv.conf always stay out. ``incremental``: only what changed since its last
        incremental pack, on whose layer this one then lies; a snapshot is kept between them.
        ``Pack.layers`` restores the disk anywhere.
        """
        return await snapshots.pack(self._t, self.id, name, kind, include, exclude, incremental, progress)

    # Life

    async def info(self) -> SandboxInfo:
        """What the service knows of it; ended sandboxes are kept for a while, with the reason."""
        return await self._life("GetSandbox")

    async def stats(self) -> SandboxStats:
        """What it uses now."""
        o = await self._t.unary("SandboxService/GetSandboxStats", self._body(), safe=True)
        return SandboxStats.from_json(codec.message(o, "stats"))

    async def pause(self) -> SandboxInfo:
        """Freeze all its processes. Idempotent. Any later request resumes it first."""
        return await self._life("PauseSandbox")

    async def resume(self) -> SandboxInfo:
        """Thaw it. Idempotent."""
        return await self._life("ResumeSandbox")

    async def extend(self, *, ttl: float | None = None, ttl_running_stop: float | None = None) -> SandboxInfo:
        """Set the remaining time to live, counted from now, and/or the idle timeout; in seconds."""
        return await self._life("ExtendSandbox", ttlSeconds=ttl, idleTimeoutSeconds=ttl_running_stop)

    async def events(self, *, follow: bool = False, after: int = 0) -> AsyncGenerator[Event, None]:
        """Yield its recorded events with a sequence above ``after``, oldest first; with follow=True new ones too."""
        async for e in events(self._t, sandbox_id=self.id, after=after, follow=follow):
            yield e

    async def stop(self) -> SandboxInfo:
        """End it and release what it held. Idempotent."""
        return await self._life("StopSandbox")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # Wire

    def _body(self, **fields: Any) -> Json:
        return {"sandboxId": self.id, **without_defaults(**fields)}

    async def _life(self, method: str, **fields: Any) -> SandboxInfo:
        o = await self._t.unary(f"SandboxService/{method}", self._body(**fields), safe=True)
        return SandboxInfo.from_json(codec.message(o, "sandbox"))

    async def _exec(
        self, what: dict[str, Any], timeout: float | None, operation_id: str | None, check: bool
    ) -> CommandResult:
        body = self._body(command=what, operationId=operation_id or uuid.uuid4().hex)
        deadline = timeout + MARGIN + self._t.retry_for if timeout else math.inf
        o = await self._t.unary("CommandService/Exec", body, safe=True, timeout=deadline)
        c = codec.message(o, "command")
        end = CommandEnd.from_json(codec.message(c, "result"))
        result = CommandResult.of(end, codec.text(c, "id"), codec.octets(o, "stdout"), codec.octets(o, "stderr"))
        return command.judged(result, check)

    async def _start(self, what: dict[str, Any], operation_id: str | None) -> CommandInfo:
        body = self._body(command=what, operationId=operation_id or uuid.uuid4().hex, detach=True)
        return await command.started(self._t, body)


def _argv(argv: Sequence[str]) -> Sequence[str]:
    if isinstance(argv, str):
        raise TypeError("run takes a program and its arguments as a list; a command line is for run_shell")
    return argv
