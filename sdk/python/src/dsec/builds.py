"""Building images from Dockerfiles: the context goes to the service, which carries the build out."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Self

from . import codec, wire_errors
from .archive import LeaveOut
from .codec import Json
from .errors import ConnectionLost, InvalidArgument
from .values import Layer


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildStep:
    """An instruction of a Dockerfile that begins."""

    number: int
    """From 1, of ``count``."""
    count: int
    line: int
    """In the Dockerfile, from 1."""
    text: str
    """As written, continuation lines joined."""
    cached: bool
    """It was done before, and is not done again."""

    @classmethod
    def from_json(cls, o: Json) -> Self:
        return cls(
            number=codec.integer(o, "number"),
            count=codec.integer(o, "count"),
            line=codec.integer(o, "line"),
            text=codec.text(o, "text"),
            cached=codec.boolean(o, "cached"),
        )


OnStep = Callable[[BuildStep], None]
OnOutput = Callable[[bytes], None]


async def result(messages: AsyncIterator[Json], step: OnStep | None, output: OnOutput | None) -> Layer:
    """The layer at the end of a build's messages."""
    async for o in messages:
        if "error" in o:
            raise wire_errors.from_json(codec.message(o, "error"))
        if "layer" in o:
            return Layer.from_json(codec.message(o, "layer"))
        if step is not None and "step" in o:
            step(BuildStep.from_json(codec.message(o, "step")))
        if output is not None and "output" in o:
            output(codec.octets(o, "output"))
    raise ConnectionLost("the build ended without a layer")


def dockerfile_in(context: Path, dockerfile: str | os.PathLike[str] | None) -> str:
    """The Dockerfile's path below the context."""
    if not context.is_dir():
        raise InvalidArgument(f"build context {context}: it is no directory")
    path = context / (dockerfile or "Dockerfile")
    if not path.is_file():
        raise InvalidArgument(f"{path}: there is no such file; name another with dockerfile=")
    try:
        return path.resolve().relative_to(context.resolve()).as_posix()
    except ValueError:
        raise InvalidArgument(f"{path}: the Dockerfile must lie in the build context {context}") from None


def left_out(context: Path, dockerfile: str) -> LeaveOut | None:
    """What .dockerignore leaves out need not travel. The service looks at it again: it alone decides."""
    try:
        text = (context / ".dockerignore").read_text(errors="replace")
    except FileNotFoundError:
        return None
    patterns: list[list[str]] = []
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("!"):
            return None  # parts of what is left out come back in: send all
        parts = [p for p in os.path.normpath("/" + line).split("/") if p]
        if parts:
            patterns.append(parts)
    keep = {".dockerignore", dockerfile, *(str(p) for p in PurePosixPath(dockerfile).parents)}

    def leave_out(relative: str) -> bool:
        if relative in keep:
            return False
        parts = relative.split("/")
        return any(_matches(p, parts) for p in patterns)

    return leave_out


def _matches(pattern: Sequence[str], name: Sequence[str]) -> bool:
    """Compare components; "**" stands for any number of them."""
    if not pattern:
        return not name
    if pattern[0] == "**":
        return any(_matches(pattern[1:], name[n:]) for n in range(len(name) + 1))
    if not name or not _fits(pattern[0], name[0]):
        return False
    return _matches(pattern[1:], name[1:])


def _fits(pattern: str, name: str) -> bool:
    """One component. Sets of characters are rare, and what they mean is left to the service: they fit nothing here."""
    if any(c in pattern for c in "[]\\"):
        return False
    text = "".join(".*" if c == "*" else "." if c == "?" else re.escape(c) for c in pattern)
    return re.fullmatch(text, name, re.DOTALL) is not None
