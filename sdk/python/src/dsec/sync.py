"""The same SDK for programs without an event loop.

::

    from dsec import DSecContainerRunArgs
    from dsec.sync import DSecClient

    with DSecClient() as client:
        args = DSecContainerRunArgs(container_image="debian", memory_limit_mb=4096)
        with client.run_container(args, timeout=120) as sandbox:
            print(sandbox.run_shell("echo hello world").output)

Every class and method is that of the package ``dsec``, without await: documentation, parameters, results and errors
are the same. A client may be used by many threads at once; after a fork, each process needs its own. Callbacks are
called in the client's thread and must not call the client.

For a raw connection to a port inside, connect to the address of a Forward.
"""

from __future__ import annotations

import builtins
import ssl
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from . import client, command, environments, files, layers, network_defaults, ports, sandbox, screen, session
from .bridge import Face, Loop, ManagedFace, call, call_as, iterate, make_as
from .errors import DSecError
from .results import CommandEnd, Output
from .values import FileEvent

_call = call  # inside the client's class, "call" is a method

__all__ = [
    "Command",
    "DSecClient",
    "Environments",
    "Files",
    "Forward",
    "Layers",
    "Sandbox",
    "Session",
    "Terminal",
    "Watch",
]


class Command(Face[command.Command]):
    __doc__ = command.Command.__doc__

    @property
    def id(self) -> str:
        """The command's id."""
        return self._inner.id

    @property
    def operation_id(self) -> str:
        """The client's id of the operation that started it."""
        return self._inner.operation_id

    @property
    def end(self) -> CommandEnd | None:
        """How it ended, once this handle has seen it."""
        return self._inner.end

    def __iter__(self) -> Iterator[Output]:
        return self.output()

    output = iterate(command.Command.output)
    wait = call(command.Command.wait)
    info = call(command.Command.info)
    signal = call(command.Command.signal)
    kill = call(command.Command.kill)
    send_input = call(command.Command.send_input)
    close_input = call(command.Command.close_input)


class Terminal(Command):
    __doc__ = command.Terminal.__doc__

    def __init__(self, loop: Loop, inner: command.Terminal) -> None:
        super().__init__(loop, inner)
        self._terminal = inner

    def resize(self, columns: int, rows: int) -> None:
        """Tell it its new size."""
        self._loop.run(self._terminal.resize(columns, rows))


class Session(ManagedFace[session.Session]):
    __doc__ = session.Session.__doc__

    @property
    def id(self) -> str:
        """The session's id."""
        return self._inner.id

    def open(self) -> Self:
        """Start the shell."""
        self._loop.run(self._inner.open())
        return self

    run_shell = call(session.Session.run_shell)
    close = call(session.Session.close)


class Forward(ManagedFace[ports.Forward]):
    __doc__ = ports.Forward.__doc__

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens: host and port."""
        return self._inner.address

    @property
    def url(self) -> str:
        """http://HOST:PORT of the listener."""
        return self._inner.url

    def open(self) -> Self:
        """Start listening."""
        self._loop.run(self._inner.open())
        return self

    close = call(ports.Forward.close)


class Watch(ManagedFace[files.Watch]):
    __doc__ = files.Watch.__doc__

    def open(self) -> Self:
        """Begin to watch."""
        self._loop.run(self._inner.open())
        return self

    def __iter__(self) -> Iterator[FileEvent]:
        return self.events()

    events = iterate(files.Watch.events)
    close = call(files.Watch.close)


class Files(Face[files.Files]):
    __doc__ = files.Files.__doc__

    read = call(files.Files.read)
    read_text = call(files.Files.read_text)
    stream = iterate(files.Files.stream)
    download = call(files.Files.download)
    write = call(files.Files.write)
    upload = call(files.Files.upload)
    stat = call(files.Files.stat)
    exists = call(files.Files.exists)
    list = call(files.Files.list)
    mkdir = call(files.Files.mkdir)
    move = call(files.Files.move)
    remove = call(files.Files.remove)
    watch = make_as(Watch, files.Files.watch)
    upload_dir = call(files.Files.upload_dir)
    download_dir = call(files.Files.download_dir)


class Screen(Face[screen.Screen]):
    __doc__ = screen.Screen.__doc__

    screenshot = call(screen.Screen.screenshot)
    size = call(screen.Screen.size)
    text = call(screen.Screen.text)
    type = call(screen.Screen.type)
    press = call(screen.Screen.press)
    move = call(screen.Screen.move)
    click = call(screen.Screen.click)
    scroll = call(screen.Screen.scroll)


class Sandbox(ManagedFace[sandbox.Sandbox]):
    __doc__ = sandbox.Sandbox.__doc__

    @property
    def id(self) -> str:
        """The sandbox's id."""
        return self._inner.id

    @property
    def files(self) -> Files:
        """Its files."""
        return Files(self._loop, self._inner.files)

    @property
    def screen(self) -> Screen:
        """Its screen, keyboard and pointer, if it is a full VM."""
        return Screen(self._loop, self._inner.screen)

    run_shell = call(sandbox.Sandbox.run_shell)
    run = call(sandbox.Sandbox.run)
    start = call_as(Command, sandbox.Sandbox.start)
    pty = call_as(Terminal, sandbox.Sandbox.pty)
    commands = iterate(sandbox.Sandbox.commands)
    attach = make_as(Command, sandbox.Sandbox.attach)
    session = make_as(Session, sandbox.Sandbox.session)
    sessions = call(sandbox.Sandbox.sessions)
    forward = make_as(Forward, sandbox.Sandbox.forward)
    set_network = call(sandbox.Sandbox.set_network)
    explain_network = call(sandbox.Sandbox.explain_network)
    snapshot = call(sandbox.Sandbox.snapshot)
    fork = call_as(lambda loop, made: _outcomes(loop, made), sandbox.Sandbox.fork)
    pack_diff = call(sandbox.Sandbox.pack_diff)
    info = call(sandbox.Sandbox.info)
    stats = call(sandbox.Sandbox.stats)
    pause = call(sandbox.Sandbox.pause)
    resume = call(sandbox.Sandbox.resume)
    extend = call(sandbox.Sandbox.extend)
    events = iterate(sandbox.Sandbox.events)
    stop = call(sandbox.Sandbox.stop)


class Layers(Face[layers.Layers]):
    __doc__ = layers.Layers.__doc__

    list = call(layers.Layers.list)
    import_image = call(layers.Layers.import_image)
    upload_layer = call(layers.Layers.upload_layer)
    import_git = call(layers.Layers.import_git)
    build_image = call(layers.Layers.build_image)
    delete = call(layers.Layers.delete)
    get = call(layers.Layers.get)
    tag = call(layers.Layers.tag)
    diff = call(layers.Layers.diff)
    verify = call(layers.Layers.verify)
    collapse = call(layers.Layers.collapse)
    gc = call(layers.Layers.gc)


class Environments(Face[environments.Environments]):
    __doc__ = environments.Environments.__doc__

    create = call(environments.Environments.create)
    list = call(environments.Environments.list)
    inspect = call(environments.Environments.inspect)
    diff = call(environments.Environments.diff)
    verify = call(environments.Environments.verify)
    delete = call(environments.Environments.delete)


class NetworkDefaults(Face[network_defaults.NetworkDefaults]):
    __doc__ = network_defaults.NetworkDefaults.__doc__

    set = call(network_defaults.NetworkDefaults.set)
    remove = call(network_defaults.NetworkDefaults.remove)
    list = call(network_defaults.NetworkDefaults.list)


def _outcomes(loop: Loop, results: builtins.list[sandbox.Sandbox | DSecError]) -> builtins.list[Sandbox | DSecError]:
    return [r if isinstance(r, DSecError) else Sandbox(loop, r) for r in results]


class DSecClient(Face[client.DSecClient]):
    __doc__ = client.DSecClient.__doc__

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = 60.0,
        retry_for: float = 90.0,
        max_connections: int = 2000,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        inner = client.DSecClient(
            url,
            api_key,
            timeout=timeout,
            retry_for=retry_for,
            max_connections=max_connections,
            ssl_context=ssl_context,
        )
        super().__init__(Loop(), inner)

    @property
    def url(self) -> str:
        """Address of the service."""
        return self._inner.url

    @property
    def environments(self) -> Environments:
        """Named environments."""
        return Environments(self._loop, self._inner.environments)

    @property
    def network_defaults(self) -> NetworkDefaults:
        """What sandboxes made of a name of the catalogue may reach."""
        return NetworkDefaults(self._loop, self._inner.network_defaults)

    @property
    def layers(self) -> Layers:
        """The catalogue of bases, workspaces and toolkits."""
        return Layers(self._loop, self._inner.layers)

    def open(self, timeout: float | None = None) -> Self:
        """Find the service and check that it answers and takes the key. A client that was closed stays closed."""
        self._loop.run(self._inner.open(timeout))
        return self

    def close(self) -> None:
        """Close the connections and end the client's thread. Sandboxes live on."""
        if not self._loop.closed:
            self._loop.run(self._inner.close())
            self._loop.close()

    def __enter__(self) -> Self:
        try:
            return self.open()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    run_container = call_as(Sandbox, client.DSecClient.run_container)
    run_containers = call_as(_outcomes, client.DSecClient.run_containers)
    run_microvm = call_as(Sandbox, client.DSecClient.run_microvm)
    run_fullvm = call_as(Sandbox, client.DSecClient.run_fullvm)
    sandbox = make_as(Sandbox, client.DSecClient.sandbox)
    get = call_as(Sandbox, client.DSecClient.get)
    list = iterate(client.DSecClient.list)
    stop_all = call(client.DSecClient.stop_all)
    call = call(client.DSecClient.call)
    judge = _call(client.DSecClient.judge)
    call_batch = iterate(client.DSecClient.call_batch)
    judge_batch = iterate(client.DSecClient.judge_batch)
    runtimes = _call(client.DSecClient.runtimes)
    set_runtime = _call(client.DSecClient.set_runtime)
    snapshots = _call(client.DSecClient.snapshots)
    delete_snapshot = _call(client.DSecClient.delete_snapshot)
    pack_snapshot = _call(client.DSecClient.pack_snapshot)
    events = iterate(client.DSecClient.events)
    node = _call(client.DSecClient.node)
