"""TCP ports inside a sandbox."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

from . import wire_errors
from .errors import ConnectionLost, DeadlineExceeded, DSecError, InternalError
from .transport import Transport

HEAD: Final = 64 << 10
PIECE: Final = 64 << 10
CONNECTIONS: Final = 256
"""Connections that one Forward carries at a time; more wait."""
WAITING: Final = 1024
"""Connections that may be there in all; more are closed at once."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(transport: Transport, sandbox_id: str, port: int) -> Streams:
    """Open a connection to a port inside; both directions can be closed apart (write_eof)."""
    return await tunnel(transport, f"/v1/sandboxes/{sandbox_id}/tcp/{port}", f"port {port}")


async def tunnel(transport: Transport, path: str, what: str) -> Streams:
    """Open a connection to what the service tunnels at a path; ``what`` names it in errors."""
    try:
        async with asyncio.timeout(transport.timeout):
            return await _connect(transport, path, what)
    except TimeoutError as e:
        if isinstance(e, DSecError):
            raise
        raise DeadlineExceeded(f"{what}: no connection within {transport.timeout:g} s") from e


async def _connect(transport: Transport, path: str, what: str) -> Streams:
    at = urlsplit(transport.config.url)
    prefix = at.path.rstrip("/")
    try:
        reader, writer = await asyncio.open_connection(
            at.hostname, at.port or (443 if transport.ssl else 80), ssl=transport.ssl, limit=HEAD
        )
    except OSError as e:
        lost = ConnectionLost(f"cannot connect: {e}")
        lost.unsent = True
        raise transport.no_service(lost) from e
    try:
        lines = [
            f"GET {prefix}{path} HTTP/1.1",
            f"Host: {at.netloc.rpartition('@')[2]}",
            "Connection: Upgrade",
            "Upgrade: dsec-tcp",
            *(f"{k}: {v}" for k, v in transport.headers.items()),
        ]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
        await writer.drain()
        head = await reader.readuntil(b"\r\n\r\n")
        status = _status(head)
        if status != 101:
            body = await reader.read(HEAD) if status // 100 != 2 else b""
            raise wire_errors.from_response(status, _unchunked(head, body))
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as e:
        writer.close()
        if isinstance(e, DSecError | TimeoutError):
            raise
        raise ConnectionLost(f"{what}: the connection broke while it was being opened: {e}") from e
    except BaseException:
        writer.close()
        raise
    return reader, writer


def _status(head: bytes) -> int:
    try:
        return int(head.split(b" ", 2)[1])
    except (IndexError, ValueError):
        raise InternalError(f"not an HTTP answer: {head[:80]!r}") from None


def _unchunked(head: bytes, body: bytes) -> bytes:
    """An error's body, which is one JSON object, without the framing of a chunked answer."""
    if b"transfer-encoding: chunked" not in head.lower():
        return body
    start, end = body.find(b"{"), body.rfind(b"}")
    return body[start : end + 1] if start >= 0 else body


class Forward:
    """A local listener whose connections go to a port inside a sandbox.

    ::

        async with sandbox.forward(8000) as f:
            httpx.get(f.url)
    """

    def __init__(self, transport: Transport, sandbox_id: str, port: int, host: str, local_port: int) -> None:
        self._t = transport
        self._sandbox_id = sandbox_id
        self.port = port
        self._wanted = (host, local_port)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(CONNECTIONS)

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens: host and port."""
        if self._server is None:
            raise RuntimeError("the forward is not open")
        host, port = self._server.sockets[0].getsockname()[:2]
        return str(host), int(port)

    @property
    def url(self) -> str:
        """http://HOST:PORT of the listener."""
        host, port = self.address
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def open(self) -> Self:
        """Start listening. Raises OSError when the local port is taken."""
        self._server = await asyncio.start_server(self._accepted, *self._wanted, limit=PIECE)
        return self

    async def close(self) -> None:
        """Stop listening and cut what is open."""
        if self._server is None:
            return
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._tasks) >= WAITING:
            writer.transport.abort()
            return
        self._tasks.add(task)
        try:
            async with self._slots:
                await self._carry(reader, writer)
        except asyncio.CancelledError:
            pass  # close() cut it; the stream protocol's callback must not see a cancelled task
        except OSError:
            pass  # includes ConnectionLost; the local side sees its connection end
        except Exception:  # refused by the service
            writer.transport.abort()
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await connect(self._t, self._sandbox_id, self.port)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_copy(reader, inner_writer))
                both.create_task(_copy(inner_reader, writer))
        except* OSError:
            writer.transport.abort()
        finally:
            inner_writer.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy to the end, then close that direction only."""
    while data := await reader.read(PIECE):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        with suppress(OSError):
            writer.write_eof()
