"""From code without an event loop to the asynchronous classes.

A Face holds an asynchronous object and a Loop that runs in a thread of its own. Its methods are made from the
asynchronous ones by the functions below, with the same parameters, types and documentation; nothing is written twice.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

A = TypeVar("A")
P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


class Loop:
    """An event loop in a background thread. Any thread may use it, but not its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._serve, name="dsec", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run work to its end and return its result. An interrupted wait (Ctrl-C) cancels it."""
        if self._pid != os.getpid():
            work.close()
            raise RuntimeError("the client was opened before this process was forked: open one in each process")
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("called from a callback of the client itself, which would wait for itself forever")
        if self.closed:
            work.close()
            raise RuntimeError("the client is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    @property
    def closed(self) -> bool:
        return self._loop.is_closed()

    def close(self) -> None:
        """Cancel what runs and end the thread."""
        if self._pid == os.getpid() and not self.closed:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        finally:
            self._loop.close()


class Face(Generic[A]):
    """The synchronous face of an asynchronous object."""

    def __init__(self, loop: Loop, inner: A) -> None:
        self._loop = loop
        self._inner = inner

    def __repr__(self) -> str:
        return f"<sync {self._inner!r}>"


class _Managed(Protocol):
    async def __aenter__(self) -> Any: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


M = TypeVar("M", bound=_Managed)


class ManagedFace(Face[M]):
    """A face whose object is a context manager."""

    def __enter__(self) -> Self:
        self._loop.run(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self._inner.__aexit__(kind, error, trace))


def call(method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Face[A], P], R]:
    """A method that waits for an asynchronous one."""

    @functools.wraps(method)
    def wait(self: Face[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._loop.run(method(self._inner, *args, **kwargs))

    return wait


def call_as(
    wrap: Callable[[Loop, R], S], method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]]
) -> Callable[Concatenate[Face[A], P], S]:
    """Like call; the result gets a face too."""

    @functools.wraps(method)
    def wait(self: Face[A], /, *args: P.args, **kwargs: P.kwargs) -> S:
        return wrap(self._loop, self._loop.run(method(self._inner, *args, **kwargs)))

    return wait


def make_as(
    wrap: Callable[[Loop, R], S], method: Callable[Concatenate[A, P], R]
) -> Callable[Concatenate[Face[A], P], S]:
    """For a method that does not wait; its result gets a face."""

    @functools.wraps(method)
    def make(self: Face[A], /, *args: P.args, **kwargs: P.kwargs) -> S:
        return wrap(self._loop, method(self._inner, *args, **kwargs))

    return make


def iterate(
    method: Callable[Concatenate[A, P], AsyncGenerator[R, None]],
) -> Callable[Concatenate[Face[A], P], Iterator[R]]:
    """An iterator over what an asynchronous generator yields."""

    @functools.wraps(method)
    def each(self: Face[A], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        return _each(self._loop, method(self._inner, *args, **kwargs))

    return each


def _each(loop: Loop, source: AsyncGenerator[R, None]) -> Iterator[R]:
    end: Any = object()

    async def following() -> R:
        return await anext(source, end)

    async def close() -> None:
        await source.aclose()

    try:
        while (item := loop.run(following())) is not end:
            yield item
    finally:
        loop.run(close())
