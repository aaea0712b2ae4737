"""Stateful shells."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from . import codec
from .codec import Json, without_defaults
from .errors import AlreadyExists
from .failure import Failure
from .results import CommandResult

if TYPE_CHECKING:
    from .sandbox import Sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """One session, as listed."""

    id: str
    user: str
    created_at: datetime | None
    ended: bool
    end: Failure | None
    """Why it ended, when it did."""

    @classmethod
    def from_json(cls, o: Json) -> Self:
        return cls(
            id=codec.text(o, "id"),
            user=codec.text(o, "user"),
            created_at=codec.time(o, "createdAt"),
            ended=codec.boolean(o, "ended"),
            end=Failure.optional(o, "end"),
        )


class HasId(Protocol):
    """A session, asynchronous or not."""

    @property
    def id(self) -> str: ...


class Session:
    """A shell that lives on between commands: cd, export and functions persist.

    ::

        async with sandbox.session() as session:
            await session.run_shell("cd /src && export DEBUG=1")
            await session.run_shell("./run")

    Commands of one session run one after another. Closing ends the shell and its whole process tree.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        session_id: str | None = None,
        *,
        user: str | int | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.sandbox = sandbox
        self.id = session_id or f"py-{uuid.uuid4().hex}"
        self._chosen = session_id is None
        self._options = without_defaults(user=None if user is None else str(user), cwd=cwd, env=dict(env or {}))

    async def open(self) -> Self:
        """Start the shell. Raises AlreadyExists when the caller named a session that exists."""
        body = {"sandboxId": self.sandbox.id, "sessionId": self.id, **self._options}
        try:
            await self.sandbox._t.unary("CommandService/CreateSession", body, safe=True)
        except AlreadyExists:
            if not self._chosen:  # our own random name: an earlier try of this very call made it
                raise
        return self

    async def run_shell(
        self,
        command: str,
        *,
        env: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        timeout: float | None = None,
        stdin: bytes | str | None = None,
        check: bool = False,
        operation_id: str | None = None,
        tag: str | None = None,
    ) -> CommandResult:
        """Run a command line in this shell; see Sandbox.run_shell."""
        return await self.sandbox.run_shell(
            command,
            env=env,
            secrets=secrets,
            timeout=timeout,
            stdin=stdin,
            check=check,
            operation_id=operation_id,
            tag=tag,
            session=self,
        )

    async def close(self) -> None:
        """End the shell and all that it started. Idempotent."""
        body = {"sandboxId": self.sandbox.id, "sessionId": self.id}
        await self.sandbox._t.unary("CommandService/CloseSession", body, safe=True)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
