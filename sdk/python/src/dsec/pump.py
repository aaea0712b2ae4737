"""Between the event loop and code that blocks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

T = TypeVar("T")


class SupportsRead(Protocol):
    """A binary file, as far as it is needed."""

    def read(self, size: int, /) -> bytes: ...


Source = bytes | str | SupportsRead | Iterable[bytes] | AsyncIterable[bytes]
"""What can be uploaded: bytes, text (as UTF-8), an open binary file, or pieces of bytes."""

PIECE = 256 << 10


async def pieces(source: Source) -> AsyncGenerator[bytes, None]:
    """Pull a source piece by piece; what blocks is pulled in a thread."""
    if isinstance(source, str):
        source = source.encode()
    if isinstance(source, bytes | bytearray | memoryview):
        yield bytes(source)
        return
    if isinstance(source, AsyncIterable):
        async for piece in source:
            if piece:
                yield piece
        return
    if hasattr(source, "read"):
        while piece := await asyncio.to_thread(source.read, PIECE):
            yield piece
        return
    iterator: Iterator[bytes] = iter(source)
    end = object()
    while (item := await asyncio.to_thread(next, iterator, end)) is not end:
        if item:
            yield item  # type: ignore[misc]


class Reader:
    """A blocking binary file whose bytes come from an asynchronous source: for libraries that read in a thread."""

    def __init__(self, source: AsyncIterator[bytes]) -> None:
        self._source = source
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._ended = False
        self._pull: asyncio.Task[bytes | None] | None = None

    def read(self, size: int = -1) -> bytes:
        """Called in the thread."""
        while not self._ended and (size < 0 or len(self._buffer) < size):
            piece = asyncio.run_coroutine_threadsafe(self._next(), self._loop).result()
            if piece is None:
                self._ended = True
            else:
                self._buffer += piece
        n = len(self._buffer) if size < 0 else min(size, len(self._buffer))
        data = bytes(self._buffer[:n])
        del self._buffer[:n]
        return data

    def stop(self) -> None:
        """Make the thread's reads fail, now and later. Called in the event loop."""
        self._ended = True
        # What the loop runs is ended, not what the thread holds: it may not hold it yet.
        if self._pull is not None:
            self._pull.cancel()

    async def _next(self) -> bytes | None:
        if self._ended:
            raise asyncio.CancelledError
        self._pull = asyncio.current_task()
        return await anext(self._source, None)

    async def run(self, work: Callable[[Reader], T]) -> T:
        """Run work(self) in a thread and wait for it, also when the waiting is cancelled: the thread never outlives
        this call."""
        thread = ThreadPoolExecutor(1, "dsec-transfer")  # its own: transfers are long, the shared pool is small
        future = self._loop.run_in_executor(thread, work, self)
        try:
            return await asyncio.shield(future)
        except BaseException:
            self.stop()
            await asyncio.wait([future])
            if self._pull is not None:  # the thread may end before what it waited for has let go of the source
                await asyncio.wait([self._pull])
            if not future.cancelled():
                future.exception()  # seen: what the caller gets is the cause
            raise
        finally:
            thread.shutdown(wait=False)
