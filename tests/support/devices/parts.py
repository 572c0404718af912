"""The processes between devices and tables, each of which can be killed.

These are the broker with the Spark sink, the sink's reader process, a Spark driver with its child processes, and the
executors.
"""

import json
import os
import random
import signal
import subprocess
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from crashing import Crashing
from ports import free_port
from workspace import ROOT

SPARK: Final = ROOT / ".venv-spark"
TOKEN: Final = "devices-token-0123456789"
PARTITIONS: Final = 3
WAIT: Final = 120.0
SINK: Final = """\
  - use: spark_sink
    config:
      path: "{path}"
      streams:
        - {{name: devices, topics: ["d/#"], partitions: 3, segment_size: 512KiB, retention_time: 0}}
      api: {{bind: "127.0.0.1:{port}", access: [{{token: devices-token-0123456789}}]}}
"""
EXECUTOR: Final = b"CoarseGrainedExecutorBackend"
OVERLOADED: Final = "Python worker failed to connect back"


class Broker:
    """A broker that uses the same ports after every start."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.api_port = free_port()
        sink = SINK.format(path=folder / "streams", port=self.api_port)
        self._broker = Crashing(folder, "group", sink)
        self.port = self._broker.port = free_port()
        self.early = 0
        """Number of failed starts, because processes of the previous broker still held a port or a file."""

    @property
    def url(self) -> str:
        """Return the URL of the API that readers use."""
        return f"http://127.0.0.1:{self.api_port}"

    def start(self) -> None:
        """Start the broker and wait until it listens. If it cannot listen yet, start it again, as a supervisor would."""
        for _ in range(10):
            self._broker.spawn()
            try:
                self._broker.ready()
            except AssertionError as error:
                self._broker.ended()
                if "in use" not in str(error) and "another process" not in str(error):
                    raise
                self.early += 1
                threading.Event().wait(0.2)
                continue
            return
        raise AssertionError("the broker does not start")

    def kill(self, draw: random.Random) -> None:
        """Send SIGKILL to the broker and to a random choice of its child processes: none, some or all."""
        pids = [self._broker.process.pid]
        pids += draw.sample(others := children(pids[0]), draw.randint(0, len(others)))
        draw.shuffle(pids)
        for pid in pids:
            end(pid)
        self._broker.ended()

    def kill_reader(self) -> bool:
        """Send SIGKILL to the process that serves readers. Return False if there is none at the moment."""
        for pid in children(self._broker.process.pid):
            if b"hookmq_spark_sink.reader" in command(pid):
                return end(pid)
        return False

    def alive(self) -> bool:
        """Return whether the broker is still running."""
        return self._broker.process.poll() is None

    def stop(self) -> int:
        """Send SIGTERM, and return the exit code."""
        return self._broker.stop()

    def ends(self) -> tuple[str, dict[int, int]]:
        """Return the log's id and, for each partition, the offset that follows the last message."""
        request = urllib.request.Request(
            f"{self.url}/v1/streams/devices/offsets", headers={"Authorization": f"Bearer {TOKEN}"}
        )
        with urllib.request.urlopen(request, timeout=WAIT) as answer:
            found: dict[str, Any] = json.load(answer)
        return found["log_id"], {int(p): one["latest"] for p, one in found["partitions"].items()}


class Spark:
    """A Spark driver in its own process session."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said = folder / "spark.log"
        self.process: subprocess.Popen[bytes] | None = None
        home = folder / "home"
        home.mkdir(parents=True)
        # The executors of a local cluster write into a folder in Spark's home, so create a home for each driver. Leave
        # out the archives of Python modules: each process would compile what it imports from them. The environment's
        # own modules are already compiled.
        package = next((SPARK / "lib").glob("python3.*")) / "site-packages" / "pyspark"
        for one in package.iterdir():
            if one.name not in ("work", "python"):
                (home / one.name).symlink_to(one)
        self._environ = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(folder / "local"),
            "PYSPARK_PYTHON": str(SPARK / "bin" / "python"),
        }

    def start(self, arguments: Sequence[str | Path]) -> None:
        """Start the driver without waiting."""
        with self.said.open("ab") as said:
            self.process = subprocess.Popen(
                [SPARK / "bin" / "python", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
                cwd=self.folder,
                env=self._environ,
            )

    def ended(self) -> bool:
        """Return whether the driver gave up because Python took longer than 10 s to start. In that case, the caller
        restarts the driver.

        Raise AssertionError if the driver ended for any other reason.
        """
        assert self.process is not None
        code = self.process.poll()
        if code is None:
            return False
        assert OVERLOADED in self.end_of_log(), f"the driver ended with {code}: {self.end_of_log()}"
        self._gone()
        return True

    def end_of_log(self) -> str:
        """Return the last 4000 characters of the driver's output."""
        return self.said.read_text(errors="replace")[-4000:]

    def finish(self, seconds: float) -> int:
        """Wait until the driver ends on its own and return its exit code. Raise AssertionError after `seconds`."""
        assert self.process is not None
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it takes too long: {self.end_of_log()}") from None
        self._gone()
        return code

    def executors(self) -> list[int]:
        """Return the pids of the executors."""
        return [pid for pid in self._session() if EXECUTOR in command(pid)]

    def kill_executor(self, draw: random.Random) -> bool:
        """Send SIGKILL to one executor. Return False if there is none at the moment."""
        found = self.executors()
        return bool(found) and end(draw.choice(found))

    def kill(self) -> None:
        """Send SIGKILL to the driver's process group, which contains Python, Java and the executors."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(WAIT)
        self._gone()

    def close(self) -> None:
        """Kill the driver if it is still running."""
        if self.process is not None and self.process.poll() is None:
            self.kill()

    def _session(self) -> list[int]:
        assert self.process is not None
        return [pid for pid in pids() if session(pid) == self.process.pid]

    def _gone(self) -> None:
        """Wait until no process of the driver's OS session is left; kill any that remain after 10 s.

        The Python workers have their own process groups and exit after the JVM.
        """
        for _ in range(100):
            if not self._session():
                return
            threading.Event().wait(0.1)
        for pid in self._session():
            end(pid)


def written(table: Path) -> int:
    """Return the number of batches in a table, as recorded in the log of Delta or of Spark's file sink."""
    log = table / "_delta_log"
    try:
        names = os.listdir(log if log.exists() else table / "_spark_metadata")
    except OSError:
        return 0
    numbers = [name.partition(".")[0] for name in names if not name.endswith(".crc")]
    return max((int(number) + 1 for number in numbers if number.isdecimal()), default=0)


def batches(checkpoint: Path) -> int:
    """Return the number of the last batch that a query has finished, counted from 1, or 0 if it has finished none."""
    try:
        names = os.listdir(checkpoint / "commits")
    except OSError:
        return 0
    return max((int(name) + 1 for name in names if name.isdecimal()), default=0)


def pids() -> Iterator[int]:
    """Yield the pids of all processes."""
    return (int(name) for name in os.listdir("/proc") if name.isdecimal())


def session(pid: int) -> int:
    """Return the id of a process's session, or 0 if the process is gone or is a zombie."""
    try:
        state, _, _, found = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
    except OSError:
        return 0
    return 0 if state == "Z" else int(found)


def children(pid: int) -> list[int]:
    """Return the pids of a process's children."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found.update(map(int, task.read_text().split()))
        except OSError:
            pass
    return sorted(found)


def command(pid: int) -> bytes:
    """Return a process's command line, or an empty string if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def end(pid: int) -> bool:
    """Send SIGKILL. Return False if the process is gone."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
