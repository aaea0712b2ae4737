"""One node for the whole run (test_node_network has its own); one sandbox for each test file that wants to share it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dsec import DSecClient, DSecContainerRunArgs, Sandbox, sync

from . import node as nodes
from .node import BASE, Node

ARGS = DSecContainerRunArgs(container_image=BASE, memory_limit_mb=512, ttl=900, labels={"suite": "pytest"})


@contextmanager
def running(*opts: str) -> Iterator[Node]:
    """A node that has the base image. Where the machine cannot run one, its tests are skipped, unless
    DSEC_REQUIRE_NODE is set: then they fail."""
    lacks = nodes.missing()
    if lacks:
        (pytest.fail if os.environ.get("DSEC_REQUIRE_NODE") else pytest.skip)(f"a node needs {lacks}")
    # Not pytest's own temporary directory: the layers' files need a real file system, as /var has.
    parent = Path(os.environ.get("DSEC_TEST_STATE", "/var/tmp"))
    state = Path(tempfile.mkdtemp(prefix="dsec-pytest-", dir=parent))
    try:
        # One node of a machine has its network: those that are not about it leave it to others. MicroVMs boot the same
        # kernel wherever the tests run.
        usual = ("network=off", "kernel=" + (os.environ.get("DSEC_TEST_KERNEL") or "debian"))
        n = Node.start(state, *opts, *(u for u in usual if not any(o.split("=")[0] == u.split("=")[0] for o in opts)))
        try:
            n.import_base()
            yield n
        finally:
            left = n.stop()
        assert not left, "the node left behind: " + "; ".join(left)
    finally:
        shutil.rmtree(state, ignore_errors=True)


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    """The node of most tests."""
    with running() as n:
        yield n


@pytest.fixture
async def client(node: Node) -> AsyncIterator[DSecClient]:
    async with DSecClient(node.url, node.key) as c:
        yield c


@pytest.fixture(scope="module")
def sandbox_id(node: Node) -> Iterator[str]:
    """A sandbox that the tests of one file share."""
    with sync.DSecClient(node.url, node.key) as c, c.run_container(ARGS, timeout=60) as s:
        yield s.id


@pytest.fixture
def sandbox(client: DSecClient, sandbox_id: str) -> Sandbox:
    return client.sandbox(sandbox_id)
