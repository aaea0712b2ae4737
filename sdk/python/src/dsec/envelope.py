"""Frames of a Connect stream: one byte of flags, four of length (big endian), then the message."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

COMPRESSED: Final = 0x01
END: Final = 0x02
"""Flag of the last frame: ``{}``, or ``{"error": {"code", "message"}}``."""

MAX_MESSAGE: Final = 64 << 20
"""Bytes of one message; more is refused."""

_HEADER = struct.Struct(">BI")


class FramingError(ValueError):
    """The bytes are not a Connect stream."""


def encode(message: bytes, flags: int = 0) -> bytes:
    """Return one frame."""
    return _HEADER.pack(flags, len(message)) + message


class Decoder:
    """Cuts a stream of bytes, in pieces of any size, into frames.

    ``complete`` is true when no part of a frame is waiting for the rest of it.
    """

    def __init__(self, max_message: int = MAX_MESSAGE) -> None:
        self._buffer = bytearray()
        self._max = max_message

    @property
    def complete(self) -> bool:
        return not self._buffer

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Add bytes and yield the frames that are whole now, as (flags, message). Raises FramingError."""
        self._buffer += data
        start = 0
        try:
            while len(self._buffer) - start >= _HEADER.size:
                flags, length = _HEADER.unpack_from(self._buffer, start)
                if length > self._max:
                    raise FramingError(f"a message of {length} bytes: at most {self._max} are read")
                if flags & COMPRESSED:
                    raise FramingError("a compressed message, which was not asked for")
                end = start + _HEADER.size + length
                if len(self._buffer) < end:
                    return
                message = bytes(self._buffer[start + _HEADER.size : end])
                start = end
                yield flags, message
        finally:
            del self._buffer[:start]
