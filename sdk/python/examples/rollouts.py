"""Many sandboxes at once: create, run in all, tell infrastructure from task failures, stop all.

python examples/rollouts.py IMAGE COUNT
"""

import asyncio
import sys
import uuid

from dsec import Blame, DSecClient, DSecContainerRunArgs, DSecError, Sandbox


async def rollout(sandbox: Sandbox) -> str:
    async with sandbox, sandbox.session() as shell:
        await shell.run_shell("cd /tmp && export SEED=1", check=True)
        await sandbox.files.write("/tmp/step.py", "import os; print('seed', os.environ['SEED'])")
        result = await shell.run_shell("python3 step.py", timeout=60)
        return "passed" if result.ok else f"failed: {result.failure}"


async def main(image: str, count: int) -> None:
    job = uuid.uuid4().hex
    args = DSecContainerRunArgs(container_image=image, memory_limit_mb=512, ttl=600, labels={"job": job})
    async with DSecClient() as client:
        try:
            made = await client.run_containers(args, count, timeout=120)
            outcomes = await asyncio.gather(
                *(rollout(s) for s in made if isinstance(s, Sandbox)), return_exceptions=True
            )
            for outcome in [*outcomes, *(e for e in made if isinstance(e, DSecError))]:
                again = isinstance(outcome, DSecError) and outcome.blame is Blame.INFRA
                print(outcome, "(try again: not the task's fault)" if again else "")
        finally:
            await client.stop_all({"job": job})


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
