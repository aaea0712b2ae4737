"""Networks of sandboxes, on a node that has them. What traffic meets is tested in the repository's test/network."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from dsec import (
    Conflict,
    DSecClient,
    DSecContainerRunArgs,
    FailedPrecondition,
    InvalidArgument,
    NetworkLimits,
    NotFound,
    Sandbox,
    SandboxEnded,
    State,
    sync,
)

from .conftest import ARGS, running
from .node import BASE, Node

pytestmark = pytest.mark.node

RESOLVE = (
    "import socket\ntry: socket.getaddrinfo('registry.npmjs.org', 443)\nexcept socket.gaierror as e: print(e.args[0])"
)


@pytest.fixture(scope="module")
def networked() -> Iterator[Node]:
    """A node whose resolver nobody answers: its address is reserved for documentation."""
    with running("network=on", "resolver=198.51.100.53", "warm=2", "pool=2g") as n:
        yield n


@pytest.fixture
async def client(networked: Node) -> AsyncIterator[DSecClient]:
    async with DSecClient(networked.url, networked.key) as c:
        yield c


@pytest.fixture
async def sandbox(client: DSecClient) -> AsyncIterator[Sandbox]:
    args = dataclasses.replace(ARGS, network_rules={"npm": False, "pypi": True})
    async with await client.run_container(args, timeout=60) as s:
        yield s


async def test_the_papers_listing(networked: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    from dsec import DSecClient, DSecContainerRunArgs

    monkeypatch.setenv("DSEC_URL", networked.url)
    monkeypatch.setenv("DSEC_API_KEY", networked.key)
    client = DSecClient()
    await client.open()
    args = DSecContainerRunArgs(
        container_image=BASE,
        memory_limit_mb=4096,
        cpu_cores_limit=4,
        ttl_running_stop=300,
        network_rules={"npm": False, "pypi": True},
        init_user="root",
    )
    sandbox = await client.run_container(args, timeout=120)
    result = await sandbox.run_shell("echo hello world")
    assert (result.output, result.status) == ("hello world\n", 0)
    await sandbox.stop()
    await client.close()


async def test_rules_are_replaced_while_it_runs(sandbox: Sandbox) -> None:
    network = (await sandbox.info()).network
    assert network is not None
    assert network.rules == {"npm": False, "pypi": True}
    assert (network.generation_asked, network.generation_applied) == (1, 1)
    assert await sandbox.explain_network("files.pythonhosted.org")
    refused = await sandbox.explain_network("registry.npmjs.org")
    assert (refused.allowed, refused.rule, refused.source) == (False, "!npm", "spec")

    network = await sandbox.set_network(["golang", "example.org:22/tcp"])
    assert network.rules == {"golang": True, "example.org:22/tcp": True}
    assert network.generation_applied == network.generation_asked == 2
    assert any(w.startswith("golang: ") for w in network.warnings)
    assert not await sandbox.explain_network("pypi.org")
    assert await sandbox.explain_network("example.org", 22)
    assert not await sandbox.explain_network("example.org")
    assert not await sandbox.explain_network("example.org", 22, "udp")
    metadata = await sandbox.explain_network("169.254.169.254", 80)
    assert (metadata.allowed, metadata.source) == (False, "always")

    with pytest.raises(Conflict):
        await sandbox.set_network("open", if_generation=1)
    assert (await sandbox.set_network({}, if_generation=2)).generation_applied == 3
    assert not await sandbox.explain_network("example.org", 22)
    types = [e.type async for e in sandbox.events()]
    assert types.count("network_set") == 2


async def test_what_is_denied_is_told_to_programs_and_in_events(sandbox: Sandbox) -> None:
    result = await sandbox.run(["python3", "-c", RESOLVE])
    assert result.output == "-2\n"  # EAI_NONAME: at once, not after a timeout
    events = sandbox.events(follow=True)
    async for e in events:
        if e.type == "network_denied_name":
            assert e.attributes["name"] == "registry.npmjs.org"
            assert "npm" in e.attributes["rule"]
            break
    await events.aclose()


async def test_a_paused_sandbox_stays_paused(sandbox: Sandbox) -> None:
    await sandbox.pause()
    assert (await sandbox.set_network("open")).generation_applied == 2
    info = await sandbox.info()
    assert info.state is State.PAUSED
    assert info.network is not None
    assert info.network.rules == {"open": True}


async def test_wrong_rules_change_nothing(sandbox: Sandbox) -> None:
    for rules, says in (
        (["*"], "open"),
        (["example.org:0"], "port"),
        (["10.0.0.1/8"], "10.0.0.0/8"),
        (["pipy"], "pypi"),
        ([""], "empty"),
        (["pypi", "!pypi"], "pypi"),
        (["127.0.0.1"], "always"),
    ):
        with pytest.raises(InvalidArgument, match=says):
            await sandbox.set_network(rules)
    with pytest.raises(InvalidArgument):
        await sandbox.explain_network("pypi.org", 70000)
    with pytest.raises(InvalidArgument):
        await sandbox.explain_network("pypi.org", 443, "sctp")
    network = (await sandbox.info()).network
    assert network is not None
    assert network.generation_asked == 1


async def test_without_a_network(client: DSecClient) -> None:
    async with await client.run_container(dataclasses.replace(ARGS, network_rules={"npm": False})) as s:
        assert (await s.info()).network is None
        decision = await s.explain_network("pypi.org")
        assert not decision
        assert "loopback" in decision.why
        with pytest.raises(FailedPrecondition, match="created without"):
            await s.set_network(["pypi"])
    with pytest.raises(SandboxEnded):
        await s.set_network(["pypi"])


def test_the_synchronous_face(networked: Node) -> None:
    args = dataclasses.replace(ARGS, network_rules=["pypi"])
    with sync.DSecClient(networked.url, networked.key) as c, c.run_container(args, timeout=60) as s:
        assert s.set_network(["github"]).rules == {"github": True}
        assert s.explain_network("github.com")
        assert not s.explain_network("pypi.org")


async def test_limits(sandbox: Sandbox) -> None:
    network = await sandbox.set_network(limits=NetworkLimits(bandwidth_bps=1 << 20, connections=7))
    assert network.limits == NetworkLimits(bandwidth_bps=1 << 20, connections=7)
    assert network.rules == {"npm": False, "pypi": True}
    network = await sandbox.set_network(["golang"])
    assert network.limits.connections == 7
    network = await sandbox.set_network("none", limits=NetworkLimits())
    assert network.limits == NetworkLimits()
    with pytest.raises(InvalidArgument, match="at least 1024"):
        await sandbox.set_network(limits=NetworkLimits(bandwidth_bps=1))
    with pytest.raises(InvalidArgument, match="give rules, limits or both"):
        await sandbox.set_network()


async def test_defaults(client: DSecClient, tmp_path: Path) -> None:
    (tmp_path / "opt").mkdir()
    (tmp_path / "opt" / "agent").write_text("agent")
    await client.layers.upload_layer(tmp_path, "toolkit", "agent")
    defaults = client.network_defaults
    assert any("GitHub" in w for w in await defaults.set("toolkit/agent", ["golang", "pypi"]))
    await defaults.set("toolkit/agent@v1", {"pypi": True, "npm": False}, limits=NetworkLimits(connections=9))
    assert {d.target: (d.rules, d.limits.connections) for d in await defaults.list()} == {
        "toolkit/agent": ({"golang": True, "pypi": True}, 0),
        "toolkit/agent@v1": ({"pypi": True, "npm": False}, 9),
    }
    args = dataclasses.replace(ARGS, toolkits=["agent"])
    async with await client.run_container(args, timeout=60) as s:
        decision = await s.explain_network("pypi.org")
        assert decision.allowed
        assert decision.source == "environment toolkit/agent@v1"
        assert not await s.explain_network("proxy.golang.org")
    with pytest.raises(NotFound, match="no such toolkit"):
        await defaults.set("toolkit/nosuch", ["pypi"])
    with pytest.raises(InvalidArgument, match="give rules, limits or both"):
        await defaults.set("toolkit/agent")
    await defaults.remove("toolkit/agent@v1")
    assert [d.target for d in await defaults.list()] == ["toolkit/agent"]
    await client.layers.delete("toolkit", "agent")
    assert await defaults.list() == []


async def test_private_networks(client: DSecClient) -> None:
    def member(name: str, network: str | None = "job1") -> DSecContainerRunArgs:
        return dataclasses.replace(ARGS, private_network=network, network_name=name if network else None)

    talk = "import socket; c = socket.create_connection(('db', 5432), 10); print(c.recv(9).decode())"
    look = "import socket\ntry: print(socket.gethostbyname('db'))\nexcept socket.gaierror as e: print('unknown')"
    serve = (
        "import socket; s = socket.create_server(('', 5432)); print('ready', flush=True)\n"
        "while True: s.accept()[0].sendall(b'postgres')"
    )
    async with (
        await client.run_container(member("db"), timeout=60) as db,
        await client.run_container(member("web"), timeout=60) as web,
        await client.run_container(member("web", "job2"), timeout=60) as stranger,
        await client.run_container(member("", None), timeout=60) as alone,
    ):
        network = (await db.info()).network
        assert network is not None
        assert (network.private_network, network.network_name, network.rules) == ("job1", "db", {})
        server = await db.start(["python3", "-c", serve])
        async for piece in server.output():
            assert piece.data == b"ready\n"
            break
        assert (await web.run(["python3", "-c", talk])).stdout == b"postgres\n"
        for other in (stranger, alone):
            assert (await other.run(["python3", "-c", look])).stdout == b"unknown\n"
        address = (await web.run(["python3", "-c", look])).stdout.decode().strip()
        connect = (
            f"import socket\ntry: socket.create_connection(({address!r}, 5432), 5)\nexcept OSError: print('closed')"
        )
        assert (await stranger.run(["python3", "-c", connect])).stdout == b"closed\n"
