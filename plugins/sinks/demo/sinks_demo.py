"""Show how sinks fill PostgreSQL and Redis, and what happens when one of them is down.

make demo-sinks                                     runs until Ctrl-C
make demo-sinks DEMO="--machines 50 --rate 1000"    with options
make demo-sinks DEMO="--seconds 20 --outage 5"      stops PostgreSQL for 5 seconds in the middle, then ends

On a terminal, press p to stop or start PostgreSQL, r to stop or start Redis, and q to quit. The exit code is 1 if any
message is missing from a target or appears there twice.
"""

import argparse
import os
import select
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from types import FrameType
from typing import Any, Final

import psycopg
import redis
from demo_broker import BrokerEnded, DemoBroker
from demo_plant import Plant
from demo_servers import Missing, Postgres, Redis, Server, ServerFailed
from demo_view import View

DRAIN: Final = 60.0
"""Maximum seconds to wait at the end until the last messages are written."""
START: Final = 60.0
"""Seconds that the sinks may take to reach their targets."""
EVERY: Final = 1.0


class Interrupts:
    """Counts SIGINT and SIGTERM. The first ends the demo. The second ends it without waiting for the last messages."""

    def __init__(self) -> None:
        self.count = 0
        for which in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(which, self._on_signal)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1


@contextmanager
def keys() -> Iterator[None]:
    """Make the terminal pass on each key immediately, until the block ends."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def pressed(seconds: float) -> str:
    """Wait up to `seconds` for a key. Return it, or '' if none was pressed."""
    if not sys.stdin.isatty():
        time.sleep(seconds)
        return ""
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return os.read(sys.stdin.fileno(), 1).decode(errors="replace") if ready else ""


class Demo:
    """The running demo. `stack.close()` stops its parts in reverse order."""

    def __init__(self, stack: ExitStack, view: View, interrupts: Interrupts) -> None:
        self.view = view
        self.interrupts = interrupts
        self._stack = stack
        self.ready = False

    def start(self, machines: int, rate: float) -> None:
        """Start all parts, printing each step. Raises Missing, ServerFailed or BrokerEnded."""
        self.postgres = self._step("PostgreSQL", self._server, Postgres)
        self.redis = self._step("Redis", self._server, Redis)
        folder = Path(mkdtemp(prefix="hookmq-demo-"))
        self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        self.broker = self._step(
            "the broker", DemoBroker, folder, self.postgres.url, self.redis.url
        )
        self._stack.callback(self.broker.stop)
        self._step("the sinks", self._until_active)
        self.plant = Plant(self.broker.ports["tcp"], machines, rate)
        self._stack.callback(self.plant.stop)
        self.ready = True
        self.view.say(f"\nThe console: {self.broker.console}", "1")
        self.view.say(f"Sign in with this token: {self.broker.token}\n")

    def _step(self, what: str, make: Any, *arguments: Any) -> Any:
        if self.interrupts.count:
            raise BrokerEnded("Interrupted.")
        began = time.monotonic()
        self.view.say(f"  ▸ Starting {what}.")
        made = make(*arguments)
        self.view.say(f"  ✓ {what[0].upper()}{what[1:]}: {time.monotonic() - began:.1f} s", "32")
        return made

    def _until_active(self) -> None:
        until = time.monotonic() + START
        while not self.interrupts.count:
            sinks = self.broker.sinks().values()
            if all(one["state"] == "active" for one in sinks):
                return
            if time.monotonic() > until:
                raise BrokerEnded(f"A sink did not start: {[one['reason'] for one in sinks]}")
            time.sleep(0.1)

    def _server(self, kind: type[Server]) -> Server:
        server = kind()
        self._stack.callback(server.close)
        server.start()
        return server

    def turn(self, server: Server) -> None:
        """Stop a running server, or start a stopped one."""
        name = server.title
        if server.running:
            server.stop()
            self.view.say(
                f"■ {name} is stopped. Its sink retries; the broker keeps the messages on disk.",
                "33",
            )
        else:
            server.start()
            self.view.say(f"▶ {name} runs again. Its sink catches up.", "32")

    def rows(self) -> list[Any]:
        """Return the newest rows in PostgreSQL, or an empty list if it is stopped."""
        if not self.postgres.running:
            return []
        query = "SELECT time, machine, celsius FROM readings ORDER BY time DESC LIMIT 5"
        with (
            suppress(psycopg.Error),
            psycopg.connect(self.postgres.url, connect_timeout=2) as found,
        ):
            return found.execute(query).fetchall()
        return []

    def show(self) -> dict[str, Any]:
        """Show the figures, and return the sinks by name."""
        sinks: dict[str, Any] = self.broker.sinks()
        if self.plant.failure:
            raise BrokerEnded(f"The plant stopped: {self.plant.failure}")
        self.view.show(
            f"{self.plant.acknowledged:,} messages stored by the broker", sinks, self.rows()
        )
        return sinks

    def run(self, until: float, outage: tuple[float, float] | None) -> None:
        """Show the figures until the time `until`, until q is pressed, or until a signal arrives. Stop PostgreSQL
        during the `outage`.
        """
        down = False
        while not self.interrupts.count and time.monotonic() < until:
            self.show()
            if outage is not None and down != (outage[0] <= time.monotonic() < outage[1]):
                down = not down
                self.turn(self.postgres)
            key = pressed(EVERY)
            if key == "q":
                return
            if key in ("p", "r"):
                self.turn(self.postgres if key == "p" else self.redis)

    def drain(self) -> bool:
        """Stop the plant, wait until everything is written, and check that each target has all acknowledged messages.
        Return whether all targets are complete.
        """
        self.view.say("\nStopping. The last messages are written; Ctrl-C again skips this.")
        before = self.interrupts.count
        self.plant.stop()
        for server in (self.postgres, self.redis):
            if not server.running:
                self.turn(server)
        until = time.monotonic() + DRAIN
        while any(one["lag"] for one in self.show().values()):
            if self.interrupts.count > before or time.monotonic() > until:
                self.view.say("Some messages are not written yet.", "31")
                return False
            time.sleep(0.2)
        wanted = self.plant.acknowledged
        with psycopg.connect(self.postgres.url, connect_timeout=10) as found:
            row = found.execute("SELECT count(*), count(DISTINCT id) FROM readings").fetchone()
        with redis.Redis.from_url(self.redis.url) as client:
            entries = int(client.xlen("readings"))
        assert row is not None
        right = (wanted, wanted, wanted) == (*row, entries)
        self.view.say(f"{wanted:>10,} messages acknowledged by the broker")
        self.view.say(f"{row[0]:>10,} rows in PostgreSQL, with {row[1]:,} different ids")
        self.view.say(f"{entries:>10,} entries in Redis")
        self.view.say(
            "Every message is in both, exactly once." if right else "The numbers differ.",
            "32" if right else "31",
        )
        return right


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    title, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=title, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--machines", type=int, default=20, help="number of machines; default 20")
    parser.add_argument("--rate", type=float, default=200, help="messages per second; default 200")
    parser.add_argument("--seconds", type=float, help="end after this time, instead of Ctrl-C")
    parser.add_argument(
        "--outage", type=float, help="stop PostgreSQL for this time in the middle of --seconds"
    )
    chosen = parser.parse_args(arguments)
    if chosen.machines < 1 or not 0 < chosen.rate <= 20_000:
        parser.error("--machines must be at least 1, and --rate between 0 and 20000")
    if chosen.outage is not None and not 0 < chosen.outage < (chosen.seconds or 0):
        parser.error("--outage must be shorter than --seconds")
    view, interrupts = View(), Interrupts()
    with ExitStack() as stack:
        stack.enter_context(keys())
        demo = Demo(stack, view, interrupts)
        try:
            demo.start(chosen.machines, chosen.rate)
            began, outage = time.monotonic(), None
            if chosen.outage is not None:
                middle = began + (chosen.seconds - chosen.outage) / 2
                outage = middle, middle + chosen.outage
            demo.run(began + (chosen.seconds or float("inf")), outage)
            complete = demo.drain()
        except Missing as error:
            print(error, file=sys.stderr)
            return 2
        except (ServerFailed, BrokerEnded, OSError, psycopg.Error, redis.RedisError) as error:
            print(error, file=sys.stderr)
            return 1
    view.say("Everything is stopped, and its files are deleted.")
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
