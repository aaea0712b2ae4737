"""Layers, tags and named environments, on a real node."""

from __future__ import annotations

import io
import tarfile

import pytest

from dsec import (
    AlreadyExists,
    DSecClient,
    DSecContainerRunArgs,
    FailedPrecondition,
    LayerKind,
    NotFound,
    SandboxFailure,
    sync,
)

from .node import BASE, Node

pytestmark = pytest.mark.node


def tar(**files: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as t:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            t.addfile(info, io.BytesIO(text.encode()))
    return out.getvalue()


async def test_environment(client: DSecClient) -> None:
    one = await client.layers.upload_layer(
        tar(tool="one"),
        "toolkit",
        "envtool",
        prefix="/opt",
        on_start=["/bin/sh", "-c", "id -un > /tmp/who"],
        on_start_user="www-data",
    )
    env = await client.environments.create(
        "py/env", base=BASE, toolkits=["envtool"], env={"A": "1"}, memory_limit_mb=300, workdir="/tmp"
    )
    assert (env.name, env.base, env.toolkits) == ("py/env", BASE, ("envtool",))
    with pytest.raises(AlreadyExists, match="choose another name"):
        await client.environments.create("py/env", base=BASE)
    assert [e.name for e in await client.environments.list()] == ["py/env"]
    sandbox = await client.run_container(DSecContainerRunArgs(environment="py/env", ttl=300), timeout=60)
    result = await sandbox.run_shell("cat who /opt/tool; echo $A; pwd")
    assert result.output == "www-data\none1\n/tmp\n"
    assert (await sandbox.info()).memory_bytes == 300 << 20
    await sandbox.stop()

    two = await client.layers.upload_layer(tar(tool="two", more="x"), "toolkit", "envtool", prefix="/opt")
    changes = await client.layers.diff("toolkit", one.ref, two.ref)
    assert [(c.kind, c.path) for c in changes] == [("added", "/opt/more")]
    assert [c.path for c in await client.layers.diff("toolkit", one.ref, two.ref, contents=True)] == [
        "/opt/more",
        "/opt/tool",
    ]
    await client.layers.tag("toolkit", one.ref, "stable")
    assert (await client.layers.get(LayerKind.TOOLKIT, "envtool@stable")).ref == one.ref
    assert await client.layers.verify("toolkit", "envtool") > 0
    made = await client.environments.inspect("py/env")
    assert [(u.kind, u.name) for u in made.layers] == [("base", BASE), ("toolkit", "envtool")]
    assert made.workdir == "/tmp"
    assert await client.environments.verify("py/env") > 0
    await client.environments.create("py/pinned", base=BASE, toolkits=[one.ref])
    [(before, after)] = await client.environments.diff("py/pinned", "py/env")
    assert before and after and (before.version, after.version) == ("v1", "v2")
    await client.environments.create("py/pinned", base=BASE, replace=True)
    [(before, after)] = await client.environments.diff("py/pinned", "py/env")
    assert before is None and after and after.name == "envtool"
    assert await client.environments.diff("py/env", "py/env") == []
    await client.environments.delete("py/pinned")
    with pytest.raises(FailedPrecondition, match="in use by environment py/env"):
        await client.layers.delete("toolkit", "envtool", "v2")
    await client.environments.delete("py/env")
    with pytest.raises(NotFound):
        await client.environments.inspect("py/env")

    await client.layers.upload_layer(tar(x="x"), "toolkit", "envbad", on_start=["/bin/sh", "-c", "exit 4"])
    with pytest.raises(SandboxFailure, match="on-start of toolkit envbad failed"):
        await client.run_container(DSecContainerRunArgs(base=BASE, toolkits=["envbad"]), timeout=60)
    for name in ("envtool", "envbad"):
        await client.layers.delete("toolkit", name)


def test_environments_without_a_loop(node: Node) -> None:
    with sync.DSecClient(node.url, node.key) as client:
        client.environments.create("sync-env", base=BASE)
        assert client.environments.inspect("sync-env").layers[0].name == BASE
        assert client.layers.gc(dry_run=True).removed_bytes >= 0
        client.environments.delete("sync-env")
