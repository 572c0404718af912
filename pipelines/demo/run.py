"""Run a broker, 1,000 devices and the pipeline on this machine, and show the growing gold table.

make demo-spark                                              runs until Ctrl-C
.venv-spark/bin/python pipelines/demo/run.py --seconds 60    fails unless gold has rows
"""

import argparse
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
HOOKMQ: Final = ROOT / ".venv" / "bin" / "hookmq"
PATIENCE: Final = 60.0
"""Seconds that a part may take to start or stop."""
SHOWN: Final = 6
"""Number of rows to show from the newest window."""


class Ended(Exception):
    """A part of the demo has ended unexpectedly."""


class Part:
    """A process in its own session. Ctrl-C reaches only this program, which stops the parts in order."""

    def __init__(self, name: str, *command: str | Path, folder: Path) -> None:
        self.name = name
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.said: list[str] = []
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said = [*self.said[-19:], line.rstrip()]
            self.lines.put(line)
        self.lines.put("")

    def check(self) -> None:
        """Raise Ended if the process has ended."""
        code = self.process.poll()
        if code is not None:
            raise Ended(self.ended(code))

    def ended(self, code: int) -> str:
        """Return a message which says that the process has ended, and why."""
        return f"{self.name} ended with {code}; the last that it said:\n  " + "\n  ".join(self.said)

    def next_line(self) -> str:
        """Return the next line of the process's output. Raises Ended if there is none."""
        line = self.lines.get(timeout=PATIENCE)
        if not line:
            self.process.wait(PATIENCE)
            self.check()
        return line

    def stop(self) -> None:
        """Ask the process to end, and wait. If it does not end, kill it and its children."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(PATIENCE)
            print(f"{self.name} stopped" if code == 0 else self.ended(code))
        except subprocess.TimeoutExpired:
            print(f"{self.name} did not stop: killed")
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self._reader.join(PATIENCE)


def start_broker(folder: Path) -> tuple[Part, int, int]:
    """Start a broker with the `spark_sink` plugin. Return it with its ports for MQTT and the read API."""
    command = (HOOKMQ, "serve", "--log-format", "json", "-c", HERE / "broker.yaml")
    part = Part("broker", *command, folder=folder)
    api = 0
    try:
        while True:
            entry: dict[str, Any] = json.loads(part.next_line())
            if entry["event"] == "spark_sink.serving":
                api = entry["port"]
            if entry["event"] == "node.started":
                return part, int(entry["listeners"]["tcp"].rpartition(":")[2]), api
    except BaseException:
        part.stop()
        raise


class Gold:
    """Reads the growing gold table."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.version = -1
        self.rows = 0
        self.before = 0
        """Number of silver rows that were reported before gold had any."""

    def show(self) -> None:
        """Print new rows, if any."""
        try:
            table = DeltaTable(str(self.folder / "gold"))
        except TableNotFoundError:
            if (silver := self.count("silver")) != self.before:
                self.before = silver
                print(f"silver: {silver:,} rows; no window is over yet", flush=True)
            return
        if table.version() == self.version:
            return
        self.version = table.version()
        rows = table.to_pyarrow_table().to_pylist()
        if len(rows) == self.rows:
            return
        newest = max(row["window_start"] for row in rows)
        print(
            f"\ngold: {len(rows):,} rows (+{len(rows) - self.rows:,}), newest window {newest:%H:%M:%S}; "
            f"silver: {self.count('silver'):,}; dead letters: {self.count('dead_letter'):,}"
        )
        self.rows = len(rows)
        print(f"  {'device':<12}{'metric':<10}{'count':>6}{'min':>9}{'avg':>9}{'max':>9}")
        last = [row for row in rows if row["window_start"] == newest]
        last.sort(key=lambda row: (row["device"], row["metric"]))
        for row in last[:SHOWN]:
            print(
                f"  {row['device']:<12}{row['metric']:<10}{row['count']:>6}"
                f"{row['min']:>9.2f}{row['avg']:>9.2f}{row['max']:>9.2f}"
            )
        print(f"  ... {len(last):,} rows of this window", flush=True)

    def count(self, name: str) -> int:
        """Return the number of rows in another table."""
        try:
            table = DeltaTable(str(self.folder / name))
        except TableNotFoundError:
            return 0
        return sum(table.get_add_actions(flatten=True).column("num_records").to_pylist())


def demo(folder: Path, devices: int, seconds: float, rows: float) -> int:
    """Run the demo until a signal arrives, or until a number of seconds or gold rows is reached.

    Return 0 if gold has rows or there was no limit.
    """
    stopped = threading.Event()
    for which in (signal.SIGINT, signal.SIGTERM):
        signal.signal(which, lambda *_: stopped.set())
    until = time.monotonic() + seconds
    gold = Gold(folder)
    with ExitStack() as parts:
        broker, mqtt, api = start_broker(folder)
        parts.callback(broker.stop)
        print(
            f"broker: mqtt://127.0.0.1:{mqtt}, read API http://127.0.0.1:{api}, files in {folder}"
        )
        fleet = Part(
            "fleet", sys.executable, HERE / "fleet.py", "--port", str(mqtt), "--devices", str(devices),
            folder=folder,
        )  # fmt: skip
        parts.callback(fleet.stop)
        print(f"fleet: {fleet.next_line()}", end="")
        pipeline = Part(
            "pipeline", sys.executable, "-m", "mqtt_pipelines", "run", "bronze", "silver", "gold",
            "-c", HERE / "pipeline.yaml", "-o", f"source.mqtt.url=http://127.0.0.1:{api}",
            folder=folder,
        )  # fmt: skip
        parts.callback(pipeline.stop)
        print(
            "pipeline: bronze, silver, gold; the first windows take half a minute or more, Ctrl-C stops",
            flush=True,
        )
        while not stopped.wait(1.0) and time.monotonic() < until and gold.rows < rows:
            for part in (broker, fleet, pipeline):
                part.check()
            gold.show()
        print(flush=True)
    if seconds != float("inf") and not gold.rows:
        print(
            f"there was no row of gold within {seconds:g} s; the pipeline said:",
            *pipeline.said,
            sep="\n  ",
        )
        return 1
    return 0


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument(
        "--seconds",
        type=float,
        default=float("inf"),
        help="end then; 1 is the exit code if gold is empty",
    )
    parser.add_argument(
        "--rows", type=float, default=float("inf"), help="end when gold has so many"
    )
    parser.add_argument(
        "--folder", type=Path, help="keep the tables there; else they go at the end"
    )
    chosen = parser.parse_args()
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="hookmq-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return demo(folder.absolute(), chosen.devices, chosen.seconds, chosen.rows)
    except Ended as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        if chosen.folder is None:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # A thread of deltalake may abort the interpreter when it exits.
    os._exit(code)
