"""Use a desktop as somebody in front of it does: type a text into an editor, save it, and look.

    python examples/computer_use.py [BASE]

BASE is a desktop's disk: `dsec image import "$(hack/desktop-image.sh)" --disk --agent --name desktop`. What was typed
is read back as a file, by the agent inside, and seen as a change of the picture. The pictures are kept as before.png
and after.png. The address and key of the service are those of `dsec up`, or DSEC_URL and DSEC_API_KEY.
"""

import asyncio
import sys
from pathlib import Path

from dsec import DSecClient, DSecFullVMRunArgs, NotFound, Sandbox

TEXT = "Typed by a program: 6 * 7 = 42"


# What the window manager gives the keyboard to: a window may be there long before.
ACTIVE = """
export DISPLAY=:0
id=$(xprop -root _NET_ACTIVE_WINDOW | grep -o '0x[0-9a-f]*') && xprop -id "$id" WM_CLASS | grep -qi mousepad
"""


async def window(sandbox: Sandbox) -> None:
    """Wait until the editor's window is there and has the keyboard."""
    for _ in range(600):
        if (await sandbox.run_shell(ACTIVE)).exit_code == 0:
            return
        await asyncio.sleep(1)
    raise SystemExit("the editor has not come up")


async def settled(sandbox: Sandbox) -> bytes:
    """A picture of a screen that does not change any more."""
    last = b""
    for _ in range(60):
        shot = await sandbox.screen.screenshot()
        if shot.png == last:
            break
        last = shot.png
        await asyncio.sleep(1)
    return last


async def main(base: str) -> None:
    async with DSecClient() as client:
        args = DSecFullVMRunArgs(base=base, memory_limit_mb=1024, cpu_cores_limit=2, ttl=3600)
        async with await client.run_fullvm(args, timeout=1200) as sandbox:
            await window(sandbox)
            before = await settled(sandbox)
            width, height = await sandbox.screen.size()
            await sandbox.screen.click(width // 2, height // 2)
            await sandbox.screen.type(TEXT + "\n")
            await sandbox.screen.press("ctrl", "s")
            saved = ""
            for _ in range(120):
                try:
                    saved = (await sandbox.files.read("/root/note.txt")).decode()
                except NotFound:
                    saved = ""
                if TEXT in saved:
                    break
                await asyncio.sleep(1)
            after = await settled(sandbox)
            Path("before.png").write_bytes(before)
            Path("after.png").write_bytes(after)
            print(f"saved: {saved.strip()!r}")
            print(f"the picture of {width} by {height} has changed: {before != after}")
            if TEXT not in saved or before == after:
                raise SystemExit("what was typed did not arrive")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "desktop"))
