"""Files and ports, on a real node."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from dsec import DSecError, FileType, Sandbox, Unavailable

from .test_archive import snapshot

pytestmark = pytest.mark.node
SIZE = 64 << 20


async def test_read_and_write(sandbox: Sandbox) -> None:
    f = sandbox.files
    await f.write("/tmp/deep/er/a.txt", "häl\nlo", parents=True, mode=0o640, owner="nobody:nogroup")
    assert await f.read("/tmp/deep/er/a.txt") == "häl\nlo".encode()
    assert await f.read_text("/tmp/deep/er/a.txt") == "häl\nlo"
    assert await f.read("/tmp/deep/er/a.txt", offset=1, length=2) == "ä".encode()
    info = await f.stat("/tmp/deep/er/a.txt")
    assert (info.type, info.size, info.mode, info.uid) == (FileType.FILE, 7, 0o640, 65534)
    await f.write("/tmp/empty", b"")
    assert await f.read("/tmp/empty") == b""
    assert not await f.exists("/tmp/none")


async def test_errors_are_pythons(sandbox: Sandbox) -> None:
    f = sandbox.files
    with pytest.raises(FileNotFoundError):
        await f.read("/tmp/none")
    with pytest.raises(FileNotFoundError):
        await f.stat("/tmp/none")
    with pytest.raises(FileNotFoundError):
        await f.write("/tmp/none/x", "y")
    with pytest.raises(IsADirectoryError):
        await f.read("/tmp")
    with pytest.raises(NotADirectoryError):
        await f.list("/etc/passwd")
    with pytest.raises(PermissionError):
        await f.write("/etc/owned", "x", user="nobody")
    with pytest.raises(PermissionError):
        await f.read("/etc/shadow", user="nobody")
    with pytest.raises(DSecError):
        await f.read("")
    await f.mkdir("/tmp/full/inner", parents=True)
    with pytest.raises(FileExistsError):
        await f.mkdir("/tmp/full")
    with pytest.raises(OSError):
        await f.remove("/tmp/full")


async def test_tree_operations(sandbox: Sandbox) -> None:
    f = sandbox.files
    await f.mkdir("/tmp/t/a/b", parents=True)
    await f.write("/tmp/t/a/one", "1")
    await sandbox.run_shell("ln -s one /tmp/t/a/link; printf x > '/tmp/t/'$'odd\\xff'", check=True)
    listed = await f.list("/tmp/t", depth=3)
    names = {i.path for i in listed}
    assert {"/tmp/t/a", "/tmp/t/a/one", "/tmp/t/a/b", "/tmp/t/a/link", "/tmp/t/odd\udcff"} == names
    assert (await f.stat("/tmp/t/a/link", follow=False)).symlink_target == "one"
    assert (await f.stat("/tmp/t/a/link")).type is FileType.FILE
    assert await f.read("/tmp/t/odd\udcff") == b"x"
    await f.move("/tmp/t/a/one", "/tmp/t/two")
    assert await f.read("/tmp/t/two") == b"1"
    await f.remove("/tmp/t", recursive=True)
    assert not await f.exists("/tmp/t")
    await f.remove("/tmp/t", force=True)


async def test_links_lead_nowhere_outside(sandbox: Sandbox) -> None:
    await sandbox.run_shell("ln -sfn / /tmp/root; ln -sfn ../../../../../../.. /tmp/up", check=True)
    here = await sandbox.run_shell("cat /etc/hostname")
    assert await sandbox.files.read("/tmp/root/etc/hostname") == here.stdout
    assert await sandbox.files.read("/tmp/up/etc/hostname") == here.stdout
    assert await sandbox.files.read("/../../etc/hostname") == here.stdout


def blocks(size: int) -> Iterator[bytes]:
    block = hashlib.sha256(b"seed").digest() * 2048
    for _ in range(size // len(block)):
        yield block


async def test_big_files_stream(sandbox: Sandbox, tmp_path: Path) -> None:
    want = hashlib.sha256(b"".join(blocks(SIZE))).hexdigest()

    async def asynchronous() -> AsyncIterator[bytes]:
        for b in blocks(SIZE):
            yield b

    await sandbox.files.write("/var/tmp/big", blocks(SIZE))
    await sandbox.files.write("/var/tmp/big2", asynchronous())
    sums = (await sandbox.run_shell("sha256sum /var/tmp/big /var/tmp/big2 | cut -d' ' -f1")).output.split()
    assert sums == [want, want]
    digest = hashlib.sha256()
    async for chunk in sandbox.files.stream("/var/tmp/big"):
        assert len(chunk) < SIZE / 8
        digest.update(chunk)
    assert digest.hexdigest() == want
    assert await sandbox.files.download("/var/tmp/big", tmp_path / "big") == SIZE
    with (tmp_path / "big").open("rb") as f:
        await sandbox.files.write("/var/tmp/big3", f)
    await sandbox.files.upload(tmp_path / "big", "/var/tmp/big4", mode=0o755)
    assert (await sandbox.run_shell("cmp /var/tmp/big3 /var/tmp/big4 && rm /var/tmp/big*")).ok
    assert [p.name for p in tmp_path.iterdir()] == ["big"]


async def test_an_upload_that_breaks_leaves_the_old_file(sandbox: Sandbox) -> None:
    await sandbox.files.write("/tmp/keep", "old")

    def broken() -> Iterator[bytes]:
        yield b"new" * 100_000
        raise OSError("disk of the caller")

    with pytest.raises(OSError, match="disk of the caller"):
        await sandbox.files.write("/tmp/keep", broken())
    assert await sandbox.files.read("/tmp/keep") == b"old"
    assert [f.name for f in await sandbox.files.list("/tmp") if "keep" in f.name] == ["keep"]


async def test_directories_both_ways(sandbox: Sandbox, tmp_path: Path) -> None:
    src, dst = tmp_path / "src", tmp_path / "dst"
    (src / "a/b").mkdir(parents=True)
    (src / "a/run").write_text("#!/bin/sh\necho ran\n")
    (src / "a/run").chmod(0o755)
    (src / "a/b/data").write_bytes(os.urandom(1_500_000))
    (src / "link").symlink_to("a/run")
    (src / "empty").mkdir()
    await sandbox.files.upload_dir(src, "/tmp/up1")
    assert (await sandbox.run_shell("/tmp/up1/link")).output == "ran\n"
    done = await sandbox.files.download_dir("/tmp/up1", dst)
    assert snapshot(dst) == snapshot(src)
    assert (done.files, done.skipped) == (2, [])


async def test_a_hostile_tree_stays_inside(sandbox: Sandbox, tmp_path: Path) -> None:
    await sandbox.run_shell(
        "mkdir -p /tmp/evil/d && cd /tmp/evil && ln -s /etc/passwd abs && ln -s ../../.. up && mkfifo pipe; echo > f",
        check=True,
    )
    done = await sandbox.files.download_dir("/tmp/evil", tmp_path / "out")
    assert sorted(n.removeprefix("./") for n, _ in done.skipped if n.removeprefix("./") != "pipe") == ["abs", "up"]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["d", "f"]
    with pytest.raises(FileNotFoundError):
        await sandbox.files.download_dir("/tmp/none", tmp_path / "none")


async def test_cancelled_transfers_end(sandbox: Sandbox, tmp_path: Path) -> None:
    await sandbox.run_shell("mkdir -p /tmp/large; head -c 300M /dev/zero > /tmp/large/f", check=True)
    task = asyncio.create_task(sandbox.files.download_dir("/tmp/large", tmp_path / "large"))
    async with asyncio.timeout(60):
        while not (tmp_path / "large/f").exists():  # noqa: ASYNC110 (a file has no event)
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    size = (tmp_path / "large/f").stat().st_size
    assert (await sandbox.run_shell("rm -r /tmp/large")).ok
    assert (tmp_path / "large/f").stat().st_size == size


SERVER = """
import http.server
class H(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers['Content-Length']))
        assert 'Authorization' not in self.headers
        self.send_response(200); self.end_headers(); self.wfile.write(body[::-1])
    def log_message(self, *a): pass
server = http.server.ThreadingHTTPServer(('127.0.0.1', 8000), H)
print('up', flush=True)
server.serve_forever()
"""


@pytest.fixture
async def server(sandbox: Sandbox) -> AsyncIterator[int]:
    """An HTTP server in the sandbox that answers with what it gets, backwards."""
    command = await sandbox.start(["python3", "-c", SERVER])
    async for piece in command:
        if b"up" in piece.data:
            break
    yield 8000
    await command.kill()
    await command.wait(30)


async def test_forward(sandbox: Sandbox, server: int) -> None:
    async with sandbox.forward(server) as f, httpx.AsyncClient(trust_env=False) as http:
        big = os.urandom(3_000_000)
        assert (await http.post(f.url, content=big, timeout=30)).content == big[::-1]
        answers = await asyncio.gather(*(http.post(f.url, content=b"%d" % i) for i in range(30)))
        assert [a.content for a in answers] == [b"%d" % i if i < 10 else (b"%d" % i)[::-1] for i in range(30)]
        host, port = f.address
    with pytest.raises(OSError):
        await asyncio.open_connection(host, port)


COUNTER = """
import socket
s = socket.create_server(('127.0.0.1', 9000))
print('up', flush=True)
c, _ = s.accept()
total = 0
while data := c.recv(65536):
    total += len(data)
c.sendall(b'%d' % total)
"""


async def test_connect_and_half_close(sandbox: Sandbox) -> None:
    command = await sandbox.start(["python3", "-c", COUNTER])
    async for piece in command:
        if b"up" in piece.data:
            break
    reader, writer = await sandbox.connect(9000)
    writer.write(b"x" * 1_000_000)
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(), 30) == b"1000000"
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    assert (await command.wait(30)).ok
    with pytest.raises(Unavailable):
        await sandbox.connect(9)
    with pytest.raises(DSecError):
        await sandbox.connect(70_000)


async def test_watch(sandbox: Sandbox) -> None:
    f = sandbox.files
    await f.mkdir("/tmp/watched/sub", parents=True)
    seen: set[tuple[str, str]] = set()
    async with f.watch("/tmp/watched", recursive=True) as watch:
        await f.write("/tmp/watched/sub/a", b"1")
        await sandbox.run_shell(
            r"cd /tmp/watched && mv sub/a b && rm b && mkdir new && touch new/x $(printf 'odd\377')"
        )
        async with asyncio.timeout(60):
            async for e in watch:
                seen.add((e.kind.value, e.path))
                if e.path == os.fsdecode(b"odd\xff"):
                    break
    assert {("created", "sub/a"), ("moved", "sub/a"), ("created", "b"), ("removed", "b"), ("created", "new")} <= seen
    with pytest.raises(FileNotFoundError):
        async with f.watch("/tmp/none"):
            pass
    with pytest.raises(FileNotFoundError):
        async with f.watch("/tmp/watched") as watch:
            await f.remove("/tmp/watched", recursive=True)
            async with asyncio.timeout(60):
                async for _ in watch:
                    pass
