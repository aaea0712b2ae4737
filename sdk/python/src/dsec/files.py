"""Files of a sandbox."""

from __future__ import annotations

import math
import os
import tarfile
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from . import archive, codec
from .archive import Unpacked
from .codec import Json, without_defaults
from .errors import ConnectionLost, ResourceExhausted
from .pump import Reader, Source, pieces
from .transport import Transport
from .values import FileEvent, FileInfo

IDLE: Final = 120.0
"""Seconds without a byte after which a transfer counts as broken."""
SETTLE: Final = 600.0
"""Seconds that the service may take to put what it got on its disk."""

_Listing = list[FileInfo]  # inside the class, "list" is a method


class Files:
    """Works on a sandbox's files as one of its users.

    Paths are resolved inside the sandbox, whatever links it planted; relative ones start at the user's working
    directory. ``user`` is a name or id; None = the sandbox's. Errors are also the ones that Python programs expect:
    FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError.
    """

    def __init__(self, transport: Transport, sandbox_id: str) -> None:
        self._t = transport
        self._id = sandbox_id

    async def read(
        self, path: str, *, offset: int = 0, length: int | None = None, user: str | int | None = None
    ) -> bytes:
        """Return a file's bytes, from offset, at most length."""

        async def once() -> bytes:
            data = bytearray()
            async with aclosing(self.stream(path, offset=offset, length=length, user=user)) as chunks:
                async for chunk in chunks:
                    data.extend(chunk)
            return bytes(data)

        return await self._t.retrying(once, safe=True, timeout=math.inf, what=f"read {path}")

    async def read_text(self, path: str, *, encoding: str = "utf-8", user: str | int | None = None) -> str:
        """Return a text file's contents. Raises UnicodeDecodeError."""
        return (await self.read(path, user=user)).decode(encoding)

    async def stream(
        self, path: str, *, offset: int = 0, length: int | None = None, user: str | int | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Yield a file's bytes in pieces, as they arrive. A transfer that breaks raises ConnectionLost, it never ends
        early in silence."""
        if length == 0:
            return
        params = _params(path, user, offset=str(offset) if offset else None, length=str(length) if length else None)
        async with self._t.send("GET", self._url("files"), params=params, idle=IDLE, file=True) as response:
            async with aclosing(self._t.body(response)) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def download(self, path: str, local: str | os.PathLike[str], *, user: str | int | None = None) -> int:
        """Copy a file of any size to a local file and return its size. The local file appears whole or not at all."""
        target = Path(local)
        part = target.with_name(f".{target.name}.{os.urandom(4).hex()}.part")

        def save(reader: Reader) -> int:
            size = 0
            with part.open("wb") as f:
                while data := reader.read(archive.PIECE):
                    size += f.write(data)
            return size

        try:
            async with aclosing(self.stream(path, user=user)) as chunks:
                size = await Reader(chunks).run(save)
            part.replace(target)
            return size
        finally:
            part.unlink(missing_ok=True)

    async def write(
        self,
        path: str,
        data: Source,
        *,
        mode: int | None = None,
        owner: str | None = None,
        parents: bool = False,
        user: str | int | None = None,
    ) -> None:
        """Write a file atomically: it has its new content whole, or its old one.

        ``data``: bytes, text, an open binary file, or pieces (an iterator or asynchronous iterator of bytes): those
        are streamed, and gigabytes pass without being held in memory. ``mode``: permission bits, default 0644;
        ``owner``: "USER:GROUP"; ``parents``: make missing directories.
        """
        params = _params(
            path,
            user,
            mode=None if mode is None else f"{mode:04o}",
            owner=owner,
            parents="true" if parents else None,
        )
        raw = data.encode() if isinstance(data, str) else data
        if isinstance(raw, bytes | bytearray | memoryview):
            await self._put("files", params, bytes(raw))
        else:
            await self._put("files", params, pieces(raw))

    async def upload(
        self,
        local: str | os.PathLike[str],
        path: str,
        *,
        mode: int | None = None,
        owner: str | None = None,
        parents: bool = False,
        user: str | int | None = None,
    ) -> None:
        """Copy a local file of any size, with its permission bits unless ``mode`` is given."""
        with open(local, "rb") as f:
            bits = os.fstat(f.fileno()).st_mode & 0o777 if mode is None else mode
            await self.write(path, f, mode=bits, owner=owner, parents=parents, user=user)

    async def stat(self, path: str, *, follow: bool = True, user: str | int | None = None) -> FileInfo:
        """Describe a file; follow=False describes a link itself."""
        o = await self._call("StatFile", path=path, user=_user(user), noFollow=not follow)
        return FileInfo.from_json(codec.message(o, "file"))

    async def exists(self, path: str, *, user: str | int | None = None) -> bool:
        """Whether a path exists; a link to nothing does not."""
        try:
            await self.stat(path, user=user)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    async def list(self, path: str, *, depth: int = 1, user: str | int | None = None) -> _Listing:
        """List a directory, and with depth > 1 what lies beneath it (at most 32). Raises ResourceExhausted when
        it has more than 10,000 entries: then list parts of it, or run find."""
        o = await self._call("ListDirectory", path=path, user=_user(user), depth=depth)
        if codec.boolean(o, "truncated"):
            raise ResourceExhausted(f"list {path}: more entries than one listing holds; list parts of it")
        return [FileInfo.from_json(f) for f in codec.messages(o, "files")]

    async def mkdir(
        self, path: str, *, parents: bool = False, mode: int | None = None, user: str | int | None = None
    ) -> None:
        """Make a directory. parents=True makes missing ones above it too, and accepts one that exists."""
        await self._call("MakeDirectory", safe=parents, path=path, parents=parents, mode=mode, user=_user(user))

    async def move(self, source: str, target: str, *, user: str | int | None = None) -> None:
        """Rename; a file at target is replaced."""
        body = {"from": source, "to": target}
        await self._call("MoveFile", safe=False, user=_user(user), **body)

    async def remove(
        self, path: str, *, recursive: bool = False, force: bool = False, user: str | int | None = None
    ) -> None:
        """Remove a file, an empty directory, or with recursive=True a whole tree. force=True accepts a missing path."""
        await self._call("RemoveFile", safe=force, path=path, recursive=recursive, force=force, user=_user(user))

    def watch(self, path: str, *, recursive: bool = False, user: str | int | None = None) -> Watch:
        """Watch a directory, and with recursive=True what lies beneath: see Watch."""
        return Watch(self._t, self._id, path, recursive, user)

    async def upload_dir(self, local: str | os.PathLike[str], path: str, *, user: str | int | None = None) -> None:
        """Copy the contents of a local directory into a directory of the sandbox, streaming."""
        await self._put("archive", _params(path, user), pieces(archive.pack(Path(local))))

    async def download_dir(
        self, path: str, local: str | os.PathLike[str], *, user: str | int | None = None
    ) -> Unpacked:
        """Copy the contents of a directory of the sandbox into a local one, streaming.

        The sandbox is not trusted: nothing is written outside ``local``. What could lead outside is left out and
        listed in the result's ``skipped``, as are devices.
        """
        async with self._t.send("GET", self._url("archive"), params=_params(path, user), idle=IDLE, file=True) as r:
            async with aclosing(self._t.body(r)) as chunks:
                try:
                    return await Reader(chunks).run(lambda f: archive.unpack(f, Path(local)))
                except tarfile.TarError as e:
                    raise ConnectionLost(f"download {path}: the archive is broken or cut off: {e}") from e

    def _url(self, what: str) -> str:
        return f"/v1/sandboxes/{self._id}/{what}"

    async def _put(self, what: str, params: dict[str, str], content: bytes | AsyncIterator[bytes]) -> None:
        async def once() -> None:
            headers = {"Content-Type": "application/octet-stream"}
            async with self._t.send(
                "PUT", self._url(what), params=params, content=content, headers=headers, idle=SETTLE, file=True
            ) as r:
                async for _ in self._t.body(r):
                    pass

        if isinstance(content, bytes):
            await self._t.retrying(once, safe=True, timeout=math.inf, what=f"write {params['path']}")
        else:  # a stream can be sent only once
            await once()

    async def _call(self, method: str, *, safe: bool = True, **fields: Any) -> Json:
        body = {"sandboxId": self._id, **without_defaults(**fields)}
        return await self._t.unary(f"FileService/{method}", body, safe=safe, file=True)


class Watch:
    """A directory that is being watched.

    ::

        async with sandbox.files.watch("/src", recursive=True) as watch:
            async for event in watch:
                print(event.kind, event.path)

    Nothing is missed from the moment that it is open. It raises FileNotFoundError when the directory is removed or
    moved away, and an error that says so when the sandbox ends. When the connection breaks it raises ConnectionLost or
    Unavailable: watch again, and look at the directory anew. Watching is no activity: it does not keep an idle sandbox.
    """

    def __init__(
        self, transport: Transport, sandbox_id: str, path: str, recursive: bool, user: str | int | None
    ) -> None:
        self._t = transport
        self._body = {"sandboxId": sandbox_id, **without_defaults(path=path, recursive=recursive, user=_user(user))}
        self.path = path
        self._messages: AsyncGenerator[Json, None] | None = None

    async def open(self) -> Watch:
        """Begin to watch."""
        if self._messages is not None:
            raise RuntimeError("the watch is open already")
        messages = self._t.stream("FileService/WatchDirectory", self._body, idle=None, file=True)
        try:
            async for message in messages:
                if "started" in message:
                    self._messages = messages
                    return self
            raise ConnectionLost(f"watch {self.path}: the stream ended before it began")
        except BaseException:
            await messages.aclose()
            raise

    async def close(self) -> None:
        """End it."""
        if self._messages is not None:
            await self._messages.aclose()

    async def events(self) -> AsyncGenerator[FileEvent, None]:
        """Yield what happens."""
        if self._messages is None:
            raise RuntimeError("the watch is not open: use `async with`, or call open()")
        async for message in self._messages:
            if "file" in message:
                yield FileEvent.from_json(codec.message(message, "file"))

    def __aiter__(self) -> AsyncGenerator[FileEvent, None]:
        return self.events()

    async def __aenter__(self) -> Watch:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _user(user: str | int | None) -> str | None:
    return None if user is None else str(user)


def _params(path: str, user: str | int | None, **more: str | None) -> dict[str, str]:
    return {"path": path, **({"user": str(user)} if user is not None else {}), **{k: v for k, v in more.items() if v}}
