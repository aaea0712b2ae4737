"""The same task on all four kinds of machines: only the first argument differs.

    python examples/four_backends.py BACKEND [BASE]

BACKEND is fncall, container, microvm or fullvm. BASE is a base that the service has; of fullvm, a disk whose system
has an agent and Python (`dsec image import "$(hack/debian-vm.sh)" --disk --agent --name debian-vm`). Default: debian,
and debian-vm for fullvm. Function calls run over the base of their runtime. The address and key of the
service are those of `dsec up`, or DSEC_URL and DSEC_API_KEY.
"""

import asyncio
import sys
import time
from typing import NamedTuple

from dsec import DSecClient, DSecContainerRunArgs, DSecFnCallArgs, DSecFullVMRunArgs, DSecMicroVMRunArgs, Sandbox

TASK = "import sys; print(sum(int(word) for word in sys.stdin.read().split()))"
NUMBERS = "1 2 3 4 5 6 7 8 9 10"


class Answer(NamedTuple):
    stdout: str
    exit_code: int


async def machine(client: DSecClient, backend: str, base: str) -> Sandbox:
    match backend:
        case "container":
            return await client.run_container(DSecContainerRunArgs(base=base, ttl=600), timeout=300)
        case "microvm":
            return await client.run_microvm(DSecMicroVMRunArgs(base=base, memory_limit_mb=256, ttl=600), timeout=300)
        case "fullvm":
            return await client.run_fullvm(DSecFullVMRunArgs(base=base, memory_limit_mb=512, ttl=600), timeout=300)
    raise SystemExit(f"backend {backend!r}: want fncall, container, microvm or fullvm")


async def solve(client: DSecClient, backend: str, base: str) -> Answer:
    if backend == "fncall":
        done = await client.call(DSecFnCallArgs(runtime="python", code=TASK, stdin=NUMBERS))
        return Answer(done.stdout.decode(), done.exit_code)
    async with await machine(client, backend, base) as sandbox:
        result = await sandbox.run(["python3", "-c", TASK], stdin=NUMBERS.encode())
        return Answer(result.stdout.decode(), result.exit_code)


async def main(backend: str, base: str) -> None:
    async with DSecClient() as client:
        start = time.monotonic()
        answer = await solve(client, backend, base)
        print(f"{backend}: {answer.stdout.strip()} (exit code {answer.exit_code}) in {time.monotonic() - start:.2f} s")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    kind = sys.argv[1]
    asyncio.run(main(kind, sys.argv[2] if len(sys.argv) > 2 else "debian-vm" if kind == "fullvm" else "debian"))
