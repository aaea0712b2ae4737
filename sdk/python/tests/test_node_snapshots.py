"""Disks that are kept: snapshots, forks, packs, on a real node."""

from __future__ import annotations

import dataclasses

import pytest

from dsec import DSecClient, DSecContainerRunArgs, DSecError, InvalidArgument, NotFound, Sandbox, sync

from .conftest import ARGS
from .node import Node

pytestmark = pytest.mark.node


def made(outcomes: list[Sandbox | DSecError]) -> list[Sandbox]:
    for o in outcomes:
        if isinstance(o, DSecError):
            raise o
    return [o for o in outcomes if isinstance(o, Sandbox)]


async def test_fork(client: DSecClient, sandbox: Sandbox) -> None:
    await sandbox.run_shell("echo base > /root/f", check=True)
    children = made(await sandbox.fork(3, env={"N": "1"}, labels={"fork": sandbox.id}))
    try:
        assert len({c.id for c in children}) == 3
        await children[0].run_shell("echo changed > /root/f", check=True)
        assert (await children[1].run_shell("cat /root/f; echo $N")).output == "base\n1\n"
        assert (await sandbox.run_shell("cat /root/f")).output == "base\n"
        assert (await children[2].info()).labels == {"fork": sandbox.id}
    finally:
        assert len(await client.stop_all({"fork": sandbox.id})) == 3
    with pytest.raises(InvalidArgument):
        await sandbox.fork(0)


async def test_snapshot(client: DSecClient, sandbox: Sandbox) -> None:
    await sandbox.run_shell("echo one > /root/f", check=True)
    snapshot = await sandbox.snapshot({"step": "1"})
    await sandbox.run_shell("echo two > /root/f", check=True)
    assert snapshot.sandbox_id == sandbox.id
    assert 0 < snapshot.cost.frozen < 30
    assert [s.id for s in await client.snapshots({"step": "1"}, sandbox_id=sandbox.id)] == [snapshot.id]
    args = DSecContainerRunArgs(snapshot=snapshot.id)
    async with await client.run_container(args, timeout=60) as old:
        await client.delete_snapshot(snapshot.id)
        assert (await old.run_shell("cat /root/f")).output == "one\n"
    with pytest.raises(NotFound):
        await client.run_container(args, timeout=60)
    with pytest.raises(InvalidArgument, match="stands alone"):
        await client.run_container(dataclasses.replace(ARGS, snapshot=snapshot.id), timeout=60)


async def test_pack(client: DSecClient, sandbox: Sandbox) -> None:
    name = f"pack-{sandbox.id}"
    await sandbox.run_shell(
        "mkdir -p /work/src /tmp/junk; echo 1 > /work/src/a; echo x > /tmp/junk/b; rm /etc/issue", check=True
    )
    whole = await sandbox.pack_diff(name, exclude=["/tmp/junk"], incremental=True)
    assert whole.report.removed == 1
    assert "/work/src/a" in whole.report.names
    assert "-/etc/issue" in whole.report.names
    assert not any("junk" in n or n == "/etc/hosts" for n in whole.report.names)
    await sandbox.run_shell("echo 2 > /work/src/b; rm /work/src/a", check=True)
    more = await sandbox.pack_diff(name, exclude=["/tmp/junk"], incremental=True)
    assert more.report.on == whole.layer.digest
    assert set(more.report.names) == {"/work/src/b", "-/work/src/a"}
    assert len(more.layers) == len(whole.layers) + 1
    for pack, want in ((whole, "a\n"), (more, "b\n")):
        async with await client.run_container(DSecContainerRunArgs(layers=pack.layers), timeout=60) as restored:
            result = await restored.run_shell("ls /work/src; ls /tmp/junk /etc/issue 2>/dev/null")
            assert result.output == want
    with pytest.raises(InvalidArgument, match="want a path from the root"):
        await sandbox.pack_diff(name, include=["../x"])
    for kind in ("workspace", "toolkit"):
        if any(layer.name == name for layer in await client.layers.list(kind)):
            await client.layers.delete(kind, name)


def test_the_sync_face(node: Node) -> None:
    with sync.DSecClient(node.url, node.key) as client, client.run_container(ARGS, timeout=60) as sandbox:
        sandbox.run_shell("echo base > /root/f", check=True)
        [child] = sandbox.fork()
        assert isinstance(child, sync.Sandbox)
        with child:
            assert child.run_shell("cat /root/f").output == "base\n"
