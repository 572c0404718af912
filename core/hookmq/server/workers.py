"""Several processes that are one broker: how many there are, and what differs in each of them.

The supervisor (`hookmq.server.supervisor`) starts the processes. Each TCP listener is opened by every worker with
SO_REUSEPORT, so the kernel distributes the connections. Workers share Unix sockets and those of the service manager.
An HTTP listener would answer for a random worker, so worker n listens on the port plus n.
"""

import json
import os
import socket
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, NamedTuple

from hookmq.hooks.registries import WorkerPlan
from hookmq.model.errors import ConfigError, PluginError
from hookmq.server.addresses import parse_bind
from hookmq.server.settings import HTTP, TYPES, ListenerSettings

VARIABLE: Final = "HOOKMQ_WORKER"
"""The environment variable that the supervisor passes to a worker."""
Count = int | Literal["auto"]


class PlannedWorkers(NamedTuple):
    """What a plugin has registered: its id, the number of processes, and its plan."""

    plugin: str
    wanted: Count
    plan: WorkerPlan


class WorkerPlans:
    """The plan for workers, if a plugin has registered one."""

    def __init__(self) -> None:
        self.found: PlannedWorkers | None = None

    def of(self, plugin: str) -> "PluginWorkers":
        """Return the registry for the plugin with the id `plugin`."""
        return PluginWorkers(self, plugin)


class PluginWorkers:
    """Takes the plan of one plugin; the argument of `register_workers`."""

    __slots__ = ("_plans", "_plugin")

    def __init__(self, plans: WorkerPlans, plugin: str) -> None:
        self._plans = plans
        self._plugin = plugin

    def set(self, count: Count, plan: WorkerPlan) -> None:
        """Run the broker as `count` processes, or as one for each CPU. Raises PluginError if `count` is less than 1, or
        if another plugin has called this.
        """
        found = self._plans.found
        if found is not None:
            raise PluginError(self._plugin, f"plugin {found.plugin!r} also registers workers")
        if count != "auto" and count < 1:
            raise PluginError(self._plugin, f"expected at least 1 worker, found {count}")
        self._plans.found = PlannedWorkers(self._plugin, count, plan)


def parse_count(text: str) -> Count:
    """Parse a number of workers. Raises ValueError unless it is ``auto`` or a positive number."""
    if text == "auto":
        return "auto"
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= 1024):
        raise ValueError(f"expected auto or a number from 1 to 1024, found {text!r}")
    return int(text)


def resolve_count(count: Count) -> int:
    """Return the number of workers. ``auto`` is the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if count == "auto" else count


class WorkerIdentity(NamedTuple):
    """What a process needs to know to be a worker.

    - `ports`: the actual ports of TCP listeners with port 0, by name.
    - `sockets`: the descriptors of listening sockets that all workers share, by listener name.
    - `alive`: a descriptor that reaches its end when the supervisor has ended.
    """

    number: int
    total: int
    ports: Mapping[str, int]
    sockets: Mapping[str, int]
    alive: int

    @property
    def name(self) -> str:
        """The worker's name: w0, w1 and so on."""
        return f"w{self.number}"

    def text(self) -> str:
        """Return the value for the environment variable."""
        return json.dumps(self._asdict())

    def open_sockets(self) -> dict[str, socket.socket]:
        """Return the shared sockets. Call this once."""
        found = {}
        for name, descriptor in self.sockets.items():
            os.set_inheritable(descriptor, False)
            found[name] = socket.socket(fileno=descriptor)
        return found

    def listeners(self, listeners: Sequence[ListenerSettings]) -> tuple[ListenerSettings, ...]:
        """Return the listeners as this worker opens them."""
        return tuple(map(self._adjusted, listeners))

    def _adjusted(self, listener: ListenerSettings) -> ListenerSettings:
        if listener.name in self.sockets or listener.type == "unix" or listener.type not in TYPES:
            return listener
        host, port = parse_bind(listener.bind)
        if listener.type in HTTP:
            port = port + self.number if port else 0
            return replace(listener, bind=_bind(host, port))
        port = port or self.ports.get(listener.name, 0)
        return replace(listener, bind=_bind(host, port), reuse_port=True)


def _bind(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def take_identity(environ: MutableMapping[str, str] = os.environ) -> WorkerIdentity | None:
    """Return this process's identity if it is a worker, and None otherwise. Removes the variable from `environ`, so that
    child processes do not use it.
    """
    text = environ.pop(VARIABLE, "")
    if not text:
        return None
    try:
        fields: dict[str, Any] = json.loads(text)
        return WorkerIdentity(**fields)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{VARIABLE}: only hookmq itself may set it: {error}") from error


def check_listeners(listeners: Sequence[ListenerSettings], count: int) -> None:
    """Raise ConfigError if workers cannot share one of `listeners`."""
    for listener in listeners:
        what, kind = f"listener {listener.name!r}", listener.type
        if kind not in TYPES:
            raise ConfigError(f"{what}: workers cannot share a plugin's listener of type {kind}")
        if kind in HTTP:
            first = parse_bind(listener.bind)[1]
            last = first + count - 1
            if last > 65535:
                raise ConfigError(
                    f"{what}: the ports {first} to {last} of the workers exceed 65535"
                )


def state_folder(worker: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the value of STATE_DIRECTORY for a worker: the default folder for its plugins' data. Return '' if the user
    has no home directory.
    """
    service = environ.get("STATE_DIRECTORY", "").partition(":")[0]
    if service:
        return os.path.join(service, "workers", worker)
    state = environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):
        state = os.path.expanduser("~/.local/state")
    return os.path.join(state, "hookmq", "workers", worker) if os.path.isabs(state) else ""
