"""Function calls on a real node."""

from __future__ import annotations

import asyncio

import pytest

from dsec import (
    Blame,
    DSecCallLimits,
    DSecClient,
    DSecFnCallArgs,
    DSecJudgeArgs,
    FailedPrecondition,
    JudgeCase,
    NotFound,
    Unsupported,
    Verdict,
    sync,
)

from .node import BASE, Node


@pytest.fixture
async def calls(client: DSecClient) -> DSecClient:
    for runtime in ("python", "shell"):
        await client.set_runtime(runtime, BASE)
    return client


async def test_call(calls: DSecClient) -> None:
    args = DSecFnCallArgs(
        runtime="python",
        code="import sys, os\nprint(input(), sys.argv[1], os.environ['K'], open('d/f').read())\n"
        "open('out','w').write('x')",
        files={"d/f": "file"},
        stdin="hello\n",
        args=["arg"],
        env={"K": "v"},
        collect=["out", "missing"],
    )
    r = await calls.call(args)
    assert (r.ok, r.stdout_text, r.files) == (True, "hello arg v file\n", {"out": b"x"})
    assert r.cpu > 0 and r.wall > 0 and r.memory_peak > 0


async def test_ends(calls: DSecClient) -> None:
    limits = DSecCallLimits(cpu=0.2, wall=5, memory_mb=64, output=1000)
    for code, kind in {
        "exit 3": "exited",
        "kill -9 $$": "signalled",
        "while :; do :; done": "timed_out",
        "yes": "output_limit",
    }.items():
        r = await calls.call(DSecFnCallArgs(runtime="shell", code=code, limits=limits))
        assert (r.kind, r.blame, r.ok) == (kind, Blame.TASK, False)


async def test_refused(calls: DSecClient) -> None:
    with pytest.raises(Unsupported, match="GPU"):
        await calls.call(DSecFnCallArgs(runtime="cuda", code="x"))
    with pytest.raises(NotFound, match="there are shell"):
        await calls.call(DSecFnCallArgs(runtime="cobol", code="x"))
    await calls.set_runtime("node", "")
    with pytest.raises(FailedPrecondition, match="no base"):
        await calls.call(DSecFnCallArgs(runtime="node", code="x"))


async def test_judge(calls: DSecClient) -> None:
    cases = [JudgeCase(name=str(n), stdin=str(n), expected=f"{n * n}\n\n") for n in range(5)]
    good = DSecJudgeArgs(runtime="python", code="print(int(input())**2)", cases=cases)
    bad = DSecJudgeArgs(
        runtime="python", code="n=int(input())\nprint(n*n if n<3 else 1/0)", cases=cases, stop_early=True
    )
    r = await calls.judge(good)
    assert r.ok and r.accepted == 5
    r = await calls.judge(bad)
    assert r.verdict == Verdict.RUNTIME_ERROR
    assert [c.verdict for c in r.cases] == [Verdict.ACCEPTED] * 3 + [Verdict.RUNTIME_ERROR, Verdict.SKIPPED]
    found = {o.index: o.value().verdict async for o in calls.judge_batch([bad, good])}
    assert found == {0: Verdict.RUNTIME_ERROR, 1: Verdict.ACCEPTED}


async def test_batch_survives_the_edge(calls: DSecClient, node: Node) -> None:
    many = [DSecFnCallArgs(runtime="shell", code=f"sleep 0.02; echo {n}") for n in range(200)]
    many.append(DSecFnCallArgs(runtime="cobol", code="x"))
    seen: dict[int, bytes] = {}
    killed = False
    async for o in calls.call_batch(many):
        assert o.index not in seen
        seen[o.index] = o.result.stdout if o.result else b""
        assert (o.error is not None) == (o.index == 200)
        if not killed and len(seen) >= 20:
            killed = True
            node.kill("edge")
    assert seen == {**{n: f"{n}\n".encode() for n in range(200)}, 200: b""}


async def test_batch_is_left(calls: DSecClient) -> None:
    many = [DSecFnCallArgs(runtime="shell", code="echo x") for _ in range(50)]
    async for _ in calls.call_batch(many):
        break
    async with asyncio.timeout(30):
        assert (await calls.call(many[0])).ok


def test_sync(node: Node) -> None:
    with sync.DSecClient(node.url, node.key) as c:
        c.set_runtime("shell", BASE)
        assert c.call(DSecFnCallArgs(runtime="shell", code="echo hi")).stdout == b"hi\n"
        found = [o.value().ok for o in c.call_batch([DSecFnCallArgs(runtime="shell", code="echo")] * 3)]
        assert found == [True] * 3
        assert {r.name for r in c.runtimes()} >= {"shell", "python", "c"}
