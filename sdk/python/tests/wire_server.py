"""A server that breaks on purpose: what a network and a dying service do to connections, said byte by byte.

Only for faults that a real node cannot be made to show at a given byte; all else is tested on a node.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from dsec import envelope


@dataclass
class Request:
    """One request as it arrived."""

    verb: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """Its message; of a stream, the first one."""
        body = self.body[5:] if "connect+json" in self.headers.get("content-type", "") else self.body
        return json.loads(body)


Answer = Callable[[Request, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class WireServer:
    """Answers the n-th request to a path with the n-th of its answers, the last one for all after it."""

    url: str = ""
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    news: asyncio.Condition = field(default_factory=asyncio.Condition)

    def on(self, path: str, *answers: Answer) -> None:
        self.answers[path if path.startswith("/") else f"/dsec.v1.{path}"] = list(answers)

    def seen(self, path: str) -> list[Request]:
        """Requests to a path so far."""
        full = path if path.startswith("/") else f"/dsec.v1.{path}"
        return [r for r in self.requests if r.path.partition("?")[0] == full]

    async def arrived(self, path: str, count: int) -> None:
        """Wait until so many requests to a path have come."""
        async with self.news:
            await self.news.wait_for(lambda: len(self.seen(path)) >= count)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                verb, path, _ = head[0].split(" ")
                headers = {
                    k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)
                }
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                request = Request(verb, path, headers, body)
                async with self.news:
                    self.requests.append(request)
                    self.news.notify_all()
                name = path.partition("?")[0]
                answers = self.answers.get(name)
                if not answers:
                    await refuse("unimplemented", f"no answer for {name}", 501)(request, writer)
                else:
                    await answers[min(len(self.seen(name)), len(answers)) - 1](request, writer)
                await writer.drain()
                if writer.is_closing():
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving() -> AsyncIterator[WireServer]:
    """Run one on a free port."""
    wire = WireServer()
    wire.on("NodeService/GetNode", answer({}))
    wire.on("LayerService/ListLayers", answer({}))
    tasks: set[asyncio.Task[None]] = set()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await wire.handle(reader, writer)
        except asyncio.CancelledError:
            writer.close()
        finally:
            tasks.discard(task)

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    wire.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield wire
    finally:
        server.close()
        for t in tasks:
            t.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _reply(status: int, body: bytes, kind: str = "application/json", extra: str = "") -> bytes:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
    return head.encode() + body


def answer(o: Any) -> Answer:
    """A whole unary answer."""

    async def go(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(_reply(200, json.dumps(o).encode()))

    return go


def refuse(code: str, message: str, status: int, **more: Any) -> Answer:
    """A whole error."""

    async def go(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(_reply(status, json.dumps({"code": code, "message": message, **more}).encode()))

    return go


def raw(data: bytes, *, close: bool = True) -> Answer:
    """Exactly these bytes, then the connection ends."""

    async def go(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        if close:
            await writer.drain()
            writer.close()

    return go


async def drop(_: Request, writer: asyncio.StreamWriter) -> None:
    """The connection ends without an answer."""
    writer.transport.abort()


async def hang(_: Request, writer: asyncio.StreamWriter) -> None:
    """Nothing, for as long as the other side waits."""
    await asyncio.Event().wait()


def stream(*messages: Any, end: Any = None, cut: int = 0) -> Answer:
    """A Connect stream of messages and its end: ``{}``, an error, or with end=None the connection just breaks.

    ``cut``: bytes that are missing at the end of what is sent.
    """

    async def go(_: Request, writer: asyncio.StreamWriter) -> None:
        body = b"".join(envelope.encode(json.dumps(m).encode()) for m in messages)
        if end is not None:
            body += envelope.encode(json.dumps(end).encode(), envelope.END)
        if cut:
            body = body[:-cut]
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/connect+json\r\nTransfer-Encoding: chunked\r\n\r\n")
        for at in range(0, len(body), 7):  # pieces that respect no frame
            piece = body[at : at + 7]
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        if end is None or cut:
            await writer.drain()
            writer.close()
        else:
            writer.write(b"0\r\n\r\n")

    return go
