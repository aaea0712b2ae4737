"""The screen of a full VM, on a real node: a disk of one sector, whose system shows what is typed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from dsec import Blame, DSecClient, DSecError, DSecFullVMRunArgs, InvalidArgument, Sandbox, Unsupported, sync

from .node import REPOSITORY, Node

pytestmark = pytest.mark.node

SIZE = 1 << 20
ARGS = DSecFullVMRunArgs(base="pytest-echo", memory_limit_mb=64, disk_limit_mb=4, ttl=600)


async def shown(machine: Sandbox, text: str) -> None:
    """Wait until the screen says a text."""
    async with asyncio.timeout(120):
        while text not in await machine.screen.text():  # noqa: ASYNC110 - a screen tells nobody that it changes
            await asyncio.sleep(0.05)


@pytest.fixture
async def machine(client: DSecClient) -> AsyncIterator[Sandbox]:
    boot = (REPOSITORY / "backend" / "fullvm" / "fullvmtest" / "boot.bin").read_bytes()
    disk = boot + b"of its disk\0".ljust(SIZE - len(boot), b"\0")
    layer = await client.layers.upload_layer(disk, "base", "pytest-echo", format="disk")
    assert layer.name == "pytest-echo"
    async with await client.run_fullvm(ARGS, timeout=300) as made:
        yield made


async def test_screen(node: Node, machine: Sandbox) -> None:
    await shown(machine, "ready: of its disk")
    before = await machine.screen.screenshot()
    assert before.png.startswith(b"\x89PNG")
    assert await machine.screen.size() == (before.width, before.height) == (720, 400)
    await machine.screen.type("Typed, and kept.\n")
    await shown(machine, "stored")
    assert "Typed, and kept." in await machine.screen.text()
    assert (await machine.screen.screenshot()).png != before.png
    await machine.screen.click(10, 0, count=2)
    await machine.screen.scroll(-1)
    with sync.DSecClient(node.url, node.key) as other:
        screen = other.sandbox(machine.id).screen
        screen.press("shift", "x")
        screen.move(719, 399)
    await shown(machine, "X")
    node.kill("edge")
    await shown(machine, "X")  # asked again until it is back
    reader, writer = await machine.screen.vnc()
    assert (await reader.readexactly(12)).startswith(b"RFB 003.")
    writer.close()
    for wrong in (
        machine.screen.type("naïve"),
        machine.screen.press("any"),
        machine.screen.press(),
        machine.screen.move(720, 0),
        machine.screen.click(1),
        machine.screen.click(count=0),
    ):
        with pytest.raises(InvalidArgument):
            await wrong
    with pytest.raises(Unsupported, match="no agent"):
        await machine.run_shell("true")


async def test_no_system(client: DSecClient) -> None:
    await client.layers.upload_layer(bytes(SIZE), "base", "pytest-empty", format="disk")
    with pytest.raises(DSecError) as e:
        await client.run_fullvm(DSecFullVMRunArgs(base="pytest-empty", memory_limit_mb=64), timeout=300)
    failure = e.value.failure
    assert failure is not None
    assert (failure.kind, failure.blame) == ("boot_failed", Blame.USER)
    assert "No bootable device" in failure.evidence


async def test_container_has_none(sandbox: Sandbox) -> None:
    with pytest.raises(Unsupported, match="fullvm"):
        await sandbox.screen.screenshot()
    with pytest.raises(Unsupported, match="fullvm"):
        await sandbox.screen.vnc()
