"""Demonstrate the path from MQTT to tables: a broker, 1,000 trucks, Spark, and a page with live charts.

make demo-spark                                                runs until Ctrl-C
make demo-spark DEMO="--no-browser --devices 200"              with options
.venv-spark/bin/python pipelines/demo/run.py --seconds 120     stops then; exit code 1 if messages are missing
"""

import argparse
import json
import os
import shutil
import signal
import sys
import time
import webbrowser
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any, Final

from alerts import Alerts
from figures import Figures, Step, steps
from page_server import PageServer
from processes import Ended, Part

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
HOOKMQ: Final = ROOT / ".venv" / "bin" / "hookmq"
FOLDER: Final = ROOT / "build" / "demo-spark"
"""The folder of the last demo that ran without --folder."""
PATIENCE: Final = 300.0
"""Seconds that the start-up may take on a busy machine."""
DRAIN: Final = 60.0
"""Seconds to wait at the end until the last messages are in the tables."""
STATUS: Final = 5.0
"""Seconds between two lines of status."""
COLORS: Final = sys.stdout.isatty() and "NO_COLOR" not in os.environ


def say(text: str, color: str = "") -> None:
    """Print a line at once, in color if the output is a terminal."""
    print(f"\033[{color}m{text}\033[0m" if color and COLORS else text, flush=True)


class Interrupts:
    """Counts SIGINT and SIGTERM. The first signal stops the demo. The second one stops it without waiting for the last
    messages.
    """

    def __init__(self) -> None:
        self.count = 0
        for which in (signal.SIGINT, signal.SIGTERM):
            signal.signal(which, self._on_signal)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1


class Startup:
    """Reports when each start-up step begins, how long it usually takes, and how long it actually took."""

    def __init__(self, figures: Figures) -> None:
        self.figures = figures
        self._steps = {step.name: step for step in figures.steps}
        self._begun: dict[str, float] = {}
        self._told = 0.0

    def begin(self, *names: str) -> None:
        """Report that the given steps have begun."""
        for name in names:
            step = self._steps[name]
            self._begun[name] = time.monotonic()
            step.state = "running"
            say(f"  ▸ {step.text}. This usually takes {step.usual} s.")
        self.figures.publish()

    def done(self, name: str, *then: str) -> None:
        """Report that a step is done, and that others have now begun. Do nothing if the step was already done."""
        step = self._steps[name]
        if step.state != "running":
            return
        self._measure(step)
        step.state = "done"
        say(f"  ✓ {step.text}: {step.seconds:.0f} s", "32")
        self.begin(*then)

    def tick(self) -> None:
        """Update the elapsed time of the running steps, and print it every few seconds."""
        running = [step for step in self._steps.values() if step.state == "running"]
        for step in running:
            self._measure(step)
        now = time.monotonic()
        if running and now - self._told >= STATUS:
            self._told = now
            if (first := running[0]).seconds >= STATUS:
                say(f"    … {first.text}: {first.seconds:.0f} s, usually {first.usual} s", "2")

    def _measure(self, step: Step) -> None:
        step.seconds = round(time.monotonic() - self._begun[step.name], 1)


class Demo:
    """A running demo and its parts."""

    def __init__(self, folder: Path, devices: int, interrupts: Interrupts) -> None:
        self.folder = folder
        self.devices = devices
        self.interrupts = interrupts
        self.figures = Figures(folder, steps(devices))
        self.startup = Startup(self.figures)
        self.parts: list[Part] = []
        self._shown = 0.0

    def start(self) -> None:
        """Start the broker, then start the fleet and the pipeline simultaneously. Raises Ended if one of them ends."""
        self.startup.begin("broker")
        # The paths in the configuration are relative to it.
        config = shutil.copy(HERE / "broker.yaml", self.folder)
        command = (HOOKMQ, "serve", "--log-format", "json", "-c", config)
        self.broker = self._part("broker", *command)
        mqtt, http, api = self._ports()
        self.startup.done("broker", "fleet", "spark")
        self.figures.addresses |= {
            "mqtt": f"mqtt://127.0.0.1:{mqtt}",
            "metrics": f"http://127.0.0.1:{http}/metrics",
            "read": f"http://127.0.0.1:{api}",
        }
        self.figures.alerts = Alerts(mqtt)
        self.pipeline = self._part(
            "pipeline", sys.executable, "-m", "mqtt_pipelines", "run", "bronze", "silver", "gold", "anomaly",
            "-c", HERE / "pipeline.yaml", "-o", f"source.mqtt.url=http://127.0.0.1:{api}",
            "-o", f"anomaly.publish.mqtt.brokerUrl=mqtt://127.0.0.1:{mqtt}",
        )  # fmt: skip
        self.fleet = self._part(
            "fleet", sys.executable, HERE / "fleet.py", "--port", str(mqtt), "--devices", str(self.devices)
        )  # fmt: skip

    def _part(self, name: str, *command: str | Path) -> Part:
        part = Part(name, *command, folder=self.folder)
        self.parts.append(part)
        return part

    def _ports(self) -> tuple[int, int, int]:
        """Wait until the broker is running. Return its ports for MQTT, HTTP and the read API."""
        api, until = 0, time.monotonic() + PATIENCE
        while time.monotonic() < until and not self.interrupts.count:
            for line in self.broker.lines():
                if not line.startswith("{"):  # an error, which `check` reports
                    continue
                entry: dict[str, Any] = json.loads(line)
                if entry["event"] == "spark_sink.serving":
                    api = entry["port"]
                if entry["event"] == "node.started":
                    ports = {
                        name: int(bound.rpartition(":")[2])
                        for name, bound in entry["listeners"].items()
                    }
                    return ports["tcp"], ports["http"], api
            self.broker.check()
            self.startup.tick()
            self.figures.publish()
            time.sleep(0.1)
        raise Ended("The broker did not start." if not self.interrupts.count else "Interrupted.")

    def step(self) -> None:
        """Report everything that the parts have printed or written since the last call. Raises Ended if a part has
        ended.
        """
        for part in self.parts:
            part.check()
        self.figures.told(self.fleet.lines())
        self.startup.tick()
        self.figures.read()
        self._advance()
        self.tell_alerts()
        if self.figures.phase == "running" and time.monotonic() - self._shown >= STATUS:
            self._shown = time.monotonic()
            say(f"{time.strftime('%H:%M:%S')}  {self.status()}")

    def tell_alerts(self) -> None:
        """Print the alerts that arrived since the last call."""
        assert self.figures.alerts is not None
        for alert in self.figures.alerts.unshown():
            say(
                f"  ⚠ ALERT on {alert['topic']}: {alert['value']:.1f} °C instead of {alert['expected']:.1f} °C,"
                f" received {alert['received'] - alert['at']:.1f} s after the measurement",
                "33",
            )

    def _advance(self) -> None:
        """Mark start-up steps as done if their results are available."""
        rows, done = self.figures.tables.rows, self.startup.done
        if self.figures.ledger.get("online", 0) == self.devices:
            done("fleet")
        if self.figures.batches.count or rows("bronze"):
            done("spark", "tables")
        if rows("bronze") and rows("silver"):
            done("tables", "windows", "alert")
        if rows("gold"):
            done("windows")
            if self.figures.phase == "starting":
                self.figures.phase = "running"
        if self.figures.alerts is not None and self.figures.alerts.received:
            done("alert")

    def status(self) -> str:
        """Return one line with the figures."""
        figures, rows = self.figures, self.figures.tables.rows
        parts = [
            f"{figures.rate('acknowledged'):,.0f} messages/s",
            f"bronze {rows('bronze'):,}",
            f"silver {rows('silver'):,}",
            f"dead letters {rows('dead_letter'):,}",
            f"gold {rows('gold'):,}",
        ]
        for window in figures.windows()[:1]:
            celsius = window["celsius"]
            start = time.strftime("%H:%M:%S", time.localtime(window["start"]))
            parts.append(
                f"window {start}: {celsius['readings']:,} readings, {celsius['average']:.2f} °C on average"
            )
        return " | ".join(parts)

    def drain(self) -> None:
        """Stop the fleet, and wait until the last messages have reached the tables. A second Ctrl-C ends the wait."""
        self.figures.phase = "stopping"
        self.figures.publish()
        before = self.interrupts.count
        say("\nStopping. The last messages are written to the tables; Ctrl-C again skips this.")
        say(self.fleet.stop())
        self.parts.remove(self.fleet)
        self.figures.told(self.fleet.lines())
        until = time.monotonic() + DRAIN
        while time.monotonic() < until and self.interrupts.count == before:
            self.pipeline.check()
            self.figures.read()
            self.tell_alerts()
            if self.figures.complete:
                return
            time.sleep(0.25)

    def stop(self) -> None:
        """Stop all parts that are still running, in the reverse of the order in which they were started."""
        if self.figures.alerts is not None:
            self.figures.alerts.close()
        for part in reversed(self.parts):
            say(part.stop())

    def account(self) -> bool:
        """Print how many messages each table contains, and save the fleet's ledger and the alerts. Return True if no
        message is missing.
        """
        figures, rows = self.figures, self.figures.tables.rows
        (self.folder / "ledger.json").write_text(json.dumps(figures.ledger))
        if figures.alerts is not None:
            (self.folder / "alerts.json").write_text(json.dumps(figures.alerts.newest()))
        lines = [
            f"{figures.ledger.get('sent', 0):>12,} messages sent by the fleet",
            f"{figures.acknowledged:>12,} acknowledged by the broker",
            f"{rows('bronze'):>12,} rows in bronze",
            f"{rows('silver'):>12,} rows in silver",
            f"{rows('dead_letter'):>12,} dead letters",
            f"{figures.batches.duplicates + figures.batches.late:>12,} duplicates, dropped",
        ]
        if figures.complete:
            lines.append(
                f"{figures.accounted:>12,} in all: every acknowledged message, exactly once"
            )
        else:
            lines.append(
                "The demo stopped before the last messages were written. They are still in the broker's log."
            )
        figures.summary = lines
        for line in lines:
            say(line)
        return figures.complete


def opens_browser() -> bool:
    """Return whether a graphical browser is likely to be available. A browser in the terminal would hide the demo."""
    return any(name in os.environ for name in ("DISPLAY", "WAYLAND_DISPLAY", "WSL_DISTRO_NAME"))


def demo(folder: Path, devices: int, seconds: float, browser: bool, port: int) -> int:
    """Run the demo until a signal arrives, or for the given number of seconds. Return the exit code."""
    interrupts = Interrupts()
    until = time.monotonic() + seconds
    with ExitStack() as stack:
        running = Demo(folder, devices, interrupts)
        server = PageServer(running.figures.state, folder / "metrics.prom", port)
        stack.callback(server.close)
        say(f"The page of this demo: {server.url}", "1")
        if browser and opens_browser():
            webbrowser.open(server.url)
        failed = False
        try:
            running.start()
            while not interrupts.count and time.monotonic() < until:
                running.step()
                time.sleep(1.0)
            running.drain()
        except Ended as error:
            failed = interrupts.count == 0
            if failed:
                print(error, file=sys.stderr, flush=True)
        finally:
            running.stop()
        running.figures.read()
        complete = running.account()
        running.figures.phase = "stopped"
        running.figures.publish()
        say(f"\nThe tables are in {folder}", "1")
        say("To plot them, run this in the checkout, with Jupyter installed:")
        say(f"  TABLES={folder} jupyter notebook pipelines/notebooks/tables.ipynb")
    return 1 if failed or (seconds != float("inf") and not complete) else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    lines = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=lines[0],
        epilog=lines[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--devices", type=int, default=1000, help="number of trucks; default 1000")
    parser.add_argument(
        "--seconds",
        type=float,
        default=float("inf"),
        help="stop after this time, instead of Ctrl-C",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        help="an empty or new folder for the tables; default: build/demo-spark, which is replaced",
    )
    parser.add_argument("--no-browser", action="store_true", help="only print the page's address")
    parser.add_argument("--port", type=int, default=0, help="port of the page; default: a free one")
    chosen = parser.parse_args(arguments)
    folder: Path = (chosen.folder or FOLDER).absolute()
    if chosen.folder is None and folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        parser.error(f"--folder {folder} is not empty")
    return demo(folder, chosen.devices, chosen.seconds, not chosen.no_browser, chosen.port)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # A thread of deltalake may abort the interpreter when it exits.
    os._exit(code)
