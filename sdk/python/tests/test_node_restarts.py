"""Parts of the node are killed under the client: nothing is lost, run twice, or told wrongly."""

from __future__ import annotations

import asyncio

import pytest

from dsec import DSecClient, Sandbox, State, Stream

from .conftest import ARGS
from .node import Node

pytestmark = pytest.mark.node

LINES = 300
COUNT = f"i=0; while [ $i -lt {LINES} ]; do i=$((i+1)); echo line $i; sleep 0.01; done; exit 9"


@pytest.mark.parametrize("roles", [("apiserver",), ("edge",), ("edge", "apiserver", "blobd", "engine")])
async def test_killed_roles(node: Node, client: DSecClient, sandbox: Sandbox, roles: tuple[str, ...]) -> None:
    command = await sandbox.start(COUNT)
    twice = asyncio.create_task(sandbox.run_shell(f"( {COUNT} ) >> /tmp/{roles[0]}{len(roles)}"))
    followed = asyncio.create_task(_sequences(sandbox, command.id))
    got, position, killed = b"", 0, False
    async for piece in command:
        assert piece.stream is Stream.STDOUT
        assert (piece.offset, piece.cut_bytes) == (position, 0)
        position = piece.end
        got += piece.data
        if not killed and b"line 50\n" in got:
            node.kill(*roles)
            killed = True
    want = b"".join(b"line %d\n" % i for i in range(1, LINES + 1))
    assert killed
    assert got == want
    result = await command.wait()
    assert (result.stdout, result.exit_code, result.kind) == (want, 9, "exited")
    # Exec's connection broke as well: it was repeated, and the command ran once.
    assert (await twice).exit_code == 9
    assert await sandbox.files.read(f"/tmp/{roles[0]}{len(roles)}") == want
    sequences = await asyncio.wait_for(followed, 60)
    assert sequences == sorted(set(sequences))
    assert (await sandbox.info()).state is State.RUNNING


async def _sequences(sandbox: Sandbox, command_id: str) -> list[int]:
    """Follow the sandbox's events until the command's end is among them."""
    seen = []
    async for e in sandbox.events(follow=True):
        seen.append(e.sequence)
        if e.type == "command_ended" and command_id in e.attributes.values():
            break
    return seen


async def test_creation_while_the_edge_dies(node: Node, client: DSecClient) -> None:
    """Each creation gives exactly one sandbox or an error, and none is left that nobody knows of."""
    labels = {"job": "edge-dies"}
    creations = [asyncio.create_task(client.run_container(ARGS, timeout=60, labels=labels)) for _ in range(12)]
    await asyncio.wait(creations, return_when=asyncio.FIRST_COMPLETED)
    node.kill("edge")
    made = await asyncio.gather(*creations, return_exceptions=True)
    ids = {s.id for s in made if isinstance(s, Sandbox)}
    assert {s.id async for s in client.list(labels)} == ids
    assert len(ids) == sum(isinstance(s, Sandbox) for s in made)
    for e in made:
        if isinstance(e, BaseException):
            assert getattr(e, "blame", "") == "infra", (type(e), getattr(e, "code", ""), e)
    assert set(await client.stop_all(labels)) == ids
