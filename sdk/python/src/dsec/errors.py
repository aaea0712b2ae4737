"""Errors, one class per code of the service, each with the blame where it is known.

::

    DSecError
      InvalidArgument  NotFound  AlreadyExists  Conflict  PermissionDenied  Unauthenticated
      ResourceExhausted  FailedPrecondition  Unsupported  Unavailable  DeadlineExceeded  InternalError
      ConnectionLost         the connection broke, and trying again did not help in time
      SandboxFailure         a sandbox failed or ended; has .failure
        SandboxEnded         ... and what was asked of it came too late (is a FailedPrecondition too)
        InfraFailure         the platform broke a command: its result says nothing about the task
      CommandFailed          check=True, and the command did not exit with 0; has .result

File operations raise, beside these, what Python programs expect: FileNotFound is a FileNotFoundError, and so on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from .failure import Blame, Failure

if TYPE_CHECKING:
    from .results import CommandResult


class DSecError(Exception):
    """Base of all errors of this package.

    ``code`` is the service's word ("not_found"), ``message`` one sentence, ``reason`` a finer word where the sandbox
    gave one ("is_a_directory"), ``failure`` the end of a sandbox or of a creation where there is one.
    """

    code: str = "unknown"
    default_blame: ClassVar[Blame] = Blame.UNKNOWN

    def __init__(self, message: str, *, code: str = "", failure: Failure | None = None, reason: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.failure = failure
        self.reason = reason
        self.unsent = False
        """True when the request certainly did not reach the service."""
        self.retry_after = 0.0
        """Seconds after which the service advised to try again."""

    @property
    def blame(self) -> Blame:
        """Whose fault it is; Blame.UNKNOWN when nobody can tell."""
        return self.failure.blame if self.failure else self.default_blame

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


class InvalidArgument(DSecError):
    code = "invalid_argument"
    default_blame = Blame.USER


class NotFound(DSecError):
    code = "not_found"
    default_blame = Blame.USER


class AlreadyExists(DSecError):
    """It is there already; of a creation: its idempotency key was used before with other arguments."""

    code = "already_exists"
    default_blame = Blame.USER


class Conflict(DSecError):
    """Something else changed the same thing at the same time."""

    code = "aborted"
    default_blame = Blame.USER


class PermissionDenied(DSecError):
    code = "permission_denied"
    default_blame = Blame.POLICY


class Unauthenticated(DSecError):
    """No key, or one that is wrong or revoked."""

    code = "unauthenticated"
    default_blame = Blame.USER


class ResourceExhausted(DSecError):
    """No room on the node, a quota, or a bound of the service. Nothing was made."""

    code = "resource_exhausted"


class FailedPrecondition(DSecError):
    """The object is not in a state for what was asked."""

    code = "failed_precondition"
    default_blame = Blame.USER


class Unsupported(DSecError):
    """The service, its node or the backend cannot do this, or not yet. The message says what is missing."""

    code = "unimplemented"
    default_blame = Blame.USER


class Unavailable(DSecError):
    """A part of the service does not answer."""

    code = "unavailable"
    default_blame = Blame.INFRA


class DeadlineExceeded(DSecError, TimeoutError):
    """The time given to a call ran out, here or at the service. A command that was started goes on."""

    code = "deadline_exceeded"


class InternalError(DSecError):
    """The service has a bug, or met something that it does not know."""

    code = "internal"
    default_blame = Blame.INFRA


class ConnectionLost(DSecError, ConnectionError):
    """The connection to the service broke or could not be made. What was asked may have been done, unless
    ``unsent`` is true."""

    code = "connection_lost"
    default_blame = Blame.INFRA


class SandboxFailure(DSecError):
    """A sandbox could not be made, or ended."""

    code = "sandbox_failure"


class SandboxEnded(SandboxFailure, FailedPrecondition):
    """The sandbox has ended; ``failure`` says why and by whom."""

    code = "failed_precondition"


class InfraFailure(SandboxFailure):
    """The platform broke a command (a store fault, a lost node). It says nothing about the task: do not score it."""

    code = "infra_failure"
    default_blame = Blame.INFRA

    def __init__(self, result: CommandResult) -> None:
        super().__init__(
            f"command {result.command_id}: {result.failure}", failure=result.failure, reason=result.failure.kind
        )
        self.result = result


class CommandFailed(DSecError):
    """A command run with check=True did not exit with 0; ``result`` is how it ended."""

    code = "command_failed"

    def __init__(self, result: CommandResult) -> None:
        tail = result.stderr_text.strip()[-500:] or result.stdout_text.strip()[-500:]
        what = f"exit code {result.exit_code}" if result.kind == "exited" else f"{result.failure} ({result.exit_code})"
        super().__init__(f"{what}{': ' + tail if tail else ''}", failure=result.failure, reason=result.kind)
        self.result = result


class FileNotFound(NotFound, FileNotFoundError):
    """No such file or directory in the sandbox."""


class FileExists(AlreadyExists, FileExistsError):
    """The path exists in the sandbox."""


class FilePermission(PermissionDenied, PermissionError):
    """The user may not do this to that file."""

    default_blame = Blame.USER


class IsADirectory(FailedPrecondition, IsADirectoryError):
    """A directory where a file is needed."""


class NotADirectory(FailedPrecondition, NotADirectoryError):
    """A file where a directory is needed."""


class DirectoryNotEmpty(FailedPrecondition, OSError):
    """A directory that has entries; remove it with recursive=True."""


class DiskFull(ResourceExhausted, OSError):
    """The sandbox's own disk limit is reached."""

    default_blame = Blame.TASK


_CLASSES: tuple[type[DSecError], ...] = (
    InvalidArgument,
    NotFound,
    AlreadyExists,
    Conflict,
    PermissionDenied,
    Unauthenticated,
    ResourceExhausted,
    FailedPrecondition,
    Unsupported,
    Unavailable,
    DeadlineExceeded,
    InternalError,
)
BY_CODE: dict[str, type[DSecError]] = {c.code: c for c in _CLASSES} | {
    "out_of_range": InvalidArgument,
    "data_loss": InternalError,
    "canceled": Unavailable,  # not by us, who would not have waited for this answer: something on the way broke
}

BY_REASON: dict[str, type[DSecError]] = {
    "is_a_directory": IsADirectory,
    "not_a_directory": NotADirectory,
    "directory_not_empty": DirectoryNotEmpty,
    "no_space": DiskFull,
}

BY_FILE_REASON: dict[str, type[DSecError]] = {
    "not_found": FileNotFound,
    "already_exists": FileExists,
    "permission_denied": FilePermission,
}
"""Words that mean a file only where a file operation was asked for."""


def error(
    code: str, message: str, *, failure: Failure | None = None, reason: str = "", file: bool = False
) -> DSecError:
    """Make the error of a code. ``file`` tells that a file operation was asked for."""
    cls = BY_REASON.get(reason) or (BY_FILE_REASON.get(reason) if file else None) or BY_CODE.get(code)
    if failure is not None and cls is FailedPrecondition:
        cls = SandboxEnded
    elif failure is not None and cls in (None, InternalError):
        cls = SandboxFailure
    return (cls or DSecError)(message, code=code, failure=failure, reason=reason)
