"""The examples, run as their texts say, on a real node. Those of whole machines: DSEC_TEST_SLOW=1."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dsec import DSecClient

from .node import BASE, REPOSITORY

pytestmark = pytest.mark.node

slow = pytest.mark.skipif(not os.environ.get("DSEC_TEST_SLOW"), reason="boots whole machines: DSEC_TEST_SLOW=1")


async def run(client: DSecClient, where: Path, name: str, *args: str, patience: float = 120) -> str:
    """What an example says."""
    env = dict(os.environ, DSEC_URL=client.url, DSEC_API_KEY=client._t.config.key)
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        REPOSITORY / "sdk" / "python" / "examples" / name,
        *args,
        cwd=where,
        env=env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        out, _ = await asyncio.wait_for(child.communicate(), patience)
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    assert child.returncode == 0, out.decode()
    return out.decode()


async def disk(client: DSecClient, script: str, name: str) -> None:
    """Bring in a disk that a script makes, once for all runs."""
    command = [REPOSITORY / "hack" / script]
    made = await asyncio.to_thread(subprocess.run, command, check=True, stdout=subprocess.PIPE, text=True)
    await client.layers.upload_layer(made.stdout.strip(), "base", name, format="disk", agent=True)


async def test_function_calls(client: DSecClient, tmp_path: Path) -> None:
    await client.set_runtime("python", BASE)
    assert "fncall: 55 (exit code 0)" in await run(client, tmp_path, "four_backends.py", "fncall")


async def test_container(client: DSecClient, tmp_path: Path) -> None:
    assert "container: 55 (exit code 0)" in await run(client, tmp_path, "four_backends.py", "container", BASE)


@slow
async def test_microvm(client: DSecClient, tmp_path: Path) -> None:
    said = await run(client, tmp_path, "four_backends.py", "microvm", BASE, patience=400)
    assert "microvm: 55 (exit code 0)" in said


@slow
async def test_fullvm(client: DSecClient, tmp_path: Path) -> None:
    await disk(client, "debian-vm.sh", "pytest-vm")
    said = await run(client, tmp_path, "four_backends.py", "fullvm", "pytest-vm", patience=1200)
    assert "fullvm: 55 (exit code 0)" in said


@slow
async def test_computer_use(client: DSecClient, tmp_path: Path) -> None:
    await disk(client, "desktop-image.sh", "pytest-desktop")
    said = await run(client, tmp_path, "computer_use.py", "pytest-desktop", patience=2400)
    assert "saved: 'Typed by a program" in said
    assert (tmp_path / "before.png").read_bytes() != (tmp_path / "after.png").read_bytes()
