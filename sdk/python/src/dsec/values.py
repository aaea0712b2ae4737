"""What the service tells about sandboxes, files, layers and the node: plain values."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Self

from . import codec
from .codec import Json
from .failure import Failure
from .network import Network


class State(StrEnum):
    """creating -> running <-> paused -> stopping -> stopped; every state has a way to stopped."""

    CREATING = "creating"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPING = "stopping"
    STOPPED = "stopped"
    UNKNOWN = ""

    @classmethod
    def _missing_(cls, value: object) -> State:
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxInfo:
    """One sandbox as it was when asked."""

    id: str
    state: State
    backend: str
    """container, microvm, ..."""
    image: str
    base: str
    workspace: str
    toolkits: tuple[str, ...]
    layers: tuple[str, ...]
    """Digests of what it was composed of, bottom to top."""
    labels: dict[str, str]
    env: dict[str, str]
    secret_names: tuple[str, ...]
    user: str
    workdir: str
    hostname: str
    memory_bytes: int
    cpu_cores: float
    pids: int
    disk_bytes: int
    ttl: float | None
    """Seconds from readiness to the end."""
    idle_timeout: float | None
    """Seconds without activity after which it ends."""
    created_at: datetime | None
    ready_at: datetime | None
    ended_at: datetime | None
    expires_at: datetime | None
    paused_until: datetime | None
    """When it ends unless it is resumed or extended; None while it is not paused."""
    end: Failure | None
    """Why it ended; set when state is stopped."""
    edge: str
    """Node it lives on."""
    running_commands: int
    network: Network | None
    """What it may reach; None where it has loopback only."""

    @classmethod
    def from_json(cls, o: Json) -> Self:
        spec = codec.message(o, "spec")
        env, limits = codec.message(spec, "environment"), codec.message(spec, "limits")
        return cls(
            id=codec.text(o, "id"),
            state=State(codec.enum(o, "state", "SANDBOX_STATE_")),
            backend=codec.enum(spec, "backend", "BACKEND_") or "container",
            image=codec.text(env, "image"),
            base=codec.text(env, "base"),
            workspace=codec.text(env, "workspace"),
            toolkits=codec.texts(env, "toolkits"),
            layers=codec.texts(o, "layers"),
            labels=codec.mapping(spec, "labels"),
            env=codec.mapping(spec, "env"),
            secret_names=codec.texts(o, "secretNames"),
            user=codec.text(spec, "user"),
            workdir=codec.text(spec, "workdir"),
            hostname=codec.text(spec, "hostname"),
            memory_bytes=codec.integer(limits, "memoryBytes"),
            cpu_cores=codec.integer(limits, "cpuMillis") / 1000,
            pids=codec.integer(limits, "pids"),
            disk_bytes=codec.integer(limits, "diskBytes"),
            ttl=codec.optional_number(spec, "ttlSeconds"),
            idle_timeout=codec.optional_number(spec, "idleTimeoutSeconds"),
            created_at=codec.time(o, "createdAt"),
            ready_at=codec.time(o, "readyAt"),
            ended_at=codec.time(o, "endedAt"),
            expires_at=codec.time(o, "expiresAt"),
            paused_until=codec.time(o, "pausedUntil"),
            end=Failure.optional(o, "end"),
            edge=codec.text(o, "edge"),
            running_commands=codec.integer(o, "runningCommands"),
            network=Network.optional(o, "network"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxStats:
    """What a sandbox uses, from control groups and quota. Sizes in bytes; a limit of 0 is none."""

    at: datetime | None
    cpu_seconds: float
    memory_bytes: int
    memory_peak_bytes: int
    memory_limit_bytes: int
    disk_bytes: int
    disk_limit_bytes: int
    pids: int
    pids_limit: int
    oom_kills: int

    @classmethod
    def from_json(cls, o: Json) -> Self:
        return cls(
            at=codec.time(o, "at"),
            cpu_seconds=codec.integer(o, "cpuUsageUsec") / 1e6,
            memory_bytes=codec.integer(o, "memoryBytes"),
            memory_peak_bytes=codec.integer(o, "memoryPeakBytes"),
            memory_limit_bytes=codec.integer(o, "memoryLimitBytes"),
            disk_bytes=codec.integer(o, "diskBytes"),
            disk_limit_bytes=codec.integer(o, "diskLimitBytes"),
            pids=codec.integer(o, "pids"),
            pids_limit=codec.integer(o, "pidsLimit"),
            oom_kills=codec.integer(o, "oomKills"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One recorded step of a sandbox's life."""

    sandbox_id: str
    sequence: int
    """Position in the sandbox's record, from 1."""
    at: datetime | None
    type: str
    """created, ready, paused, resumed, extended, command_started, command_ended, oom_killed, denied, ended, ...;
    store_fault, when a layer was not, or not at once, read as it should be: its attributes are layer (digest), name,
    environment, what (read_failed, store_damaged, store_truncated, cache_damaged) and count (how often); of its
    traffic network_set, network_denied_name, network_denied, network_limited, network_ended, ...: their attributes are
    name, remote, protocol, rule, sent, received (bytes), left_out (how many like it were not recorded)."""
    message: str
    attributes: dict[str, str]

    @classmethod
    def from_json(cls, o: Json) -> Self:
        return cls(
            sandbox_id=codec.text(o, "sandboxId"),
            sequence=codec.integer(o, "sequence"),
            at=codec.time(o, "at"),
            type=codec.text(o, "type"),
            message=codec.text(o, "message"),
            attributes=codec.mapping(o, "attributes"),
        )


class FileType(StrEnum):
    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    FIFO = "fifo"
    SOCKET = "socket"
    CHAR_DEVICE = "char_device"
    BLOCK_DEVICE = "block_device"
    UNKNOWN = ""

    @classmethod
    def _missing_(cls, value: object) -> FileType:
        return cls.UNKNOWN


class FileEventKind(StrEnum):
    """What happened to a file."""

    CREATED = "created"
    """Made, linked, or moved to this name. What is found in a new directory may be told twice."""
    WRITTEN = "written"
    REMOVED = "removed"
    MOVED = "moved"
    """Moved away from this name."""
    ATTRIBUTES = "attributes"
    LOST = "lost"
    """More happened here than could be held, and is missing: look at the directory anew. Has no path."""
    UNKNOWN = ""

    @classmethod
    def _missing_(cls, value: object) -> FileEventKind:
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEvent:
    """What happened in a watched directory. ``path`` is relative to it, surrogate-escaped where it is not UTF-8."""

    kind: FileEventKind
    path: str
    is_dir: bool

    @classmethod
    def from_json(cls, o: Json) -> Self:
        raw = codec.octets(o, "pathBytes")
        return cls(
            kind=FileEventKind(codec.enum(o, "kind", "FILE_EVENT_KIND_")),
            path=os.fsdecode(raw) if raw else codec.text(o, "path"),
            is_dir=codec.boolean(o, "directory"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """A file in a sandbox. Names that are not UTF-8 are surrogate-escaped, as Python's own functions do."""

    path: str
    type: FileType
    size: int
    mode: int
    """Permission bits with setuid, setgid and sticky."""
    uid: int
    gid: int
    modified_at: datetime | None
    symlink_target: str

    @property
    def name(self) -> str:
        return self.path.rstrip("/").rpartition("/")[2]

    @property
    def is_dir(self) -> bool:
        return self.type is FileType.DIRECTORY

    @classmethod
    def from_json(cls, o: Json) -> Self:
        raw = codec.octets(o, "pathBytes")
        return cls(
            path=os.fsdecode(raw) if raw else codec.text(o, "path"),
            type=FileType(codec.text(o, "type")),
            size=codec.integer(o, "size"),
            mode=codec.integer(o, "mode"),
            uid=codec.integer(o, "uid"),
            gid=codec.integer(o, "gid"),
            modified_at=codec.time(o, "modifiedAt"),
            symlink_target=codec.text(o, "symlinkTarget"),
        )


class LayerKind(StrEnum):
    """The three kinds of layer that a sandbox's root is stacked from."""

    BASE = "base"
    WORKSPACE = "workspace"
    TOOLKIT = "toolkit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One version of a named layer."""

    kind: LayerKind
    name: str
    version: str
    """v1, v2, ...: counted per kind and name."""
    digest: str
    meta_bytes: int
    data_bytes: int
    files: int
    created_at: datetime | None
    source: str
    """Where it came from, for example the registry's reference."""
    below: tuple[str, ...] = ()
    """Digests of the layers that lie below and belong to it, bottom to top: what was built or packed is a stack."""
    tags: tuple[str, ...] = ()
    """Tags that are at this version."""

    @property
    def ref(self) -> str:
        """NAME@VERSION, as run arguments take it."""
        return f"{self.name}@{self.version}"

    @classmethod
    def from_json(cls, o: Json) -> Self:
        return cls(
            kind=LayerKind(codec.enum(o, "kind", "LAYER_KIND_") or "base"),
            name=codec.text(o, "name"),
            version=codec.text(o, "version"),
            digest=codec.text(o, "digest"),
            meta_bytes=codec.integer(o, "metaBytes"),
            data_bytes=codec.integer(o, "dataBytes"),
            files=codec.integer(o, "files"),
            created_at=codec.time(o, "createdAt"),
            source=codec.text(o, "source"),
            below=codec.texts(o, "below"),
            tags=codec.texts(o, "tags"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """A file in which two versions differ."""

    path: str
    kind: str
    """added, removed, changed"""
    what: tuple[str, ...]
    """Of a changed file: type, mode, owner, size, time, target, device, attributes, content."""
    old_bytes: int
    new_bytes: int

    @classmethod
    def from_json(cls, o: Json) -> Self:
        return cls(
            path=codec.text(o, "path"),
            kind=codec.text(o, "kind"),
            what=codec.texts(o, "what"),
            old_bytes=codec.integer(o, "oldBytes"),
            new_bytes=codec.integer(o, "newBytes"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What a collection of layers removed and kept."""

    removed: tuple[str, ...]
    removed_bytes: int
    kept: dict[str, str]
    """Digests of content without a name that stays, and why."""

    @classmethod
    def from_json(cls, o: Json) -> Self:
        kept = {codec.text(k, "digest"): codec.text(k, "why") for k in codec.messages(o, "kept")}
        return cls(removed=codec.texts(o, "removed"), removed_bytes=codec.integer(o, "removedBytes"), kept=kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportProgress:
    """How far an import is."""

    stage: str
    """pull, convert, publish"""
    done_bytes: int
    total_bytes: int
    """0 = unknown."""

    @classmethod
    def from_json(cls, o: Json) -> Self:
        return cls(
            stage=codec.text(o, "stage"),
            done_bytes=codec.integer(o, "doneBytes"),
            total_bytes=codec.integer(o, "totalBytes"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """The node that answered."""

    edge: str
    version: str
    kernel: str
    memory_bytes: int
    memory_available_bytes: int
    cpus: int
    live_sandboxes: int
    warm_shells: int
    warm: Mapping[str, int]
    """What is ready for creations, by the name of the backend."""

    @classmethod
    def from_json(cls, o: Json) -> Self:
        return cls(
            edge=codec.text(o, "edge"),
            version=codec.text(o, "version"),
            kernel=codec.text(o, "kernel"),
            memory_bytes=codec.integer(o, "memoryBytes"),
            memory_available_bytes=codec.integer(o, "memoryAvailableBytes"),
            cpus=codec.integer(o, "cpus"),
            live_sandboxes=codec.integer(o, "liveSandboxes"),
            warm_shells=codec.integer(o, "warmShells"),
            warm={k: codec.integer(codec.message(o, "warm"), k) for k in codec.message(o, "warm")},
        )
