"""Sources read by a thread: who holds them when."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from dsec.pump import Reader


@pytest.mark.parametrize("turns", [0, 1, 5])
async def test_a_cancelled_run_has_let_go_of_its_source(turns: int) -> None:
    waiting = asyncio.Event()

    async def source() -> AsyncGenerator[bytes, None]:
        yield b"first"
        try:
            waiting.set()
            await asyncio.Event().wait()
        finally:
            for _ in range(turns):  # as one does that closes a connection first
                await asyncio.sleep(0)

    chunks = source()
    task = asyncio.create_task(Reader(chunks).run(lambda f: f.read()))
    async with asyncio.timeout(30) as limit:
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not limit.expired(), "the thread waited on"
    await chunks.aclose()  # "already running", were it still held


async def test_a_run_is_cancelled_before_its_thread_knows_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting, cancelled = asyncio.Event(), threading.Event()
    submit = asyncio.run_coroutine_threadsafe

    def late(*args: Any) -> Any:
        future = submit(*args)
        assert cancelled.wait(30)
        return future

    async def source() -> AsyncGenerator[bytes, None]:
        waiting.set()
        await asyncio.Event().wait()
        yield b""

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", late)
    chunks = source()
    task = asyncio.create_task(Reader(chunks).run(lambda f: f.read()))
    async with asyncio.timeout(30) as limit:
        await waiting.wait()
        task.cancel()
        await asyncio.sleep(0)  # the cancellation is in the run now
        cancelled.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not limit.expired(), "the thread waited on"
    await chunks.aclose()
