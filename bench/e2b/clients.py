"""Clients of the package `e2b` at once; prints how long each step of each took and what failed, as JSON."""

import asyncio
import collections
import contextlib
import json
import sys
import time

from e2b import AsyncSandbox

count, template = int(sys.argv[1]), sys.argv[2]
steps: dict[str, list[float]] = collections.defaultdict(list)
failures: dict[str, list[str]] = collections.defaultdict(list)


@contextlib.contextmanager
def step(name: str):
    start = time.monotonic()
    try:
        yield
    except BaseException as e:
        if not isinstance(e, Reported):
            failures[name].append(f"{type(e).__name__}: {e}")
            raise Reported() from e
        raise
    steps[name].append(time.monotonic() - start)


class Reported(Exception):
    """A failure that has been noted in the step where it came up."""


async def client(n: int) -> None:
    with contextlib.suppress(Reported), step("life"):
        with step("create"):
            sandbox = await AsyncSandbox.create(template, timeout=300, allow_internet_access=False, request_timeout=300)
        try:
            for k in range(10):
                with step("command"):
                    result = await sandbox.commands.run(f"echo {n}.{k}", request_timeout=300, timeout=300)
                    assert result.stdout == f"{n}.{k}\n", result
            with step("files"):
                text = f"client {n}\n" * 1000
                await sandbox.files.write("/tmp/client/file", text, request_timeout=300)
                assert [e.name for e in await sandbox.files.list("/tmp/client", request_timeout=300)] == ["file"]
                assert await sandbox.files.read("/tmp/client/file", request_timeout=300) == text
        finally:
            with step("kill"):
                assert await sandbox.kill(request_timeout=300)


async def main() -> None:
    start = time.monotonic()
    await asyncio.gather(*(client(n) for n in range(count)))
    json.dump({"steps": steps, "failures": failures, "took": time.monotonic() - start}, sys.stdout)


asyncio.run(main())
