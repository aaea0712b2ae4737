"""What to create: one argument class per backend, with what they share in DSecRunArgs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from .codec import encode_octets, without_defaults
from .errors import InvalidArgument
from .network import NetworkLimits, NetworkRules, rules_to_json

_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DSecRunArgs:
    """What every backend takes. None means the node's default; what a node does not allow is refused, with its bounds.

    Use the class of a backend: DSecContainerRunArgs, DSecMicroVMRunArgs, DSecFullVMRunArgs.
    """

    backend: ClassVar[str]

    environment: str | None = None
    """A named environment. The fields below add to it: another base or workspace, toolkits on top of its own."""
    base: str | None = None
    """Base layer: NAME, NAME@VERSION, NAME@TAG, or a digest."""
    workspace: str | None = None
    """Layer stacked above the base: the task's repository and dependencies."""
    toolkits: Sequence[str] = ()
    """Layers stacked above the workspace: harness and tools, bottom to top."""

    layers: Sequence[str] = ()
    """Digests of all layers, bottom to top, instead of the above: what Pack.layers names."""
    snapshot: str | None = None
    """A snapshot's id, instead of layers: the disk of a sandbox as it was. It is made on the snapshot's node."""

    memory_limit_mb: float | None = None
    """Memory, in MiB."""
    cpu_cores_limit: float | None = None
    """CPU time, in cores."""
    pids_limit: int | None = None
    """Processes and threads."""
    disk_limit_mb: float | None = None
    """What may be written to the sandbox's disk, in MiB."""
    shm_limit_mb: float | None = None
    """Size of /dev/shm, in MiB; at most half of the memory."""
    io_read_bps: int | None = None
    """Bytes per second read from block devices."""
    io_write_bps: int | None = None
    """Bytes per second written to block devices."""

    ttl: float | None = None
    """Seconds from readiness to the end, whatever happens."""
    ttl_running_stop: float | None = None
    """Idle timeout, in seconds: the sandbox ends when it had no request for so long, no command or stream being
    active. It does not run out while the sandbox is paused."""
    on_timeout: Literal["stop", "pause"] | None = None
    """What happens when one of the two runs out. ``"pause"`` keeps it with its processes, to be woken by a request or
    ``resume``; it then has as much time to live as was set last."""
    paused_limit: float | None = None
    """Seconds that it may stay paused before it ends; 30 days where nothing is said."""
    manual_resume: bool = False
    """Only ``resume`` wakes it when it is paused; other requests raise FailedPrecondition."""

    init_user: str | int | None = None
    """Default user of commands: a name or id of the image, "name:group" or "uid:gid"."""
    workdir: str | None = None
    """Default working directory."""
    hostname: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of every command. Listed as they are: put secrets into ``secrets``."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Like env, but never in listings, logs or records, nor in this object's repr."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """What the sandbox is listed and stopped by."""
    network_rules: NetworkRules = field(default_factory=dict)
    """What the sandbox may reach: ``{"npm": False, "pypi": True}`` or ``["!npm", "pypi"]``; NetworkRules has the forms.
    What no rule allows is denied. Without rules, the defaults of its environment hold. Where neither allows anything it
    has loopback only, for good; else rules can be changed later (Sandbox.set_network). A rule that the node cannot
    carry out is refused."""
    network_limits: NetworkLimits | None = None
    """Bandwidth and connections: ``NetworkLimits(bandwidth_bps=10 << 20)``."""
    private_network: str | None = None
    """Name of a private network: sandboxes of one node that give the same reach each other on all ports, by name too,
    whatever their rules; nobody else does."""
    network_name: str | None = None
    """What the others there call it; else its hostname, else its id. Several may share a name."""
    no_new_privileges: bool = False
    """setuid programs (sudo) gain nothing."""

    def _image(self) -> str | None:
        """Image reference of the backends that take one."""
        return None

    def to_json(self, create_timeout: float | None = None, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The SandboxSpec of the wire contract."""
        return without_defaults(
            backend=f"BACKEND_{self.backend.upper()}",
            environment=without_defaults(
                name=self.environment,
                image=self._image(),
                base=self.base,
                workspace=self.workspace,
                toolkits=list(self.toolkits),
                layers=list(self.layers),
                snapshot=self.snapshot,
            ),
            limits=without_defaults(
                memoryBytes=_scaled(self.memory_limit_mb, _MIB, "memory_limit_mb"),
                cpuMillis=_scaled(self.cpu_cores_limit, 1000, "cpu_cores_limit"),
                pids=_scaled(self.pids_limit, 1, "pids_limit"),
                diskBytes=_scaled(self.disk_limit_mb, _MIB, "disk_limit_mb"),
                shmBytes=_scaled(self.shm_limit_mb, _MIB, "shm_limit_mb"),
                ioReadBps=_scaled(self.io_read_bps, 1, "io_read_bps"),
                ioWriteBps=_scaled(self.io_write_bps, 1, "io_write_bps"),
            ),
            env=dict(self.env),
            secrets=dict(self.secrets),
            labels={**self.labels, **(labels or {})},
            ttlSeconds=self.ttl,
            idleTimeoutSeconds=self.ttl_running_stop,
            onTimeout=None if self.on_timeout is None else f"ON_TIMEOUT_{self.on_timeout.upper()}",
            pausedSeconds=self.paused_limit,
            manualResume=self.manual_resume,
            createTimeoutSeconds=create_timeout,
            user=None if self.init_user is None else str(self.init_user),
            workdir=self.workdir,
            hostname=self.hostname,
            networkRules=rules_to_json(self.network_rules),
            networkLimits=self.network_limits.to_json() if self.network_limits is not None else None,
            privateNetwork=self.private_network,
            networkName=self.network_name,
            noNewPrivileges=self.no_new_privileges,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DSecContainerRunArgs(DSecRunArgs):
    """A container: fast and dense, shares the node's kernel."""

    backend: ClassVar[str] = "container"

    container_image: str | None = None
    """The reference that a base was imported from, or its name: short for ``base``. Give one of the two."""

    def _image(self) -> str | None:
        return self.container_image


@dataclass(frozen=True, slots=True, kw_only=True)
class DSecMicroVMRunArgs(DSecRunArgs):
    """A small virtual machine: the same environments behind a kernel of their own. It has no network yet."""

    backend: ClassVar[str] = "microvm"

    container_image: str | None = None
    """The reference that a base was imported from, or its name: short for ``base``. Give one of the two."""

    def _image(self) -> str | None:
        return self.container_image


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudInit:
    """What cloud-init finds in a full VM, on a disk labelled cidata (its source NoCloud); 1 MiB in all."""

    user_data: str | bytes = ""
    """A script, or a document that begins with ``#cloud-config``."""
    meta_data: str | bytes = ""
    """Lines of YAML, without instance-id and local-hostname: those are the sandbox's id and its ``hostname``."""
    network_config: str | bytes = ""
    """YAML, of version 1 or 2."""

    def to_json(self) -> dict[str, Any]:
        return without_defaults(
            userData=_octets(self.user_data),
            metaData=_octets(self.meta_data),
            networkConfig=_octets(self.network_config),
        )


def _octets(data: str | bytes) -> str:
    return encode_octets(data.encode() if isinstance(data, str) else data)


@dataclass(frozen=True, slots=True, kw_only=True)
class DSecFullVMRunArgs(DSecRunArgs):
    """A complete machine with a screen, started from ``base``: a disk (``dsec image import FILE --disk``).

    ``disk_limit_mb`` is the size of its disk, not less than the image's. Use it by ``Sandbox.screen``; by commands,
    files and ports as any other where its system has an agent (``--agent``), else those raise Unsupported. It has no
    network.
    """

    backend: ClassVar[str] = "fullvm"

    cloud_init: CloudInit | str | bytes | None = field(default=None, repr=False)
    """What cloud-init finds inside; a text is its user data. It is shown nowhere."""

    def to_json(self, create_timeout: float | None = None, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
        o = DSecRunArgs.to_json(self, create_timeout, labels)
        if self.cloud_init is not None:
            seed = self.cloud_init if isinstance(self.cloud_init, CloudInit) else CloudInit(user_data=self.cloud_init)
            o["cloudInit"] = seed.to_json()
        return o


def _scaled(value: float | None, unit: int, name: str) -> str | None:
    """An int64, as the wire writes it."""
    if value is None:
        return None
    try:
        scaled = round(value * unit)
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgument(f"{name}: {value!r} is not a finite number") from None
    if scaled <= 0:  # the wire's 0 is "the default": leave the limit out for that
        raise InvalidArgument(f"{name}: {value!r} must be above 0")
    return str(scaled)
