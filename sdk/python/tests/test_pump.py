"""Sources read by a thread: who holds them when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

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
    async with asyncio.timeout(30):
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await chunks.aclose()  # "already running", were it still held
