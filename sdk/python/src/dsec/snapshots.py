"""Disks of sandboxes that are kept: snapshots, forks, packs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Self

from . import codec
from .codec import Json, without_defaults
from .errors import ConnectionLost
from .values import ImportProgress, Layer, LayerKind

if TYPE_CHECKING:
    from .transport import Transport

Progress = Callable[[ImportProgress], None]
"""Called in the event loop as a pack goes on; it must not block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotCost:
    """What taking a snapshot took, in seconds."""

    flush: float
    """Writing what was dirty, while the sandbox ran."""
    frozen: float
    """How long it was frozen; 0 when it was paused already."""

    @classmethod
    def from_json(cls, o: Json) -> Self:
        return cls(flush=codec.integer(o, "flushUsec") / 1e6, frozen=codec.integer(o, "frozenUsec") / 1e6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The disk of a sandbox as it was, on the sandbox's node: ``DSecContainerRunArgs(snapshot=snapshot.id)``."""

    id: str
    sandbox_id: str
    """The sandbox that it was taken of."""
    labels: dict[str, str]
    created_at: datetime | None
    layers: tuple[str, ...]
    """Digests of the layers that it lies on, bottom to top."""
    parents: tuple[str, ...]
    """Snapshots above them that it lies on, bottom to top."""
    children: int
    """Sandboxes that live and are made of it."""
    cost: SnapshotCost
    size_bytes: int = 0
    """What it took of the node's disk when it was taken; 0 for a container's, which shares the sandbox's."""

    @classmethod
    def from_json(cls, o: Json) -> Self:
        return cls(
            id=codec.text(o, "id"),
            sandbox_id=codec.text(o, "sandboxId"),
            labels=codec.mapping(o, "labels"),
            created_at=codec.time(o, "createdAt"),
            layers=codec.texts(o, "layers"),
            parents=codec.texts(o, "parents"),
            children=codec.integer(o, "children"),
            cost=SnapshotCost.from_json(codec.message(o, "cost")),
            size_bytes=codec.integer(o, "sizeBytes"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PackReport:
    """What went into a pack."""

    files: int
    directories: int
    removed: int
    """Names that exist below and are removed by the layer."""
    bytes: int
    excluded: int
    skipped: int
    """Device nodes and sockets, which no layer holds."""
    names: tuple[str, ...]
    """The first 1,000 names, with "-" before removed ones."""
    names_cut: bool
    on: str
    """Digest of the layer of the pack that this one is incremental on."""
    cost: SnapshotCost

    @classmethod
    def from_json(cls, o: Json) -> Self:
        return cls(
            files=codec.integer(o, "files"),
            directories=codec.integer(o, "directories"),
            removed=codec.integer(o, "removed"),
            bytes=codec.integer(o, "bytes"),
            excluded=codec.integer(o, "excluded"),
            skipped=codec.integer(o, "skipped"),
            names=codec.texts(o, "names"),
            names_cut=codec.boolean(o, "namesCut"),
            on=codec.text(o, "on"),
            cost=SnapshotCost.from_json(codec.message(o, "cost")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """A pack: the layer in the catalogue, and what restores the disk anywhere."""

    layer: Layer
    layers: tuple[str, ...]
    """Digests of all layers, bottom to top: ``DSecContainerRunArgs(layers=pack.layers)``."""
    report: PackReport
    reused: bool
    """The same content was there already."""

    @classmethod
    def from_json(cls, o: Json) -> Self:
        return cls(
            layer=Layer.from_json(codec.message(o, "layer")),
            layers=codec.texts(codec.message(o, "environment"), "layers"),
            report=PackReport.from_json(codec.message(o, "report")),
            reused=codec.boolean(o, "reused"),
        )


async def create(transport: Transport, sandbox_id: str, labels: Mapping[str, str] | None) -> Snapshot:
    body = {"sandboxId": sandbox_id, **without_defaults(labels=dict(labels or {}))}
    # Not repeated: a second one would be left behind by nobody's wish.
    o = await transport.unary("SnapshotService/CreateSnapshot", body, safe=False)
    return Snapshot.from_json(codec.message(o, "snapshot"))


async def listed(transport: Transport, labels: Mapping[str, str] | None, sandbox_id: str | None) -> list[Snapshot]:
    body = without_defaults(labels=dict(labels or {}), sandboxId=sandbox_id)
    o = await transport.unary("SnapshotService/ListSnapshots", body, safe=True)
    return [Snapshot.from_json(s) for s in codec.messages(o, "snapshots")]


async def delete(transport: Transport, snapshot_id: str) -> None:
    await transport.unary("SnapshotService/DeleteSnapshot", {"snapshotId": snapshot_id}, safe=False)


async def pack(
    transport: Transport,
    source: str,
    name: str,
    kind: LayerKind | str | None,
    include: Sequence[str],
    exclude: Sequence[str],
    incremental: bool,
    progress: Progress | None,
) -> Pack:
    body = {
        "sandboxId": source,
        "name": name,
        **without_defaults(
            kind=f"LAYER_KIND_{LayerKind(kind).value.upper()}" if kind else None,
            include=list(include),
            exclude=list(exclude),
            incremental=incremental,
        ),
    }
    async with aclosing(transport.stream("SnapshotService/PackDiff", body, idle=None)) as messages:
        async for o in messages:
            if "result" in o:
                return Pack.from_json(codec.message(o, "result"))
            if progress is not None and "progress" in o:
                progress(ImportProgress.from_json(codec.message(o, "progress")))
    raise ConnectionLost("the pack ended without a result")
