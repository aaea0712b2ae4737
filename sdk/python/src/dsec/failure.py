"""Whose fault an end was."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from . import codec
from .codec import Json


class Blame(StrEnum):
    """Who caused an end. What a sandbox can cause is never INFRA; what the platform causes is never TASK."""

    TASK = "task"
    """What ran in the sandbox: an exit code, a signal, its own limits."""
    USER = "user"
    """A request of the caller: stop, kill, a wrong argument."""
    POLICY = "policy"
    """A rule: a time to live, an idle timeout, a deadline, a denial."""
    INFRA = "infra"
    """The platform. The task is not to be scored by it; try again."""
    UNKNOWN = ""
    """Nobody said."""

    @classmethod
    def _missing_(cls, value: object) -> Blame:
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a command or a sandbox ended.

    ``kind`` is one word of a fixed table: for commands exited, signalled, timed_out, oom_killed, disk_full,
    cannot_start, killed; for sandboxes stopped, ttl_expired, idle_expired, create_deadline, init_killed, ...; by the
    platform node_oom, node_lost, node_restarted, image_unavailable, store_fault, boot_failed, internal, ...
    """

    kind: str
    blame: Blame
    message: str = ""
    """One sentence for people."""
    evidence: str = ""
    """What was seen, for example the tail of a boot console; at most 4 KiB."""

    @classmethod
    def from_json(cls, o: Json) -> Self:
        return cls(
            kind=codec.text(o, "kind"),
            blame=Blame(codec.enum(o, "blame", "BLAME_")),
            message=codec.text(o, "message"),
            evidence=codec.text(o, "evidence"),
        )

    @classmethod
    def optional(cls, o: Json, key: str) -> Self | None:
        """The failure in a field, None when absent."""
        return cls.from_json(codec.message(o, key)) if key in o else None

    def __str__(self) -> str:
        return f"{self.kind} ({self.blame or 'nobody blamed'})" + (f": {self.message}" if self.message else "")
