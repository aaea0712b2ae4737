"""Event streams that survive broken connections."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from . import codec
from .codec import without_defaults
from .errors import DSecError
from .retry import transient
from .transport import Transport
from .values import Event


async def events(
    transport: Transport,
    *,
    sandbox_id: str | None = None,
    labels: Mapping[str, str] | None = None,
    after: int = 0,
    follow: bool = False,
) -> AsyncGenerator[Event, None]:
    """Yield events, each once: after a broken connection, from where it broke.

    One sandbox's stream is asked for from its last sequence on; of many, what was seen is told by each one's.
    """
    seen: dict[str, int] = {}
    patience = transport.patience()
    while True:
        start = seen.get(sandbox_id, after) if sandbox_id else 0
        body = without_defaults(
            sandboxId=sandbox_id, labels=dict(labels or {}), afterSequence=str(start) if start else None, follow=follow
        )
        try:
            async with aclosing(transport.stream("SandboxService/StreamEvents", body, idle=None)) as stream:
                async for message in stream:
                    if "event" not in message:
                        continue
                    e = Event.from_json(codec.message(message, "event"))
                    if e.sequence > seen.get(e.sandbox_id, after if sandbox_id else 0):
                        seen[e.sandbox_id] = e.sequence
                        patience.progress()
                        yield e
            return
        except DSecError as e:
            if not transient(e, safe=True):
                raise
            lost = transport.no_service(e)
        await patience.wait(lost)
