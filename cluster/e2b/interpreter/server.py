"""Runs code for clients of the packages `e2b-code-interpreter` and `@e2b/code-interpreter`: what they expect on port 49999.

    server.py start [PORT]     listens, and goes on in the background

A context is an IPython kernel with a directory; code without one runs in the default context. Answers to /execute are lines of
JSON: what the code writes and shows, as it comes.

    GET    /health
    POST   /execute                {code, context_id?, language?, env_vars?}
    GET    /contexts               [{id, language, cwd}]
    POST   /contexts               {language?, cwd?}
    POST   /contexts/ID/restart
    DELETE /contexts/ID
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
import uuid
from typing import Any

PORT = 49999
MAX_BODY = 16 << 20
MAX_CONTEXTS = 64
HEAD_TIME = 30.0
START_TIME = 60.0
INTERRUPT_TIME = 10.0
DEFAULT = "default"

FIELDS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    "e2b/data": "data",
    "e2b/chart": "chart",
}

# What a kernel begins with.
SHOW = """
def _dsec():
    from importlib.util import module_from_spec, spec_from_file_location
    spec = spec_from_file_location("_dsec_show", {})
    show = module_from_spec(spec)
    spec.loader.exec_module(show)
    show.install(get_ipython())
_dsec()
del _dsec
""".format(repr(os.path.join(os.path.dirname(os.path.abspath(__file__)), "show.py")))


# Variables of one execution. They are kept where code that looks at its own names does not find them.
SET_ENV = """
def _dsec(e):
    import builtins, os
    builtins._dsec_env = {{k: os.environ.get(k) for k in e}}
    os.environ.update(e)
_dsec({})
del _dsec
"""
RESET_ENV = """
def _dsec():
    import builtins, os
    for k, v in builtins.__dict__.pop("_dsec_env", {}).items():
        os.environ.pop(k, None) if v is None else os.environ.__setitem__(k, v)
_dsec()
del _dsec
"""


class Refusal(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Context:
    """A kernel. Code runs in the order in which it came."""

    def __init__(self, name: str, cwd: str) -> None:
        self.id, self.cwd = name, cwd
        self.turn = asyncio.Lock()
        self.manager: Any = None
        self.client: Any = None

    def view(self) -> dict[str, str]:
        return {"id": self.id, "language": "python", "cwd": self.cwd}

    async def open(self) -> None:
        """Start the kernel, unless it runs. The turn is held."""
        from jupyter_client.manager import AsyncKernelManager

        if self.client is not None and await self.manager.is_alive():
            return
        await self.close()
        manager = AsyncKernelManager(kernel_name="python3", transport="ipc", ip=f"/tmp/.kernel-{uuid.uuid4().hex}")
        await manager.start_kernel(cwd=self.cwd)
        client = manager.client()
        client.start_channels()
        self.manager, self.client = manager, client
        await client.wait_for_ready(timeout=START_TIME)
        await self.silently(SHOW)

    async def close(self) -> None:
        client, manager = self.client, self.manager
        self.client = self.manager = None
        if client is not None:
            client.stop_channels()
        if manager is not None:
            await manager.shutdown_kernel(now=True)

    async def silently(self, code: str) -> None:
        """Run code that nobody is to see."""
        asked = self.client.execute(code, silent=True, store_history=False)
        await self.reply(asked)

    async def reply(self, asked: str) -> None:
        while True:
            try:
                message = await self.client.get_shell_msg(timeout=1.0)
            except Exception as e:
                if type(e).__name__ != "Empty":
                    raise
                if not await self.manager.is_alive():
                    return
                continue
            if message["parent_header"].get("msg_id") == asked:
                return

    async def execute(self, code: str, env: dict[str, str], tell: Any) -> None:
        """Run code, and tell what comes of it."""
        if env:
            await self.silently(SET_ENV.format(repr(env)))
        asked = self.client.execute(code, store_history=True, allow_stdin=False)
        try:
            await self.follow(asked, tell)
        except BaseException:  # whoever asked has gone
            await self.interrupt(asked)
            raise
        finally:
            if env and self.client is not None and await self.manager.is_alive():
                await self.silently(RESET_ENV)

    async def interrupt(self, asked: str) -> None:
        """End code that nobody waits for. An interrupt that comes before the kernel has begun with it is lost: so again, until it is
        over. Code that will not end takes its kernel with it."""
        end = time.monotonic() + INTERRUPT_TIME
        while self.client is not None and await self.manager.is_alive():
            if time.monotonic() > end:
                await self.close()
                return
            await self.manager.interrupt_kernel()
            try:
                message = await self.client.get_shell_msg(timeout=0.5)
            except Exception as e:
                if type(e).__name__ != "Empty":
                    raise
                continue
            if message["parent_header"].get("msg_id") == asked:
                return

    async def follow(self, asked: str, tell: Any) -> None:
        while True:
            try:
                message = await self.client.get_iopub_msg(timeout=1.0)
            except Exception as e:
                if type(e).__name__ != "Empty":
                    raise
                if await self.manager.is_alive():
                    continue
                text = "the kernel ended: by the code itself, or for lack of memory. Its variables are lost"
                await tell({"type": "error", "name": "KernelDied", "value": text, "traceback": text})
                return
            if message["parent_header"].get("msg_id") != asked:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                await tell({"type": content["name"], "text": content["text"], "timestamp": time.time_ns()})
            elif kind in ("execute_result", "display_data"):
                await tell({"type": "result", "is_main_result": kind == "execute_result", **formats(content["data"])})
            elif kind == "error":
                trace = "\n".join(content["traceback"])
                await tell({"type": "error", "name": content["ename"], "value": content["evalue"], "traceback": trace})
            elif kind == "execute_input":
                await tell({"type": "number_of_executions", "execution_count": content["execution_count"]})
            elif kind == "status" and content["execution_state"] == "idle":
                await self.reply(asked)  # or they would pile up
                return


def formats(data: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    extra = {}
    for mime, value in data.items():
        if mime in FIELDS:
            out[FIELDS[mime]] = value
        else:
            extra[mime] = value
    if extra:
        out["extra"] = extra
    return out


class Server:
    def __init__(self) -> None:
        self.home = os.path.expanduser("~")
        if not os.path.isdir(self.home):
            self.home = "/"
        self.contexts: dict[str, Context] = {DEFAULT: Context(DEFAULT, self.home)}

    async def warm(self) -> None:
        """The first code is not to wait for a kernel."""
        default = self.contexts[DEFAULT]
        async with default.turn:
            await default.open()

    def find(self, name: str) -> Context:
        if name not in self.contexts:
            raise Refusal(404, f"context {name[:100]} was not found")
        return self.contexts[name]

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                async with asyncio.timeout(HEAD_TIME):
                    head = await reader.readuntil(b"\r\n\r\n")
                    method, path, headers = parse(head)
                    body = await reader.readexactly(length(headers))
                if method == "POST" and path == "/execute":
                    if not await self.run(reader, writer, body):
                        return
                    continue
                try:
                    status, answer = await self.answer(method, path, body)
                except Refusal as e:
                    status, answer = e.status, {"code": e.status, "message": str(e)}
                await respond(writer, status, answer)
        except Refusal as e:
            await respond(writer, e.status, {"code": e.status, "message": str(e)}, last=True)
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass  # gone, or none of ours
        finally:
            writer.close()

    async def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        if (method, path) == ("GET", "/health"):
            return 200, "OK"
        if (method, path) == ("GET", "/contexts"):
            return 200, [c.view() for c in self.contexts.values()]
        if (method, path) == ("POST", "/contexts"):
            asked = decode(body)
            python(asked.get("language"))
            if len(self.contexts) >= MAX_CONTEXTS:
                raise Refusal(429, f"there are {MAX_CONTEXTS} contexts: remove one first")
            cwd = asked.get("cwd") or self.home
            if not isinstance(cwd, str) or not os.path.isdir(cwd):
                raise Refusal(400, f"cwd {str(cwd)[:200]!r} is no directory")
            context = Context(str(uuid.uuid4()), cwd)
            self.contexts[context.id] = context
            async with context.turn:
                await context.open()
            return 201, context.view()
        parts = path.split("/")[1:]
        if len(parts) == 2 and parts[0] == "contexts" and method == "DELETE":
            context = self.find(parts[1])
            del self.contexts[context.id]
            if context.id == DEFAULT:
                self.contexts[DEFAULT] = Context(DEFAULT, self.home)
            await context.close()
            return 204, None
        if len(parts) == 3 and parts[0] == "contexts" and parts[2] == "restart" and method == "POST":
            context = self.find(parts[1])
            await context.close()  # what runs in it ends
            async with context.turn:
                await context.open()
            return 200, context.view()
        raise Refusal(404, f"there is no {method[:10]} {path[:200]}")

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> bool:
        """Serve /execute; False when the client has gone, and what it asked for was interrupted."""
        try:
            asked = decode(body)
            python(asked.get("language"))
            code, env = asked.get("code"), asked.get("env_vars") or {}
            if not isinstance(code, str):
                raise Refusal(400, "code: want a text")
            if not isinstance(env, dict) or not all(isinstance(v, str) and "\0" not in v for v in env.values()):
                raise Refusal(400, "env_vars: want texts by name")
            context = self.find(asked.get("context_id") or DEFAULT)
        except Refusal as e:
            await respond(writer, e.status, {"code": e.status, "message": str(e)})
            return True
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nCache-Control: no-store\r\nTransfer-Encoding: chunked\r\n\r\n"
        )

        async def tell(event: dict[str, Any]) -> None:
            line = json.dumps(event).encode() + b"\n"
            writer.write(b"%x\r\n%b\r\n" % (len(line), line))
            await writer.drain()

        async def work() -> None:
            async with context.turn:
                try:
                    await context.open()
                    await context.execute(code, env, tell)
                except ConnectionError:
                    raise
                except Exception as e:
                    text = f"the context was restarted or could not be started: {e}"
                    await tell({"type": "error", "name": type(e).__name__, "value": text, "traceback": text})
                await tell({"type": "end_of_execution"})

        # A client that goes has its code interrupted. One that sends its next request ahead would be read here: none does.
        working = asyncio.ensure_future(work())
        gone = asyncio.ensure_future(reader.read(1))
        await asyncio.wait([working, gone], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            return False
        if not gone.done():
            gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        if working.exception() is not None:
            return False
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


def python(language: Any) -> None:
    if language not in (None, "", "python", "python3"):
        raise Refusal(400, f"language {str(language)[:40]!r}: only python is here")


def decode(body: bytes) -> dict[str, Any]:
    try:
        asked = json.loads(body or b"{}")
    except ValueError as e:
        raise Refusal(400, f"the body is not JSON: {e}") from e
    if not isinstance(asked, dict):
        raise Refusal(400, "the body is no JSON object")
    return asked


def parse(head: bytes) -> tuple[str, str, dict[str, str]]:
    first, *rest = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3:
        raise Refusal(400, "this is no HTTP request")
    headers = {}
    for line in rest:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return words[0], words[1].partition("?")[0], headers


def length(headers: dict[str, str]) -> int:
    if "transfer-encoding" in headers:
        raise Refusal(411, "send the body with its length")
    text = headers.get("content-length", "0")
    if not text.isdigit():
        raise Refusal(400, "content-length is no number")
    if int(text) > MAX_BODY:
        raise Refusal(413, f"the body is larger than {MAX_BODY} bytes: put data into a file")
    return int(text)


async def respond(writer: asyncio.StreamWriter, status: int, answer: Any, *, last: bool = False) -> None:
    body = b"" if answer is None else json.dumps(answer).encode()
    head = f"HTTP/1.1 {status} {'OK' if status < 300 else 'Refused'}\r\nContent-Type: application/json\r\n"
    if status != 204:
        head += f"Content-Length: {len(body)}\r\n"
    if last:
        head += "Connection: close\r\n"
    writer.write(head.encode() + b"\r\n" + body)
    await writer.drain()


async def serve(listener: socket.socket) -> None:
    server = Server()
    async with await asyncio.start_server(server.handle, sock=listener, limit=64 << 10):
        await server.warm()
        await asyncio.Event().wait()


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] != "start":
        sys.exit(__doc__)
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", int(sys.argv[2]) if len(sys.argv) > 2 else PORT))
    listener.listen(128)
    # Requests wait in the listener's line from here on.
    if os.fork() > 0:
        os._exit(0)
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    os.chdir("/")
    asyncio.run(serve(listener))


main()
