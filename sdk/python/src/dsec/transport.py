"""Requests: unary calls and streams of Connect with JSON, and plain HTTP, with deadlines and safe retries."""

from __future__ import annotations

import asyncio
import math
import os
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Final, TypeVar
from urllib.parse import quote, urlencode

import httpx

from . import codec, envelope, wire_errors
from .codec import Json
from .config import Config
from .errors import ConnectionLost, DeadlineExceeded, DSecError, InternalError, InvalidArgument
from .retry import Patience, transient

T = TypeVar("T")
Content = bytes | AsyncIterator[bytes]

CONNECT_TIMEOUT: Final = 5.0
UNSEEN: Final = 5.0
STREAM_IDLE: Final = 75.0
"""Seconds without a byte after which a command's stream counts as broken; the service sends one every 20."""
ERROR_BODY: Final = 1 << 20


def _keepalive() -> list[tuple[int, int, int]]:
    """Socket options by which a peer that vanished is noticed within a minute, whatever a call waits for."""
    options = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return options


class Transport:
    """Connections to one service, for one event loop."""

    def __init__(
        self,
        config: Config,
        *,
        timeout: float,
        retry_for: float,
        max_connections: int,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self.config = config
        self.timeout = timeout
        self.retry_for = retry_for
        self.headers = {"Authorization": f"Bearer {config.key}"} if config.key else {}
        https = config.url.startswith("https:")
        self.ssl = (ssl_context or ssl.create_default_context()) if https else None
        self._reached = False
        self._http = httpx.AsyncClient(
            base_url=config.url,
            headers={**self.headers, "User-Agent": "dsec-python", "Accept-Encoding": "identity"},
            transport=httpx.AsyncHTTPTransport(
                verify=self.ssl or False,
                limits=httpx.Limits(
                    max_connections=max_connections, max_keepalive_connections=max_connections, keepalive_expiry=60
                ),
                socket_options=_keepalive(),
            ),
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT),
            trust_env=False,
        )

    async def close(self) -> None:
        await self._http.aclose()

    def patience(self) -> Patience:
        """How long to try again; a service that never answered is not waited for as long as one that did."""
        return Patience(self.retry_for if self._reached else min(self.retry_for, UNSEEN))

    def no_service(self, e: DSecError) -> DSecError:
        """The same error with advice, when nothing ever answered at the address."""
        if not isinstance(e, ConnectionLost) or not e.unsent or self._reached:
            return e
        out = ConnectionLost(
            f"no DSec service answers at {self.config.url} ({e.message}): start one on this machine with "
            "`dsec up --detach`, or set DSEC_URL"
        )
        out.unsent = True
        return out

    async def unary(
        self, method: str, body: Json, *, safe: bool, timeout: float | None = None, file: bool = False
    ) -> Json:
        """Call ``Service/Method`` and return its answer.

        ``timeout``: seconds for the call with all its retries; None = the client's default, inf = none.
        ``safe``: the request may reach the service twice without harm.
        """
        data = _encode(body)

        async def once() -> Json:
            with _as_errors():
                r = await self._http.post(
                    f"/dsec.v1.{method}",
                    content=data,
                    headers={"Content-Type": "application/json", "Connect-Protocol-Version": "1"},
                )
            self._reached = True
            if r.status_code != 200:
                raise _refused(r, r.content, file)
            try:
                return codec.loads(r.content)
            except ValueError as e:
                raise InternalError(f"{method}: the answer is not JSON: {e}") from e

        return await self.retrying(once, safe=safe, timeout=timeout, what=method)

    async def retrying(
        self, once: Callable[[], Awaitable[T]], *, safe: bool, timeout: float | None = None, what: str
    ) -> T:
        """Run once(), again while that is safe and may help, within the deadline."""
        seconds = self.timeout if timeout is None else timeout
        last: DSecError | None = None
        try:
            async with asyncio.timeout(None if math.isinf(seconds) else seconds):
                patience = self.patience()
                while True:
                    try:
                        return await once()
                    except DSecError as e:
                        if not transient(e, safe=safe):
                            raise
                        last = self.no_service(e)
                    await patience.wait(last)
        except TimeoutError as e:
            if isinstance(e, DSecError):
                raise
            if last is not None and last.unsent:
                raise last from e
            tail = f" (before that: {last})" if last else ""
            raise DeadlineExceeded(f"{what}: no answer within {seconds:g} s{tail}") from e

    async def stream(
        self, method: str, body: Json, *, idle: float | None, file: bool = False
    ) -> AsyncGenerator[Json, None]:
        """Call a server-streaming method once and yield its messages.

        ``idle``: seconds without a byte after which the stream counts as broken. Raises ConnectionLost when it ends
        without saying so: what it told is then not the whole.
        """
        async with self._streaming(method, _encode(body), idle) as response:
            decoder = envelope.Decoder()
            try:
                async for chunk in response:
                    for flags, message in decoder.feed(chunk):
                        o = codec.loads(message)
                        if flags & envelope.END:
                            if o.get("error") is not None:
                                raise wire_errors.from_json(codec.message(o, "error"), file=file)
                            return
                        yield o
            except ValueError as e:
                raise InternalError(f"{method}: not a stream of messages: {e}") from e
            raise ConnectionLost(f"{method}: the stream ended in the middle")

    @asynccontextmanager
    async def _streaming(self, method: str, data: bytes, idle: float | None) -> AsyncIterator[AsyncIterator[bytes]]:
        headers = {"Content-Type": "application/connect+json", "Connect-Protocol-Version": "1"}
        async with self.send(
            "POST", f"/dsec.v1.{method}", content=envelope.encode(data), headers=headers, idle=idle
        ) as r:
            yield self.body(r)

    @staticmethod
    async def body(response: httpx.Response) -> AsyncGenerator[bytes, None]:
        """Yield an answer's body as it arrives. Raises ConnectionLost when it is cut off."""
        with _as_errors():
            async for chunk in response.aiter_raw():
                yield chunk

    @asynccontextmanager
    async def send(
        self,
        verb: str,
        path: str,
        *,
        params: Mapping[str, str | list[str]] | None = None,
        content: Content | None = None,
        headers: Mapping[str, str] | None = None,
        idle: float | None = None,
        file: bool = False,
    ) -> AsyncIterator[httpx.Response]:
        """Send one plain request and give the answer, of status 2xx, with its body yet to be read."""
        request = self._http.build_request(
            verb,
            path + _query(params),
            content=content,
            headers=headers,
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT, read=idle, write=idle),
        )
        with _as_errors():
            response = await self._http.send(request, stream=True)
        self._reached = True
        try:
            if response.status_code // 100 != 2:
                raise _refused(response, await _head(response), file)
            yield response
        finally:
            await response.aclose()


async def _head(response: httpx.Response) -> bytes:
    """The first part of an error's body."""
    body = bytearray()
    async for chunk in Transport.body(response):
        body += chunk
        if len(body) >= ERROR_BODY:
            break
    return bytes(body)


def _query(params: Mapping[str, str | list[str]] | None) -> str:
    """A query string; paths that are not UTF-8 keep their bytes."""
    if not params:
        return ""
    pairs = [(k, os.fsencode(x)) for k, v in params.items() for x in (v if isinstance(v, list) else [v])]
    return "?" + urlencode(pairs, quote_via=quote)


def _encode(body: Json) -> bytes:
    try:
        return codec.dumps(body)
    except (UnicodeEncodeError, ValueError, TypeError) as e:
        raise InvalidArgument(f"request: {e}; text must be valid Unicode and numbers finite") from e


def _refused(r: httpx.Response, body: bytes, file: bool) -> DSecError:
    e = wire_errors.from_response(r.status_code, body, file=file)
    after = r.headers.get("Retry-After", "")
    e.retry_after = float(after) if after.isdigit() else 0.0
    return e


@contextmanager
def _as_errors() -> Iterator[None]:
    """Turns the HTTP library's errors into ours."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as e:
        lost = ConnectionLost(f"cannot connect: {e or type(e).__name__}")
        lost.unsent = True
        raise lost from e
    except (httpx.UnsupportedProtocol, httpx.InvalidURL) as e:
        raise InvalidArgument(f"address: {e}") from e
    except httpx.ReadTimeout as e:
        raise ConnectionLost("the service sent nothing for too long") from e
    except httpx.TransportError as e:
        raise ConnectionLost(f"the connection broke: {e or type(e).__name__}") from e
