"""When to try again, and for how long."""

from __future__ import annotations

import asyncio
import random
from typing import Final

from .errors import ConnectionLost, DSecError, Unavailable

FIRST: Final = 0.1
LONGEST: Final = 2.0
PROOF: Final = 10.0
"""A connection that lived this long, in seconds, shows that the service was back: patience starts anew."""


class Patience:
    """Waits between tries, longer each time, with jitter, until ``window`` seconds of failing have passed.

    One object per call; ``progress`` says that the service works again.
    """

    def __init__(self, window: float) -> None:
        self._window = window
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None
        self._delay = FIRST
        self._tried = self._loop.time()
        self.failures = 0

    def progress(self) -> None:
        self._since = None
        self._delay = FIRST

    async def wait(self, e: DSecError) -> None:
        """Sleep before the next try, or raise e when patience is over."""
        now = self._loop.time()
        if now - self._tried > PROOF:
            self.progress()
        if self._since is None:
            self._since = now
        self.failures += 1
        delay = max(self._delay * random.uniform(0.5, 1.0), min(e.retry_after, LONGEST))
        if now + delay > self._since + self._window:
            raise e
        self._delay = min(2 * self._delay, LONGEST)
        await asyncio.sleep(delay)
        self._tried = self._loop.time()


def transient(e: DSecError, *, safe: bool) -> bool:
    """Whether trying again may help and can do no harm. ``safe`` = the request may be carried out twice."""
    return e.unsent or (safe and isinstance(e, Unavailable | ConnectionLost))
