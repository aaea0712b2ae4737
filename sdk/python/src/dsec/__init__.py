"""DSec: sandboxes for agent training and evaluation.

::

    from dsec import DSecClient, DSecContainerRunArgs

    client = DSecClient()
    await client.open()
    args = DSecContainerRunArgs(container_image="debian", memory_limit_mb=4096, ttl_running_stop=300)
    sandbox = await client.run_container(args, timeout=120)
    result = await sandbox.run_shell("echo hello world")
    await sandbox.stop()

Everything is asynchronous; ``dsec.sync`` has the same classes for programs without an event loop.
"""

from .archive import Unpacked
from .args import CloudInit, DSecContainerRunArgs, DSecFullVMRunArgs, DSecMicroVMRunArgs, DSecRunArgs
from .builds import BuildStep
from .calls import (
    CaseResult,
    DSecCallLimits,
    DSecFnCallArgs,
    DSecJudgeArgs,
    FnCallResult,
    JudgeCase,
    JudgeResult,
    Outcome,
    RuntimeInfo,
    Verdict,
)
from .client import DSecClient
from .command import Command, Terminal
from .environments import Composition, Environment, Environments, HiddenPaths, LayerUse
from .errors import (
    AlreadyExists,
    CommandFailed,
    Conflict,
    ConnectionLost,
    DeadlineExceeded,
    DirectoryNotEmpty,
    DiskFull,
    DSecError,
    FailedPrecondition,
    FileExists,
    FileNotFound,
    FilePermission,
    InfraFailure,
    InternalError,
    InvalidArgument,
    IsADirectory,
    NotADirectory,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    SandboxEnded,
    SandboxFailure,
    Unauthenticated,
    Unavailable,
    Unsupported,
)
from .failure import Blame, Failure
from .files import Files, Watch
from .layers import Layers
from .network import Network, NetworkDecision, NetworkLayer, NetworkLimits, NetworkRules
from .network_defaults import NetworkDefault
from .ports import Forward
from .results import CommandEnd, CommandInfo, CommandResult, Output, Stream
from .sandbox import Sandbox
from .screen import Screen, Screenshot
from .session import Session, SessionInfo
from .snapshots import Pack, PackReport, Snapshot, SnapshotCost
from .values import (
    Collected,
    Event,
    FileChange,
    FileEvent,
    FileEventKind,
    FileInfo,
    FileType,
    ImportProgress,
    Layer,
    LayerKind,
    NodeInfo,
    SandboxInfo,
    SandboxStats,
    State,
)

__all__ = [
    "BuildStep",
    "CloudInit",
    "Collected",
    "Composition",
    "Environment",
    "Environments",
    "FileChange",
    "HiddenPaths",
    "LayerUse",
    "Verdict",
    "RuntimeInfo",
    "Outcome",
    "JudgeResult",
    "JudgeCase",
    "FnCallResult",
    "DSecJudgeArgs",
    "DSecFnCallArgs",
    "DSecCallLimits",
    "CaseResult",
    "AlreadyExists",
    "Blame",
    "Command",
    "CommandEnd",
    "CommandFailed",
    "CommandInfo",
    "CommandResult",
    "Conflict",
    "ConnectionLost",
    "DSecClient",
    "DSecContainerRunArgs",
    "DSecError",
    "DSecFullVMRunArgs",
    "DSecMicroVMRunArgs",
    "Screen",
    "Screenshot",
    "DSecRunArgs",
    "DeadlineExceeded",
    "DirectoryNotEmpty",
    "DiskFull",
    "Event",
    "FailedPrecondition",
    "Failure",
    "FileExists",
    "FileEvent",
    "FileEventKind",
    "FileInfo",
    "FileNotFound",
    "FilePermission",
    "FileType",
    "Files",
    "Forward",
    "ImportProgress",
    "InfraFailure",
    "InternalError",
    "InvalidArgument",
    "IsADirectory",
    "Layer",
    "LayerKind",
    "Layers",
    "Network",
    "NetworkDecision",
    "NetworkDefault",
    "NetworkLayer",
    "NetworkLimits",
    "NetworkRules",
    "NodeInfo",
    "NotADirectory",
    "NotFound",
    "Output",
    "Pack",
    "PackReport",
    "PermissionDenied",
    "ResourceExhausted",
    "Sandbox",
    "SandboxEnded",
    "SandboxFailure",
    "SandboxInfo",
    "SandboxStats",
    "Session",
    "SessionInfo",
    "Snapshot",
    "SnapshotCost",
    "State",
    "Stream",
    "Terminal",
    "Unauthenticated",
    "Unavailable",
    "Unpacked",
    "Unsupported",
    "Watch",
]
