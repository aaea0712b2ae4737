"""A real node for the tests: started, given a base image, ended, and looked after for what it leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from dsec.sync import DSecClient

REPOSITORY = Path(__file__).resolve().parents[3]
BASE_PACKAGES = ("git", "procps", "python3", "python3-pytest")
BASE = "pytest-debian"


def binary() -> Path:
    """The dsec program: DSEC_BIN, or the repository's own."""
    return Path(os.environ.get("DSEC_BIN") or REPOSITORY / "bin" / "dsec")


def missing() -> str:
    """What a node needs and this machine lacks; empty when it has all."""
    if os.geteuid() != 0:
        return "root"
    return "" if binary().exists() else f"{binary()} (make build)"


@dataclass
class Node:
    """A node with its state in one directory."""

    state: Path
    url: str = ""
    key: str = ""
    groups: list[Path] = field(default_factory=list)

    @classmethod
    def start(cls, state: Path, *opts: str) -> Node:
        node = cls(state)
        up = ["up", "--listen", "127.0.0.1:0", "--ports-listen", "127.0.0.1:0", "--no-user-config", "--detach"]
        for opt in opts:
            up += ["--opt", opt]
        node.dsec(*up)
        config = json.loads((state / "client.json").read_text())
        node.url, node.key = config["url"], config["key"]
        o = json.loads((state / "run" / "cgroups.json").read_text())
        node.groups = [Path(p) for p in (o["v2"], *o.get("v1", {}).values()) if p]
        return node

    def import_base(self) -> None:
        """Bring in the Debian base that the repository's tests share; it is made once and kept in DSEC_CACHE."""
        tar = subprocess.run(
            [REPOSITORY / "hack" / "debian-base.sh", *BASE_PACKAGES], check=True, stdout=subprocess.PIPE, text=True
        ).stdout.strip()
        with DSecClient(self.url, self.key) as client:
            client.layers.upload_layer(tar, "base", BASE)

    def kill(self, *roles: str) -> None:
        """End roles of the node without warning; it starts them again."""
        up = json.loads((self.state / "run" / "up.json").read_text())
        for role in up["roles"]:
            if role["name"] in roles:
                os.kill(role["pid"], signal.SIGKILL)

    def stop(self) -> list[str]:
        """End the node and return what it left behind."""
        self.dsec("down")
        return self.leftovers()

    def dsec(self, verb: str, *args: str) -> str:
        """Run a verb on this node's state directory."""
        done = subprocess.run(
            [binary(), verb, "--state", self.state, *args],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"dsec {verb}: exit {done.returncode}\n{done.stdout}{done.stderr}\n{self.logs()}")
        return done.stdout

    def logs(self) -> str:
        """The ends of its logs."""
        files = sorted((self.state / "log").glob("*.log"))
        return "\n".join(f"--- {f.name}\n{f.read_text(errors='replace')[-3000:]}" for f in files)

    def leftovers(self) -> list[str]:
        """Processes, mounts, loop devices and control groups of this node."""
        state = str(self.state)
        found = [f"control group {g}" for g in self.groups if g.exists()]
        for p in Path("/proc").glob("[0-9]*"):
            try:
                line = (p / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                exe = os.readlink(p / "exe")
            except OSError:
                continue  # it has ended, or is a kernel thread
            if exe.startswith(state) or (Path(exe).name.startswith("dsec") and state in line):
                found.append(f"process {p.name}: {line}")
        mounts = [line.split(" ")[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        found += [f"mount {m}" for m in mounts if m.startswith(state + "/")]
        for f in Path("/sys/block").glob("loop*/loop/backing_file"):
            try:
                backing = f.read_text().strip()
            except OSError:
                continue
            if backing.startswith(state + "/"):
                found.append(f"loop device over {backing}")
        return found
