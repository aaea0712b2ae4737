"""Named environments: stacks of a base, a workspace and toolkits, with defaults for the sandboxes made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from . import codec
from .args import DSecContainerRunArgs
from .codec import Json, without_defaults
from .layers import Layers
from .transport import Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A named stack."""

    name: str
    base: str
    """The base, or the image that it was imported from."""
    workspace: str
    toolkits: tuple[str, ...]
    """Bottom to top."""
    env: dict[str, str]
    user: str
    workdir: str
    updated_at: datetime | None

    @classmethod
    def from_json(cls, o: Json) -> Self:
        stack = codec.message(o, "stack")
        return cls(
            name=codec.text(o, "name"),
            base=codec.text(stack, "base") or codec.text(stack, "image"),
            workspace=codec.text(stack, "workspace"),
            toolkits=codec.texts(stack, "toolkits"),
            env=codec.mapping(o, "env"),
            user=codec.text(o, "user"),
            workdir=codec.text(o, "workdir"),
            updated_at=codec.time(o, "updatedAt"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerUse:
    """One layer of a stack."""

    kind: str
    name: str
    version: str
    digest: str
    bytes: int
    files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenPaths:
    """Names of one layer that another one, above it, hides."""

    by: int
    """Place of the upper layer in the stack, from 0."""
    of: int
    names: int
    """All that is hidden; a directory with everything below it."""
    paths: tuple[tuple[str, str], ...]
    """The first of them: how (replaced, removed, emptied) and path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """What an environment is made of at one moment."""

    layers: tuple[LayerUse, ...]
    """Bottom to top."""
    env: tuple[str, ...]
    user: str
    workdir: str
    entrypoint: tuple[str, ...]
    cmd: tuple[str, ...]
    hidden: tuple[HiddenPaths, ...]

    @classmethod
    def from_json(cls, o: Json) -> Self:
        config = codec.message(o, "config")
        return cls(
            layers=tuple(_use(x) for x in codec.messages(o, "layers")),
            env=codec.texts(config, "env"),
            user=codec.text(config, "user"),
            workdir=codec.text(config, "workdir"),
            entrypoint=codec.texts(config, "entrypoint"),
            cmd=codec.texts(config, "cmd"),
            hidden=tuple(_hidden(x) for x in codec.messages(o, "hidden")),
        )


def _use(o: Json) -> LayerUse:
    layer = codec.message(o, "layer")
    return LayerUse(
        kind=codec.text(layer, "kind"),
        name=codec.text(layer, "name"),
        version=codec.text(layer, "version"),
        digest=codec.text(layer, "digest"),
        bytes=codec.integer(o, "metaBytes") + codec.integer(o, "dataBytes"),
        files=codec.integer(o, "files"),
    )


def _hidden(o: Json) -> HiddenPaths:
    return HiddenPaths(
        by=codec.integer(o, "by"),
        of=codec.integer(o, "of"),
        names=codec.integer(o, "names"),
        paths=tuple((codec.text(p, "how"), codec.text(p, "path")) for p in codec.messages(o, "paths")),
    )


_Environments = list[Environment]  # inside the class, "list" is a method
_Changes = list[tuple[LayerUse | None, LayerUse | None]]


def _parts(made: Composition) -> dict[tuple[str, str], LayerUse]:
    """The topmost layer of each part, bottom to top."""
    return {(u.kind, u.name if u.kind == "toolkit" else ""): u for u in made.layers}


class Environments:
    """Creates, lists, inspects and deletes named environments."""

    def __init__(self, transport: Transport) -> None:
        self._t = transport

    async def create(
        self,
        name: str,
        *,
        base: str,
        workspace: str | None = None,
        toolkits: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        workdir: str | None = None,
        memory_limit_mb: float | None = None,
        cpu_cores_limit: float | None = None,
        disk_limit_mb: float | None = None,
        pids_limit: int | None = None,
        replace: bool = False,
    ) -> Environment:
        """Name a stack. What is named without a version moves with its name; NAME@VERSION and NAME@TAG stay.

        Variables, user, directory and limits hold where a sandbox is given none. A name that is taken raises
        AlreadyExists unless ``replace``.
        """
        limits = (
            DSecContainerRunArgs(
                memory_limit_mb=memory_limit_mb,
                cpu_cores_limit=cpu_cores_limit,
                disk_limit_mb=disk_limit_mb,
                pids_limit=pids_limit,
            )
            .to_json()
            .get("limits", {})
        )
        body = {
            "environment": without_defaults(
                name=name,
                stack=without_defaults(base=base, workspace=workspace, toolkits=list(toolkits)),
                limits=limits,
                env=dict(env or {}),
                user=user,
                workdir=workdir,
            ),
            "replace": replace,
        }
        o = await self._t.unary("EnvironmentService/CreateEnvironment", body, safe=False)
        return Environment.from_json(codec.message(o, "environment"))

    async def list(self) -> _Environments:
        """List them, by name."""
        o = await self._t.unary("EnvironmentService/ListEnvironments", {}, safe=True)
        return [Environment.from_json(x) for x in codec.messages(o, "environments")]

    async def inspect(self, name: str, *, paths: int = 20) -> Composition:
        """Tell what an environment is made of now, and which layer hides what of which other: ``paths`` of each two."""
        body = {"environment": {"name": name}, "paths": paths if paths > 0 else -1}
        return Composition.from_json(await self._t.unary("EnvironmentService/InspectEnvironment", body, safe=True))

    async def diff(self, from_: str, to: str) -> _Changes:
        """Tell in which parts two environments differ now: pairs of what the first and the second have, one of them
        None where only the other has it. Bases and workspaces belong together, toolkits by their names. ``layers.diff``
        tells in which files two versions differ."""
        old, new = _parts(await self.inspect(from_, paths=0)), _parts(await self.inspect(to, paths=0))
        pairs = [(old.get(k), new.get(k)) for k in [*new, *(k for k in old if k not in new)]]
        return [(a, b) for a, b in pairs if (a and a.digest) != (b and b.digest)]

    async def verify(self, name: str) -> int:
        """Read all layers of an environment, compare them with their digests, and return how many bytes they have. One
        that is damaged raises Unavailable."""
        layers = Layers(self._t)
        parts = _parts(await self.inspect(name, paths=0)).values()
        return sum([await layers.verify(p.kind, f"{p.name}@{p.version}") for p in parts if p.name])

    async def delete(self, name: str) -> None:
        """Forget one; its layers, and sandboxes that run, stay."""
        await self._t.unary("EnvironmentService/DeleteEnvironment", {"name": name}, safe=False)
