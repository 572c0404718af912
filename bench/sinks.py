"""``python -m bench.sinks``: measure how fast messages reach a target, through a sink and through common alternatives.

Publishers send a fixed number of 64-byte messages at QoS 1, with 1,000 in flight. The rate covers the time from the
first PUBLISH until the target has the last message. Each row is measured `--rounds` times, alternating with the others.

    PostgreSQL    a sink; a paho subscriber that commits each row; one that commits up to 1,000 rows at a time
    Redis         a sink that adds to a stream; a paho subscriber that adds one entry at a time
    bridge        a sink that publishes to a second broker; mosquitto's bridge to the same broker

The CPU time covers the subscriber, and the broker with all its processes, but not the target.

The second table shows the time from PUBLISH to PUBACK at a fixed rate. It compares a working target with one that
accepts connections but never answers.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from . import durable_load, launch, peers, sink_targets, spark_sink
from .durable_load import Void
from .durable_report import spread
from .queue_servers import folder
from .session import say

WINDOW, PUBLISHERS = 1000, 50
TIMES = 5.0
"""The expected rate of a sink, as a multiple of the first alternative's rate."""
LATE = 1.1
"""The p99 with a stuck target, as a multiple of the p99 with a working target."""
MOSQUITTO = """\
listener {port} 127.0.0.1
allow_anonymous true
set_tcp_nodelay true
max_inflight_messages 0
max_queued_messages 0
persistence false
log_dest none
connection bench
address 127.0.0.1:{remote}
topic bench/# out 1
notifications false
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """The result of one run: messages per second, and CPU microseconds per message."""

    rate: float
    cpu: float


Started = tuple[int, list[int], Callable[[], int]]
"""The broker's port, the processes whose CPU time counts, and a function that returns how many messages arrived."""


@dataclasses.dataclass(frozen=True, slots=True)
class Way:
    """A way to write to a target. For a slow one, a run sends only the fraction `share` of `--messages`."""

    target: str
    name: str
    start: Callable[[pathlib.Path], contextlib.AbstractContextManager[Started]]
    share: float = 1.0


class Publisher(durable_load.Publisher):
    """A publisher that still has `left` messages to send."""

    left = 0

    def write(self) -> None:
        """Send messages until the window is full or none are left."""
        self.window = min(self.window, self.sent - self.acked + self.left)
        before = self.sent
        super().write()
        self.left -= self.sent - before


def publish(port: int, count: int) -> None:
    """Publish `count` messages, and wait until all are acknowledged."""
    import selectors

    share = -(-count // PUBLISHERS)
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        made = [Publisher(port, number, WINDOW // PUBLISHERS) for number in range(PUBLISHERS)]
        for number, one in enumerate(made):
            one.left = min(share, max(0, count - number * share))
            stack.enter_context(one.connection)
            selector.register(one.connection, selectors.EVENT_READ, one)
            one.write()
        while any(one.left or one.acked < one.sent for one in made):
            for key, _ in selector.select(1.0):
                key.data.read([])
                if key.data.left:
                    key.data.write()


def await_arrivals(
    arrived: Callable[[], int], count: int, quiet: float = sink_targets.QUIET
) -> None:
    """Wait until exactly `count` messages have arrived. Raises Void if no more arrive for `quiet` seconds, or if there
    are too many."""
    last, moved = arrived(), time.perf_counter()
    while last < count:
        if time.perf_counter() - moved > quiet:
            raise Void(f"{count - last} of {count} messages did not arrive")
        time.sleep(0.02)  # until more has arrived
        now = arrived()
        if now != last:
            last, moved = now, time.perf_counter()
    if last != count:
        raise Void(f"{last} messages arrived instead of {count}")


def measure(way: Way, count: int) -> Run:
    """Measure one run, after the first message from each publisher has arrived. Raises Void if a message is missing or
    arrives twice.
    """
    with folder() as where, way.start(where) as (port, first, arrived):
        publish(port, PUBLISHERS)
        await_arrivals(arrived, PUBLISHERS)  # so that all processes have started
        pids = [member for pid in first for member in launch.process_tree(pid)]
        before = [launch.cpu_seconds(pid) for pid in pids]
        began = time.perf_counter()
        publish(port, count)
        await_arrivals(arrived, PUBLISHERS + count)
        took = time.perf_counter() - began
        used = sum(launch.cpu_seconds(pid) - start for pid, start in zip(pids, before, strict=True))
    return Run(count / took, used / count * 1e6)


# the ways ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def broker(
    where: pathlib.Path, name: str, plugins: list[dict[str, Any]]
) -> Iterator[launch.Broker]:
    """Run HookMQ with these plugins."""
    place = where / name
    place.mkdir()
    with launch.hookmq(
        place,
        auth={"default": "allow"},
        authz={"default": "allow"},
        log={"level": "warning"},
        broker={"receive_maximum": 65535, "max_queue_bytes": "8GiB"},
        session={"max_inflight": 65535, "queue_messages": 10_000_000, "queue_bytes": "8GiB"},
        plugins=plugins,
    ) as found:
        yield found


STORAGE = {"use": "storage", "config": {"path": "data", "durability": "group"}}


@contextlib.contextmanager
def sink(
    where: pathlib.Path, driver: str, target: dict[str, Any], **more: Any
) -> Iterator[launch.Broker]:
    """Run HookMQ with a sink."""
    one = {
        "name": "bench",
        "topics": ["bench/#"],
        "driver": driver,
        "target": target,
        "max_bytes": "4GiB",
        **more,
    }
    config = {"path": "sinks", "sinks": [one]}
    with broker(where, "broker", [STORAGE, {"use": "sinks", "config": config}]) as found:
        yield found


def postgres_target(url: str) -> dict[str, Any]:
    """Return the `target` settings of a sink that writes to PostgreSQL."""
    return {"url": url, "table": "bench", "columns": {"topic": "${topic}", "payload": "${payload}"}}


@contextlib.contextmanager
def postgres_sink(where: pathlib.Path) -> Iterator[Started]:
    """Run HookMQ with a sink that writes to PostgreSQL."""
    with sink_targets.postgres(where) as url, sink(where, "postgres", postgres_target(url)) as one:
        yield one.port, [one.pid], lambda: sink_targets.rows(url)


def postgres_subscriber(
    name: str,
) -> Callable[[pathlib.Path], contextlib.AbstractContextManager[Started]]:
    """Return a function that runs HookMQ and the subscriber `name`, which inserts rows."""

    @contextlib.contextmanager
    def start(where: pathlib.Path) -> Iterator[Started]:
        with (
            sink_targets.postgres(where) as url,
            broker(where, "broker", [STORAGE]) as one,
            sink_targets.subscriber(name, one.port, url) as pid,
        ):
            yield one.port, [one.pid, pid], lambda: sink_targets.rows(url)

    return start


@contextlib.contextmanager
def redis_sink(where: pathlib.Path) -> Iterator[Started]:
    """Run HookMQ with a sink that writes to a Redis stream."""
    target = {"key": "bench", "fields": {"topic": "${topic}", "payload": "${payload}"}}
    with sink_targets.redis(where) as url, sink(where, "redis", {"url": url, **target}) as one:
        yield one.port, [one.pid], lambda: sink_targets.entries(url)


@contextlib.contextmanager
def redis_subscriber(where: pathlib.Path) -> Iterator[Started]:
    """Run HookMQ and a subscriber that adds entries to a Redis stream."""
    with (
        sink_targets.redis(where) as url,
        broker(where, "broker", [STORAGE]) as one,
        sink_targets.subscriber("add_entries", one.port, url) as pid,
    ):
        yield one.port, [one.pid, pid], lambda: sink_targets.entries(url)


@contextlib.contextmanager
def bridge_sink(where: pathlib.Path) -> Iterator[Started]:
    """Run a bridge from HookMQ to another HookMQ broker."""
    with broker(where, "remote", []) as remote:
        arrivals = sink_targets.Arrivals(remote.port)
        target = {"addresses": [f"127.0.0.1:{remote.port}"], "broker": "near", "remote": "far"}
        with sink(where, "mqtt", target) as one:
            yield one.port, [one.pid], lambda: arrivals.count
        arrivals.close()


@contextlib.contextmanager
def bridge_mosquitto(where: pathlib.Path) -> Iterator[Started]:
    """Run a bridge from mosquitto to a HookMQ broker."""
    with broker(where, "remote", []) as remote:
        arrivals = sink_targets.Arrivals(remote.port)
        port = launch.free_port()
        config = where / "mosquitto.conf"
        config.write_text(MOSQUITTO.format(port=port, remote=remote.port))
        words = [sink_targets.program("mosquitto"), "-c", str(config)]
        with sink_targets.started("mosquitto", words, port, where) as pid:
            yield port, [pid], lambda: arrivals.count
        arrivals.close()


WAYS = (
    Way("PostgreSQL", "sink", postgres_sink),
    Way("PostgreSQL", "subscriber, a commit per row", postgres_subscriber("insert_rows"), 0.05),
    Way("PostgreSQL", "subscriber, up to 1,000 rows", postgres_subscriber("insert_batches"), 0.25),
    Way("Redis stream", "sink", redis_sink),
    Way("Redis stream", "subscriber, one XADD each", redis_subscriber, 0.25),
    Way("bridge", "sink", bridge_sink),
    Way("bridge", "mosquitto's bridge", bridge_mosquitto),
)
"""The ways. For each target, the sink is first, and the alternative that it is compared with is second."""


# the tables ----------------------------------------------------------------------------------------------------------


def compare(
    ways: list[Way], messages: int, rounds: int
) -> tuple[dict[Way, list[Run]], dict[Way, str]]:
    """Measure each way `rounds` times. Return the runs of each way, and why any of the ways failed."""
    runs: dict[Way, list[Run]] = {way: [] for way in ways}
    void: dict[Way, str] = {}
    for number in range(rounds):
        # Reverse the order each time, because the machine's state changes over time.
        for way in ways if number % 2 == 0 else reversed(ways):
            if way in void:
                continue
            try:
                run = measure(way, max(PUBLISHERS, int(messages * way.share)))
            except (Void, peers.PeerError, OSError) as error:
                void[way] = " ".join(str(error).split())
                say(f"{number + 1}/{rounds} {way.target:13} {way.name:29} VOID: {void[way]}")
            else:
                runs[way].append(run)
                say(
                    f"{number + 1}/{rounds} {way.target:13} {way.name:29}{run.rate:10,.0f}/s {run.cpu:8.1f} us"
                )
    return runs, void


def table(runs: dict[Way, list[Run]], void: dict[Way, str]) -> str:
    """Format the comparison. The last column says how many times faster the sink is."""
    lines = [
        "| target | way | messages/s | CPU us/message | the sink is faster by |",
        "|---|---|--:|--:|--:|",
    ]
    ours: dict[str, float] = {}
    for way, found in runs.items():
        if way in void or not found:
            lines.append(f"| {way.target} | {way.name} | VOID: {void.get(way, 'no run')} | | |")
            continue
        rate = statistics.median(run.rate for run in found)
        known = ours.get(way.target)
        if way.name == "sink":
            ours[way.target] = rate
        times = "" if known is None else f"{known / rate:.1f}x"
        rates, costs = (
            spread([run.rate for run in found], ",.0f"),
            spread([run.cpu for run in found], ".1f"),
        )
        lines.append(f"| {way.target} | {way.name} | {rates} | {costs} | {times} |")
    return "\n".join(lines)


@contextlib.contextmanager
def timed(where: pathlib.Path, stuck: bool) -> Iterator[int]:
    """Run a broker with a sink whose target works, or never answers if `stuck` is True. Yield the broker's port."""
    target = {"key": "bench", "fields": {"payload": "${payload}"}}
    with (
        sink_targets.silent() if stuck else sink_targets.redis(where) as url,
        sink(where, "redis", {"url": url, **target}) as one,
    ):
        yield one.port


def latencies(rate: float, seconds: float, rounds: int) -> dict[str, list[list[float]]]:
    """Measure the time from PUBLISH to PUBACK. Return the sorted times of each run, in seconds."""
    found: dict[str, list[list[float]]] = {"works": [], "never answers": []}
    for number in range(rounds):
        for name in found if number % 2 == 0 else reversed(found):
            with folder() as where, timed(where, name != "works") as port:
                found[name].append(spark_sink.latencies(port, rate, seconds))
            say(
                f"{number + 1}/{rounds} the target {name}: p99 {quantile(found[name][-1], 0.99):.2f} ms"
            )
    return found


def quantile(times: list[float], part: float) -> float:
    """Return a quantile of sorted times, in milliseconds."""
    return times[int(len(times) * part)] * 1e3


def latency_table(found: dict[str, list[list[float]]]) -> str:
    """Format the latencies."""
    lines = [
        "| the target | p50 ms | p99 ms | p99 of each run | to the first row |",
        "|---|--:|--:|---|--:|",
    ]
    first = 0.0
    for name, runs in found.items():
        each = [quantile(run, 0.99) for run in runs]
        middle = statistics.median(each)
        first = first or middle
        half = statistics.median(quantile(run, 0.5) for run in runs)
        every = ", ".join(f"{one:.2f}" for one in each)
        lines.append(f"| {name} | {half:.2f} | {middle:.2f} | {every} | {middle / first:.2f}x |")
    return "\n".join(lines)


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line. `words` defaults to `sys.argv`."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.sinks",
        description="Messages into PostgreSQL, Redis and a second broker: sinks, subscribers and mosquitto's "
        "bridge, alternating in one run. See bench/README.md.",
    )
    add = parser.add_argument
    add(
        "--messages",
        type=int,
        default=200_000,
        help="messages of a run; slow ways send a part (%(default)s)",
    )
    add(
        "--rounds",
        type=int,
        default=3,
        help="runs of each row; the table has medians (%(default)s)",
    )
    add("--targets", default="", help="beginnings of targets, separated by commas (all)")
    add("--rate", type=float, default=1000.0, help="messages a second for latencies (%(default)s)")
    add(
        "--seconds", type=float, default=5.0, help="seconds of each run for latencies (%(default)s)"
    )
    add("--json", type=pathlib.Path, metavar="FILE", help="also write every run to this file")
    return parser.parse_args(words)


def main() -> int:
    """Print the tables. Return 0, or 1 if a row is void."""
    options = arguments()
    starts = tuple(word.strip().lower() for word in options.targets.split(","))
    ways = [way for way in WAYS if way.target.lower().startswith(starts)]
    runs, void = compare(ways, options.messages, options.rounds)
    print(
        f"HookMQ {spark_sink.build()}, {options.messages:,} messages of 64 bytes at QoS 1, {WINDOW} in flight\n"
    )
    print(table(runs, void))
    print(
        f"\nGoals: {TIMES:g}x the first alternative to PostgreSQL and Redis, 1x mosquitto's bridge.\n"
    )
    times = latencies(options.rate, options.seconds, options.rounds)
    print(latency_table(times))
    print(f"\nGoal: at most {LATE:g}x. {options.rate:g} messages/s from one publisher.")
    if options.json:
        document = {
            "format": 1,
            "rows": [
                {
                    "target": way.target,
                    "way": way.name,
                    "runs": [dataclasses.asdict(run) for run in found],
                }
                for way, found in runs.items()
            ],
            "p99": {name: [quantile(run, 0.99) for run in found] for name, found in times.items()},
        }
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 1 if void else 0


if __name__ == "__main__":
    sys.exit(main())
