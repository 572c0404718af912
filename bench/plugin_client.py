"""`python -m bench.plugin_client`: compare the cost of a message for plugin clients and for clients with sockets.

No case opens a real socket. Socket clients exchange bytes with the broker at the point where the transport would pass
them on. System calls, which plugin clients avoid, are therefore not counted. Both sides of a pair have the same topics,
payload, QoS and number of messages in a turn. Their input is prepared in advance: the bytes of the packets, or the tuples
for `publish_many`. Subscribers with a socket discard the bytes that they receive, and send the acknowledgements as bytes.
Plugin clients read each payload and acknowledge it.

The figures are CPU time per message: the lowest of many short rounds, in which all cases alternate. `--count CASE STEPS`
runs one case without measuring it, for tools that count instructions.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

import hookmq
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import Publish
from hookmq.plugin import ClientRequest, Context, Plugin
from hookmq_testing import Harness

if TYPE_CHECKING:
    from collections.abc import Callable

    from hookmq.plugin import ClientHandle, Delivery

BATCH = 100
"""The number of messages in a step, which is one turn."""
PAYLOAD = bytes(64)
SHAPES = ("one topic", "many topics", "many clients")
"""Whether the messages of a step share one topic, have a topic each, or have a topic and a publisher each."""
LIMIT = 1.5
"""The ratio that no pair should exceed."""


class Case(NamedTuple):
    """How the messages of a step enter and leave the broker.

    - `publisher`: "read" for all packets in one read, "reads" for one read per packet, "batch" for one call to
      `publish_many`, "calls" for one call to `publish_later` per message.
    - `subscriber`: "bytes" for a socket, "batch" for `on_messages`, "calls" for `on_message`.
    """

    publisher: str
    subscriber: str
    qos: int
    shape: str = SHAPES[0]

    def socket(self) -> Case:
        """Return the case to compare with this one: the same messages between clients that have sockets."""
        publisher = {"batch": "read", "calls": "reads"}.get(self.publisher, self.publisher)
        return self._replace(publisher=publisher, subscriber="bytes")


def cases() -> list[Case]:
    """Return the cases with a plugin client."""
    ways = [
        ("batch", "bytes"), ("calls", "bytes"), ("read", "batch"), ("reads", "batch"), ("reads", "calls"),
        ("batch", "batch"), ("calls", "calls"),
    ]  # fmt: skip
    found = []
    for shape, (publisher, subscriber), qos in itertools.product(SHAPES, ways, (0, 1)):
        if shape != "many clients" or publisher in ("calls", "reads"):
            found.append(Case(publisher, subscriber, qos, shape))
    return found


def _socket_subscriber(harness: Harness, qos: int) -> Callable[[], object]:
    """Connect a subscriber that discards its messages. Return a function that acknowledges the messages of one step."""
    client = harness.connect("subscriber", auto_ack=False)
    client.subscribe("bench/#", qos)
    client.wire.write = lambda data: None  # type: ignore[method-assign]
    if not qos:
        return lambda: None
    every = b"".join(b"\x40\x02" + number.to_bytes(2, "big") for number in range(1, 65536))
    every += every[: 4 * BATCH]
    feed, turn = client.connection.feed, harness.clock.run_until_idle
    at = 0

    def acknowledge() -> None:
        nonlocal at
        feed(every[4 * at : 4 * (at + BATCH)])
        turn()
        at = (at + BATCH) % 65535

    return acknowledge


def _plugin_subscriber(client: ClientHandle, qos: int, way: str) -> None:
    """Make a plugin client read every payload and acknowledge every message."""

    def one(delivery: Delivery) -> None:
        assert delivery.payload
        if qos:
            delivery.acknowledge()

    def several(deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            assert delivery.payload
        if qos:
            client.acknowledge_many(deliveries)

    if way == "batch":
        client.on_messages = several
    else:
        client.on_message = one


def _publish_bytes(harness: Harness, case: Case, topics: list[str]) -> Callable[[], object]:
    """Return a function that passes a step's packets to the connections of its publishers."""
    feeds = []
    for number in range(BATCH if case.shape == "many clients" else 1):
        client = harness.connect(f"publisher{number}", auto_ack=False)
        client.wire.write = lambda data: None  # type: ignore[method-assign]
        feeds.append(client.connection.feed)
    packets = [
        encode(Publish(topic, PAYLOAD, case.qos, packet_id=number + 1 if case.qos else 0), 5)
        for number, topic in enumerate(topics)
    ]
    reads = packets if case.publisher == "reads" else [b"".join(packets)]
    pairs = list(zip(itertools.cycle(feeds), reads))

    def publish() -> None:
        for feed, data in pairs:
            feed(data)

    return publish


def _publish_objects(harness: Harness, case: Case, topics: list[str]) -> Callable[[], object]:
    """Return a function that publishes a step's messages through plugin clients."""
    broker, run, qos = harness.handle("bench"), harness.clock.run, case.qos
    if case.publisher == "batch":
        publish_many = run(broker.connect(ClientRequest("publisher"))).publish_many
        messages = [(topic, PAYLOAD, qos) for topic in topics]
        return lambda: publish_many(messages)
    number = BATCH if case.shape == "many clients" else 1
    calls = [
        run(broker.connect(ClientRequest(f"publisher{one}"))).publish_later for one in range(number)
    ]
    pairs = list(zip(itertools.cycle(calls), topics))

    def publish() -> None:
        for publish_later, topic in pairs:
            publish_later(topic, PAYLOAD, qos)

    return publish


def make(case: Case) -> Callable[[], object]:
    """Return a step, which passes `BATCH` messages from the publisher to the subscriber."""
    harness = Harness([Plugin(None, Context("bench"))])
    after: Callable[[], object] = lambda: None  # noqa: E731
    if case.subscriber == "bytes":
        after = _socket_subscriber(harness, case.qos)
    else:
        client = harness.clock.run(harness.handle("bench").connect(ClientRequest("subscriber")))
        harness.clock.run(client.subscribe("bench/#", case.qos))
        _plugin_subscriber(client, case.qos, case.subscriber)
    several = case.shape != SHAPES[0]
    topics = [f"bench/{number if several else 0}" for number in range(BATCH)]
    sockets = case.publisher in ("read", "reads")
    publish = (_publish_bytes if sockets else _publish_objects)(harness, case, topics)
    turn = harness.clock.run_until_idle

    def step() -> None:
        publish()
        turn()
        after()

    return step


def measure(wanted: list[Case], rounds: int, steps: int) -> dict[Case, float]:
    """Return the CPU microseconds per message of each case: the lowest of `rounds` rounds of `steps` steps."""
    made = {case: make(case) for case in wanted}
    best = dict.fromkeys(wanted, float("inf"))
    for number in range(rounds + 1):
        for case, step in made.items():
            began = time.process_time()
            for _ in range(steps):
                step()
            if number:  # the first round fills the caches
                best[case] = min(best[case], time.process_time() - began)
    return {case: seconds / steps / BATCH * 1e6 for case, seconds in best.items()}


def main() -> int:
    """Print the table for the current build, or run one case."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.plugin_client", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=60, help="rounds (%(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="steps in a round (%(default)s)")
    parser.add_argument(
        "--count",
        nargs=2,
        metavar=("CASE", "STEPS"),
        help="run a case, such as calls,bytes,0,one topic",
    )
    options = parser.parse_args()
    if options.count:
        publisher, subscriber, qos, shape = options.count[0].split(",")
        step = make(Case(publisher, subscriber, int(qos), shape))
        for _ in range(int(options.count[1])):
            step()
        return 0
    wanted = cases()
    found = measure(
        list(dict.fromkeys([*wanted, *(one.socket() for one in wanted)])),
        options.rounds,
        options.steps,
    )
    print(f"{hookmq.BUILD.kind}, CPU microseconds per message")
    print(
        f"{'messages':14}{'publisher':>10}{'subscriber':>11}{'QoS':>4}{'plugin':>9}{'socket':>9}{'ratio':>7}"
    )
    for case in wanted:
        own, other = found[case], found[case.socket()]
        mark = " *" if own > LIMIT * other else ""
        print(
            f"{case.shape:14}{case.publisher:>10}{case.subscriber:>11}{case.qos:4}{own:9.3f}{other:9.3f}"
            f"{own / other:7.2f}{mark}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
