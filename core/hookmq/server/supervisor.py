"""Run a broker as several worker processes behind the same listeners.

The supervisor starts the workers, restarts those that end or hang, passes signals on, and merges their logs. It handles
no connection. If it is killed, the workers stop as after SIGTERM.
"""

import asyncio
import os
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGTERM, SIGUSR1, Signals
from typing import Final

from hookmq.hooks.registries import WorkerPlan
from hookmq.server.settings import HTTP, ListenerSettings
from hookmq.server.sockets import open_socket, unlink_socket
from hookmq.server.systemd import inherited_sockets, notify, watchdog_interval
from hookmq.server.worker_process import WorkerProcess
from hookmq.server.workers import VARIABLE, WorkerIdentity, check_listeners, state_folder

FIRST_PAUSE: Final = 0.5
"""Seconds until a worker that has ended is started again. Doubles each time."""
LONGEST_PAUSE: Final = 30.0
STABLE: Final = 60.0
"""After a worker has run for this many seconds, the next pause is short again."""
BEAT: Final = 30.0
"""Seconds without a sign of life after which a worker is killed."""
GRACE: Final = 15.0
"""Seconds that a worker may take to stop, in addition to twice ``broker.shutdown_timeout``."""
_HIDDEN: Final = (
    "NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", VARIABLE,
)  # fmt: skip
"""Environment variables that are for the supervisor, and not for workers."""
Log = Callable[..., None]
MakeCommand = Callable[[str], Sequence[str]]
"""Returns the command line of a worker, by its name. Called each time that it starts."""
MakeEnviron = Callable[[str], Mapping[str, str]]
"""Returns the environment variables of a worker that differ from those of the supervisor, in the same way."""


class Supervisor:
    """Runs `count` workers with the command lines and variables that `command` and `environ` return. `listeners` are
    those of the configuration.
    """

    def __init__(
        self,
        count: int,
        plan: WorkerPlan,
        listeners: Sequence[ListenerSettings],
        command: MakeCommand,
        environ: MakeEnviron,
        shutdown_timeout: float,
        log: Log,
    ) -> None:
        check_listeners(listeners, count)
        self._count = count
        self._plan = plan
        self._listeners = listeners
        self._command = command
        self._variables = environ
        self._patience = 2 * shutdown_timeout + GRACE
        self._log = log
        self._workers: list[WorkerProcess] = []
        self._stopping = asyncio.Event()
        self._started = False
        """Whether all workers have been ready once."""
        self._hurry = False
        """Whether workers were asked a second time to stop. The signal may then end one that is almost done."""
        self._code = 0
        self._reserved: dict[str, socket.socket] = {}
        """Sockets that only reserve the ports of TCP listeners, by listener name."""
        self._shared: dict[str, socket.socket] = {}
        self._inodes: dict[str, int] = {}
        """The inodes of Unix socket files to remove, by path."""
        self._alive = (-1, -1)
        self._kill: asyncio.TimerHandle | None = None
        self._tick: asyncio.TimerHandle | None = None

    async def run(self) -> int:
        """Run until SIGTERM or SIGINT, and return the exit code: 0 if all workers ended with 0, otherwise that of the
        first that did not. Raises what the plan's `start` raises, and BindError.

        A worker that ends before all have started ends the others too: the configuration or the store cannot be used.
        """
        loop = asyncio.get_running_loop()
        handlers: dict[Signals, Callable[[], None]] = {
            SIGTERM: self.request_stop,
            SIGINT: self.request_stop,
            SIGHUP: lambda: self._signal(SIGHUP),
            SIGUSR1: lambda: self._signal(SIGUSR1),
        }
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            await self._run()
        finally:
            for timer in (self._kill, self._tick):
                if timer is not None:
                    timer.cancel()
            await self._plan.stop()
            self._close()
            for number in handlers:
                loop.remove_signal_handler(number)
        return self._code

    async def _run(self) -> None:
        self._open()
        starting = asyncio.ensure_future(self._plan.start())
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not starting.done():
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            return
        await starting
        with tempfile.TemporaryDirectory(prefix="hookmq-") as folder:
            for index in range(self._count):
                name = f"w{index}"
                spawned = partial(self._spawned, name)
                path = str(Path(folder, name))
                worker = WorkerProcess(name, path, self._changed, spawned=spawned)
                self._workers.append(worker)
            self._watch()
            try:
                await asyncio.gather(*(self._keep(n, one) for n, one in enumerate(self._workers)))
            finally:
                for worker in self._workers:
                    worker.kill()
                    worker.close()

    def request_stop(self) -> None:
        """Stop the workers. A second call makes them stop without waiting for clients."""
        self._hurry = self._stopping.is_set()
        if not self._hurry:
            self._stopping.set()
            notify("STOPPING=1")
            self._log("info", "workers.stopping")
            loop = asyncio.get_running_loop()
            self._kill = loop.call_later(self._patience, self._lose_patience)
        self._signal(SIGTERM)

    def _signal(self, number: Signals) -> None:
        for worker in self._workers:
            worker.signal(number)

    def _lose_patience(self) -> None:
        for worker in self._workers:
            if worker.pid:
                self._log("error", "worker.killed", worker=worker.name, why="did not stop in time")
                worker.kill()

    async def _keep(self, index: int, worker: WorkerProcess) -> None:
        """Run the worker until the supervisor stops."""
        loop = asyncio.get_running_loop()
        pause = FIRST_PAUSE
        while not self._stopping.is_set():
            try:
                command = self._command(worker.name)
                fds = [sock.fileno() for sock in self._shared.values()] + [self._alive[0]]
                code = await worker.run(command, self._environ(index, worker), fds)
            except OSError as error:
                self._log("error", "worker.not_started", worker=worker.name, error=str(error))
                code = 1
            if self._stopping.is_set():
                if code != -SIGTERM or not self._hurry:
                    self._code = self._code or _exit_code(code)
                return
            if not self._started:
                self._log("error", "worker.failed", worker=worker.name, reason=_reason(code))
                self._code = _exit_code(code) or 1
                self.request_stop()
                return
            if loop.time() - worker.started >= STABLE:
                pause = FIRST_PAUSE
            self._log(
                "warning", "worker.ended", worker=worker.name, reason=_reason(code), restart_in=pause
            )  # fmt: skip
            try:
                await asyncio.wait_for(self._stopping.wait(), pause)
            except TimeoutError:
                pause = min(2 * pause, LONGEST_PAUSE)

    def _spawned(self, worker: str, pid: int) -> None:
        self._log("info", "worker.spawned", worker=worker, process=pid)

    def _changed(self) -> None:
        """Report to the service manager once all workers are ready."""
        if not self._started and all(worker.ready for worker in self._workers):
            self._started = True
            notify("READY=1")
            self._log("info", "workers.started", workers=self._count)

    def _watch(self) -> None:
        """Kill workers that hang, and show the service manager that the supervisor does not."""
        loop = asyncio.get_running_loop()
        for worker in self._workers:
            if worker.ready and worker.pid and loop.time() - worker.beat > BEAT:
                self._log(
                    "error", "worker.killed", worker=worker.name, why=f"silent for {BEAT:g} s"
                )
                worker.kill()
        interval = watchdog_interval()
        if interval:
            notify("WATCHDOG=1")
        self._tick = loop.call_later(min(interval or BEAT, BEAT) / 4, self._watch)

    def _environ(self, index: int, worker: WorkerProcess) -> Mapping[str, str]:
        environ = {name: text for name, text in os.environ.items() if name not in _HIDDEN}
        ports = {name: sock.getsockname()[1] for name, sock in self._reserved.items()}
        shared = {name: sock.fileno() for name, sock in self._shared.items()}
        identity = WorkerIdentity(index, self._count, ports, shared, self._alive[0])
        environ |= self._variables(worker.name)
        environ[VARIABLE] = identity.text()
        environ["NOTIFY_SOCKET"] = worker.notify_path
        environ["WATCHDOG_USEC"] = str(int(BEAT * 1e6))
        folder = state_folder(worker.name)
        if folder:
            environ["STATE_DIRECTORY"] = folder
        return environ

    def _open(self) -> None:
        """Reserve the ports of TCP listeners, and open the sockets that the workers share. Raises BindError."""
        self._alive = os.pipe()
        self._shared = inherited_sockets()
        for listener in self._listeners:
            if listener.type in HTTP or listener.name in self._shared:
                continue
            if listener.type == "unix":
                self._shared[listener.name] = open_socket(listener)
                self._inodes[listener.bind] = os.lstat(listener.bind).st_ino
            else:
                shared = replace(listener, reuse_port=True)
                self._reserved[listener.name] = open_socket(shared, listen=False)

    def _close(self) -> None:
        for sock in (*self._reserved.values(), *self._shared.values()):
            sock.close()
        for path, inode in self._inodes.items():
            unlink_socket(path, inode)
        for descriptor in self._alive:
            if descriptor >= 0:
                os.close(descriptor)


def _exit_code(code: int) -> int:
    """Return the exit code for a worker's. One that was killed failed."""
    return code if code >= 0 else 1


def _reason(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
