"""Trees as tar streams, both ways.

Packing reads a local tree. Unpacking treats the archive as hostile: it comes from a sandbox. Every entry is made
through descriptors opened component by component beneath the target, without following any symbolic link, so that
nothing is ever written outside; links that could lead outside are left out and reported.
"""

from __future__ import annotations

import errno
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, cast

from .pump import SupportsRead

BLOCK: Final = tarfile.BLOCKSIZE
PIECE: Final = 256 << 10
LeaveOut = Callable[[str], bool]
"""Tells of a path, relative to what is packed, whether it and all below it are left out."""
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class Unpacked:
    """What unpacking did."""

    files: int = 0
    """Regular files written, hard links included."""
    directories: int = 0
    symlinks: int = 0
    bytes: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)
    """Entries that were left out, each with the reason: devices, and names or links that lead outside."""


def pack(root: Path, leave_out: LeaveOut | None = None) -> Iterator[bytes]:
    """Yield a tar of everything beneath a directory, in pieces of about PIECE bytes, in sorted order.

    Links are kept as links. Owners are not: files belong to the user that unpacks. Sockets, pipes and devices are
    left out. A file that shrinks while it is read raises OSError.
    """
    if not root.is_dir():
        raise NotADirectoryError(f"{root}: not a directory")
    buffer = bytearray()
    for data in _pack(root, leave_out):
        buffer += data
        if len(buffer) >= PIECE:
            yield bytes(buffer)
            buffer.clear()
    yield bytes(buffer) + bytes(2 * BLOCK)


def _pack(root: Path, leave_out: LeaveOut | None) -> Iterator[bytes]:
    stack = [""]
    while stack:
        relative = stack.pop()
        path = root / relative
        st = path.lstat() if relative else path.stat()
        info = tarfile.TarInfo(relative or ".")
        info.mode, info.mtime = stat.S_IMODE(st.st_mode), st.st_mtime
        if stat.S_ISDIR(st.st_mode):
            info.type = tarfile.DIRTYPE
            with os.scandir(path) as entries:
                names = sorted((e.name for e in entries), reverse=True)
            inside = [f"{relative}/{n}" if relative else n for n in names]
            stack += [p for p in inside if leave_out is None or not leave_out(p)]
        elif stat.S_ISLNK(st.st_mode):
            info.type, info.linkname = tarfile.SYMTYPE, os.readlink(path)
        elif stat.S_ISREG(st.st_mode):
            with path.open("rb") as f:
                info.size = os.fstat(f.fileno()).st_size
                yield _header(info)
                yield from _contents(f, info.size)
            continue
        else:
            continue
        yield _header(info)


def _header(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _contents(f: IO[bytes], size: int) -> Iterator[bytes]:
    left = size
    while left:
        data = f.read(min(left, PIECE))
        if not data:
            raise OSError(f"{f.name}: became shorter while it was read")
        left -= len(data)
        yield data
    yield bytes(-size % BLOCK)


def unpack(source: SupportsRead, target: Path) -> Unpacked:
    """Unpack a tar stream beneath target, which is made where it is missing. Files that exist are replaced.

    Raises tarfile.TarError when the stream is no tar or is cut off, OSError when the disk says no.
    """
    target.mkdir(parents=True, exist_ok=True)
    done = Unpacked()
    root = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    modes: list[tuple[list[str], int]] = []
    try:
        with tarfile.open(fileobj=cast(IO[bytes], source), mode="r|", errorlevel=2) as tar:
            for member in tar:
                try:
                    _entry(tar, member, root, done, modes)
                except _Refused as e:
                    done.skipped.append((member.name, str(e)))
        # Directories get their modes last, deepest first: one without w would refuse its own entries.
        for parts, mode in reversed(modes):
            with suppress(_Refused, FileNotFoundError), _directory(root, parts, make=False) as fd:
                os.fchmod(fd, mode)
    finally:
        os.close(root)
    return done


class _Refused(Exception):
    """An entry that must not be made; the text says why."""


def _entry(
    tar: tarfile.TarFile, m: tarfile.TarInfo, root: int, done: Unpacked, modes: list[tuple[list[str], int]]
) -> None:
    parts = _parts(m.name)
    mode = m.mode & 0o777
    if m.isdir():
        with _directory(root, parts, make=True):
            pass
        modes.append((parts, mode))
        done.directories += 1
        return
    if not parts:
        raise _Refused("has no name")
    with _directory(root, parts[:-1], make=True) as parent:
        name = parts[-1]
        if m.isreg():
            _remove(parent, name)
            content = tar.extractfile(m)
            assert content is not None
            with os.fdopen(os.open(name, _NEW_FILE, 0o600, dir_fd=parent), "wb") as f:
                while data := content.read(PIECE):
                    f.write(data)
                    done.bytes += len(data)
                f.flush()
                os.fchmod(f.fileno(), mode)
                os.utime(f.fileno(), (m.mtime, m.mtime))
            done.files += 1
        elif m.issym():
            _check_link(m.linkname, depth=len(parts) - 1)
            _remove(parent, name)
            os.symlink(m.linkname, name, dir_fd=parent)
            done.symlinks += 1
        elif m.islnk():
            _hard_link(root, _parts(m.linkname), parent, name)
            done.files += 1
        else:
            raise _Refused("is a device, pipe or of an unknown type")


def _parts(name: str) -> list[str]:
    """The components of an entry's name, as seen from the target."""
    if name.startswith("/"):
        raise _Refused("has an absolute name")
    parts = [p for p in name.split("/") if p not in ("", ".")]
    if ".." in parts or "\0" in name:
        raise _Refused("has a name that leads outside")
    return parts


def _check_link(link: str, depth: int) -> None:
    """Let a symbolic link pass that stays inside for certain: relative, with its ".." in front, and no more of them
    than the link lies deep. A later ".." could follow another link upwards."""
    if link.startswith("/"):
        raise _Refused("is a link to an absolute path")
    parts = [p for p in link.split("/") if p not in ("", ".")]
    up = 0
    while up < len(parts) and parts[up] == "..":
        up += 1
    if up > depth or ".." in parts[up:] or "\0" in link:
        raise _Refused("is a link that may lead outside")


def _hard_link(root: int, source: list[str], parent: int, name: str) -> None:
    if not source:
        raise _Refused("is a hard link to nothing")
    with _directory(root, source[:-1], make=False) as other:
        try:
            if not stat.S_ISREG(os.stat(source[-1], dir_fd=other, follow_symlinks=False).st_mode):
                raise _Refused("is a hard link to what is no file")
        except FileNotFoundError:
            raise _Refused("is a hard link to what is not in the archive") from None
        _remove(parent, name)
        os.link(source[-1], name, src_dir_fd=other, dst_dir_fd=parent, follow_symlinks=False)


def _remove(parent: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        pass
    except (IsADirectoryError, PermissionError):
        if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            raise _Refused("is in the way of a directory") from None
        raise


@contextmanager
def _directory(root: int, parts: list[str], *, make: bool) -> Iterator[int]:
    """The descriptor of a directory beneath root, reached without following any link."""
    fd = os.dup(root)
    try:
        for p in parts:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(p, 0o700, dir_fd=fd)
            try:
                inner = os.open(p, _DIRECTORY, dir_fd=fd)
            except FileNotFoundError:
                raise _Refused(f"lies in {p!r}, which does not exist") from None
            except OSError as e:
                if not isinstance(e, NotADirectoryError) and e.errno != errno.ELOOP:
                    raise
                raise _Refused(f"lies in {p!r}, which is no directory of its own") from None
            os.close(fd)
            fd = inner
        yield fd
    finally:
        os.close(fd)
