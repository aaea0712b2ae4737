"""A sandbox from creation to its end.

    python examples/quickstart.py [IMAGE]

IMAGE is a base that the service has, for example one that was brought in by
`dsec image import docker://HOST/debian:bookworm`. The address and key of the service are those of `dsec up`, or
DSEC_URL and DSEC_API_KEY.
"""

import asyncio
import sys

from dsec import DSecClient, DSecContainerRunArgs


async def main(image: str) -> None:
    client = DSecClient()
    await client.open()

    args = DSecContainerRunArgs(
        container_image=image,
        memory_limit_mb=4096,
        cpu_cores_limit=4,
        ttl_running_stop=300,
        network_rules={"npm": False},
        init_user="root",
    )
    sandbox = await client.run_container(args, timeout=120)
    result = await sandbox.run_shell("echo hello world")
    print(result.output, end="")
    print("status", result.status)
    await sandbox.stop()

    await client.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "debian"))
