"""The catalogue of bases, workspaces and toolkits."""

from __future__ import annotations

import json
import math
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Final

from . import builds, codec, wire_errors
from .archive import pack
from .codec import Json, without_defaults
from .errors import ConnectionLost, InternalError
from .gitexport import exported
from .network import NetworkRules, rules_to_json
from .pump import Source, pieces
from .transport import Transport
from .values import Collected, FileChange, ImportProgress, Layer, LayerKind

Progress = Callable[[ImportProgress], None]
"""Called in the event loop as an import goes on; it must not block."""

LINE: Final = 1 << 20
_Layers = list[Layer]  # inside the class, "list" is a method
_Changes = list[FileChange]
_Texts = list[str]


class Layers:
    """Lists, imports and deletes layers: what sandboxes are composed of."""

    def __init__(self, transport: Transport) -> None:
        self._t = transport

    async def list(self, kind: LayerKind | str | None = None, name: str | None = None) -> _Layers:
        """List layers, of one kind and one name where given."""
        body = without_defaults(kind=_enum(kind) if kind else None, name=name)
        o = await self._t.unary("LayerService/ListLayers", body, safe=True)
        return [Layer.from_json(x) for x in codec.messages(o, "layers")]

    async def import_image(
        self,
        ref: str,
        kind: LayerKind | str = LayerKind.BASE,
        name: str | None = None,
        *,
        insecure: bool = False,
        progress: Progress | None = None,
    ) -> Layer:
        """Pull an image from a registry and publish it. The same content again gives the layer that is there.

        ``ref``: docker://HOST/NAME:TAG, or without docker://. ``insecure``: speak plain http to the registry.
        """
        source = ref if "://" in ref else f"docker://{ref}"
        body = without_defaults(kind=_enum(kind), name=name, source=source, insecure=insecure)

        async def once() -> Layer:
            async with aclosing(self._t.stream("LayerService/ImportLayer", body, idle=None)) as messages:
                return await _result(messages, progress)

        # "unavailable" is the registry's as often as ours: said at once, not after waiting for it.
        return await self._t.retrying(once, safe=False, timeout=math.inf, what=f"import {ref}")

    async def upload_layer(
        self,
        source: str | os.PathLike[str] | Source,
        kind: LayerKind | str = LayerKind.WORKSPACE,
        name: str = "",
        *,
        prefix: str | None = None,
        format: str | None = None,
        firmware: str | None = None,
        agent: bool = False,
        on_start: Sequence[str] = (),
        on_start_user: str | None = None,
        progress: Progress | None = None,
    ) -> Layer:
        """Publish local content as a layer.

        ``source``: the path of a tar (plain, gzip or zstd) or of a directory, or the bytes of a tar, an open file, or
        pieces. ``prefix``: directory of the layer that the archive's root becomes ("/workspace"). ``format``: "oci"
        for an OCI layout or `docker save` archive, "disk" for the disk of a full VM (raw or qcow2, kind base;
        ``firmware``: bios or uefi; ``agent``: its system starts one, which creations wait for), else a tar.
        ``on_start``: program and arguments that are run in each new sandbox that has the layer, before anything else,
        as ``on_start_user``.
        """
        params = _upload_params(LayerKind(kind), name, prefix, on_start, on_start_user)
        params |= {
            k: v for k, v in (("format", format), ("firmware", firmware), ("agent", "true" if agent else None)) if v
        }
        if not isinstance(source, str | os.PathLike):
            return await self._upload(params, pieces(source), progress)
        path = Path(source)
        if path.is_dir():
            return await self._upload(params, pieces(pack(path)), progress)
        with path.open("rb") as f:
            return await self._upload(params, pieces(f), progress)

    async def import_git(
        self,
        repository: str | os.PathLike[str],
        name: str,
        kind: LayerKind | str = LayerKind.WORKSPACE,
        *,
        revision: str = "HEAD",
        prefix: str | None = None,
        on_start: Sequence[str] = (),
        on_start_user: str | None = None,
        progress: Progress | None = None,
    ) -> Layer:
        """Publish one commit of a local repository as a layer: its files, and a repository of that commit alone.

        Nothing of the history comes along, so that no later answer lies inside. The same commit gives the same layer.
        ``revision``: a commit, branch or tag. ``prefix``: directory that the files lie in ("/workspace"). Submodules
        are empty directories. Needs git on this machine. Raises InvalidArgument with what git said.
        """
        params = _upload_params(LayerKind(kind), name, prefix, on_start, on_start_user)
        async with exported(repository, revision) as made:
            params["source"] = f"git:{os.path.abspath(repository)}@{made.commit}"
            return await self._upload(params, pieces(pack(made.tree)), progress)

    async def build_image(
        self,
        context: str | os.PathLike[str],
        name: str,
        *,
        dockerfile: str | os.PathLike[str] | None = None,
        build_args: Mapping[str, str] | None = None,
        network_rules: NetworkRules = (),
        memory_limit_mb: float | None = None,
        cpu_cores_limit: float | None = None,
        step_timeout: float | None = None,
        no_cache: bool = False,
        step: builds.OnStep | None = None,
        output: builds.OnOutput | None = None,
    ) -> Layer:
        """Build a Dockerfile of one stage and publish the result as a base.

        ``context``: the directory that COPY takes from; what .dockerignore leaves out stays here. ``dockerfile``: its
        path in the context (Dockerfile). RUN is done in sandboxes of the service, which reach what ``network_rules``
        allow, and nothing without; each may take ``step_timeout`` seconds (3600). Steps that were done before are not
        done again, unless ``no_cache``. ``step`` and ``output`` are called in the event loop as a step begins, and
        with what its command says.

        Raises InvalidArgument or Unsupported with line and reason for what is wrong with the Dockerfile,
        FailedPrecondition when a command of RUN fails.
        """
        directory = Path(context)
        file = builds.dockerfile_in(directory, dockerfile)
        params: dict[str, str | _Texts] = {
            "name": name,
            "dockerfile": file,
            "source": str((directory / file).resolve()),
        }
        params["build_arg"] = [f"{k}={v}" for k, v in (build_args or {}).items()]
        params["allow"] = [("" if r.get("allow") else "!") + r["target"] for r in rules_to_json(network_rules)]
        if memory_limit_mb is not None:
            params["memory_bytes"] = str(int(memory_limit_mb * (1 << 20)))
        if cpu_cores_limit is not None:
            params["cpu_millis"] = str(round(cpu_cores_limit * 1000))
        if step_timeout is not None:
            params["step_timeout"] = str(step_timeout)
        if no_cache:
            params["no_cache"] = "true"
        content = pieces(pack(directory, builds.left_out(directory, file)))
        async with self._t.send("PUT", "/v1/builds", params=params, content=content) as r:
            async with aclosing(_lines(self._t.body(r))) as messages:
                return await builds.result(messages, step, output)

    async def get(self, kind: LayerKind | str, reference: str) -> Layer:
        """Return the version that NAME, NAME@VERSION, NAME@TAG or a digest means."""
        body = without_defaults(kind=_enum(kind), reference=reference)
        return Layer.from_json(codec.message(await self._t.unary("LayerService/GetLayer", body, safe=True), "layer"))

    async def tag(self, kind: LayerKind | str, reference: str, tag: str, *, remove: bool = False) -> None:
        """Move a tag to a version (NAME@TAG then means it), or take it away."""
        body = without_defaults(kind=_enum(kind), reference=reference, tag=tag, remove=remove)
        await self._t.unary("LayerService/TagLayer", body, safe=True)

    async def diff(
        self, kind: LayerKind | str, from_: str, to: str, *, contents: bool = False, limit: int | None = None
    ) -> _Changes:
        """Tell in which files two versions differ. ``contents``: read files of equal size, instead of believing their
        times."""
        body = without_defaults(kind=_enum(kind), **{"from": from_}, to=to, contents=contents, limit=limit)
        out: _Changes = []
        async with aclosing(self._t.stream("LayerService/DiffLayers", body, idle=None)) as messages:
            async for o in messages:
                out += [FileChange.from_json(x) for x in codec.messages(o, "changes")]
        return out

    async def verify(self, kind: LayerKind | str, reference: str) -> int:
        """Read all of a version, compare it with its digests, and return how many bytes it has. One that is damaged
        raises Unavailable."""
        body = without_defaults(kind=_enum(kind), reference=reference)

        async def once() -> int:
            return codec.integer(await self._t.unary("LayerService/VerifyLayer", body, safe=False), "bytes")

        return await self._t.retrying(once, safe=False, timeout=math.inf, what=f"verify {reference}")

    async def collapse(
        self, kind: LayerKind | str, reference: str, *, max_bytes: int | None = None, progress: Progress | None = None
    ) -> Layer:
        """Publish the next version of a name: the same tree in fewer layers, none larger than ``max_bytes`` (3 GiB)."""
        body = without_defaults(kind=_enum(kind), reference=reference, maxBytes=max_bytes)
        async with aclosing(self._t.stream("LayerService/CollapseLayer", body, idle=None)) as messages:
            return await _result(messages, progress)

    async def gc(self, *, dry_run: bool = False) -> Collected:
        """Remove content that no name, environment, build step or running sandbox refers to."""
        body = without_defaults(dryRun=dry_run)
        return Collected.from_json(await self._t.unary("LayerService/CollectLayers", body, safe=False))

    async def delete(
        self, kind: LayerKind | str, name: str, version: str | None = None, *, force: bool = False
    ) -> _Layers:
        """Remove a version from the catalogue, or all of a name, and return what was removed. Running sandboxes keep
        what they started with. ``force``: also what an environment names, which otherwise raises
        FailedPrecondition."""
        body = without_defaults(kind=_enum(kind), name=name, version=version, force=force)
        o = await self._t.unary("LayerService/DeleteLayer", body, safe=False)
        return [Layer.from_json(x) for x in codec.messages(o, "deleted")]

    async def _upload(
        self, params: dict[str, str | _Texts], content: AsyncIterator[bytes], progress: Progress | None
    ) -> Layer:
        async with self._t.send("PUT", "/v1/layers", params=params, content=content) as r:
            async with aclosing(_lines(self._t.body(r))) as messages:
                return await _result(messages, progress)


def _upload_params(
    kind: LayerKind, name: str, prefix: str | None, on_start: Sequence[str], on_start_user: str | None
) -> dict[str, str | _Texts]:
    params: dict[str, str | _Texts] = {"kind": kind.value, "name": name}
    params |= {k: v for k, v in (("prefix", prefix), ("on_start_user", on_start_user)) if v}
    if on_start:
        params["on_start"] = [*on_start]
    return params


async def _result(messages: AsyncIterator[Json], progress: Progress | None) -> Layer:
    """The layer at the end of an import's messages."""
    async for o in messages:
        if "error" in o:
            raise wire_errors.from_json(codec.message(o, "error"))
        if "layer" in o:
            return Layer.from_json(codec.message(o, "layer"))
        if progress is not None and "progress" in o:
            progress(ImportProgress.from_json(codec.message(o, "progress")))
    raise ConnectionLost("the import ended without a layer")


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncGenerator[Json, None]:
    """JSON objects, one a line."""
    buffer = bytearray()
    async for chunk in chunks:
        buffer += chunk
        while (end := buffer.find(b"\n")) >= 0:
            line = bytes(buffer[:end])
            del buffer[: end + 1]
            try:
                if line.strip():
                    yield codec.loads(line)
            except json.JSONDecodeError as e:
                raise InternalError(f"not a JSON line: {e}") from e
        if len(buffer) > LINE:
            raise InternalError("a line of the answer is too long")


def _enum(kind: LayerKind | str) -> str:
    return f"LAYER_KIND_{LayerKind(kind).value.upper()}"
