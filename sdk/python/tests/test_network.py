"""Network rules on the wire, without a node."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from dsec import Conflict, ConnectionLost, DSecClient, DSecContainerRunArgs, InvalidArgument
from dsec.network import Network, NetworkLimits, rules_to_json

from . import wire_server
from .wire_server import WireServer, answer, drop, refuse

SET, EXPLAIN = "SandboxService/SetNetwork", "SandboxService/ExplainNetwork"


@pytest.fixture
async def wire() -> AsyncIterator[WireServer]:
    async with wire_server.serving() as w:
        yield w


@pytest.fixture
async def client(wire: WireServer) -> AsyncIterator[DSecClient]:
    wire.on("NodeService/GetNode", answer({}))
    async with DSecClient(wire.url, "k", retry_for=5) as c:
        yield c


def test_rules_as_they_are_written() -> None:
    both = [{"target": "npm", "allow": False}, {"target": "pypi", "allow": True}]
    assert rules_to_json({"npm": False, "pypi": True}) == both
    assert rules_to_json(["!npm", "pypi"]) == both
    assert rules_to_json(("example.org:22",)) == [{"target": "example.org:22", "allow": True}]
    assert rules_to_json("none") == [{"target": "none", "allow": True}]
    assert rules_to_json([]) == rules_to_json({}) == []
    args = DSecContainerRunArgs(container_image="d", network_rules=["pypi", "!npm"])
    assert args.to_json()["networkRules"] == [{"target": "pypi", "allow": True}, {"target": "npm", "allow": False}]
    assert "networkRules" not in DSecContainerRunArgs(container_image="d").to_json()
    for wrong in ({"pypi": 1}, {"pypi": "yes"}, {5: True}, [5], [("pypi", True)]):
        with pytest.raises(InvalidArgument, match="want a text"):
            rules_to_json(wrong)  # type: ignore[arg-type]


def test_limits_and_private_networks_as_they_are_written() -> None:
    args = DSecContainerRunArgs(
        container_image="d",
        network_limits=NetworkLimits(bandwidth_bps=10 << 20),
        private_network="job1",
        network_name="db",
    )
    spec = args.to_json()
    assert spec["networkLimits"] == {"bandwidthBps": "10485760", "connections": "0"}
    assert (spec["privateNetwork"], spec["networkName"]) == ("job1", "db")
    assert "networkLimits" not in DSecContainerRunArgs(container_image="d").to_json()
    for wrong in (NetworkLimits(connections=-1), NetworkLimits(bandwidth_bps=1.5)):  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="want a whole number"):
            wrong.to_json()


async def test_a_change_is_repeated_over_a_broken_connection(wire: WireServer, client: DSecClient) -> None:
    network = {
        "rules": [{"target": "golang", "allow": True}, {"target": "github"}],
        "generationAsked": "3",
        "generationApplied": "3",
    }
    wire.on(SET, drop, answer({"network": network, "warnings": ["golang: code of GitHub"]}))
    got = await client.sandbox("a").set_network({"golang": True, "github": False})
    assert got == Network(
        rules={"golang": True, "github": False},
        generation_asked=3,
        generation_applied=3,
        warnings=("golang: code of GitHub",),
    )
    first, second = (r.json for r in wire.seen(SET))
    assert first == second
    assert first["sandboxId"] == "a"


async def test_a_conditional_change_is_not(wire: WireServer, client: DSecClient) -> None:
    wire.on(SET, drop)
    with pytest.raises(ConnectionLost):
        await client.sandbox("a").set_network("none", if_generation=2)
    assert [r.json["ifGeneration"] for r in wire.seen(SET)] == [2]
    wire.on(SET, refuse("aborted", "generation 3 is in force, not 2", 409))
    with pytest.raises(Conflict, match="generation 3"):
        await client.sandbox("a").set_network("none", if_generation=2)
    with pytest.raises(InvalidArgument):
        await client.sandbox("a").set_network("none", if_generation=0)


async def test_decisions(wire: WireServer, client: DSecClient) -> None:
    box = client.sandbox("a")
    wire.on(EXPLAIN, answer({"allowed": True, "rule": "pypi", "source": "spec", "why": "w"}))
    yes = await box.explain_network("pypi.org")
    assert yes
    assert (yes.rule, yes.source, yes.why) == ("pypi", "spec", "w")
    wire.on(EXPLAIN, answer({"source": "always"}))
    assert not await box.explain_network("10.0.0.1", 53, "udp")
    asked = [r.json for r in wire.seen(EXPLAIN)]
    assert asked[0] == {"sandboxId": "a", "host": "pypi.org", "port": 443, "protocol": "tcp"}
    assert asked[1] == {"sandboxId": "a", "host": "10.0.0.1", "port": 53, "protocol": "udp"}
    with pytest.raises(InvalidArgument, match="port 0"):
        await box.explain_network("pypi.org", 0)
