"""`python -m bench.plugin_client`: what a message of a plugin client costs, against one of a client with a socket.

No case opens a socket: bytes are passed to the connection as a read would pass them. So the ratio leaves out the system
calls, which plugin clients save. A pair has the same topic, payload, QoS, number of messages in a turn and kind of
receiver. Both sides prepare their input once: the bytes of the packets, or the tuples for `publish_many`. Every figure is
CPU time: the lowest of many short rounds, in which all cases alternate. `--count CASE STEPS` runs one case and exits, for
tools that count instructions.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from typing import TYPE_CHECKING, Any

import hookmq.mqtt.framing
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import Publish
from hookmq.plugin import ClientRequest, Context, Plugin
from hookmq_testing import Harness

if TYPE_CHECKING:
    from collections.abc import Callable

    from hookmq.plugin import ClientHandle, Delivery

BATCH = 100
"""The number of messages in a step, which is one turn."""
TOPIC = "bench/a"
PAYLOAD = bytes(64)
Step = "Callable[[], object]"
PUBLISHERS = ("socket", "socket reads", "plugin batch", "plugin calls")
"""How a step's messages enter the broker: bytes in one read, a read for each, one call of `publish_many`, or a call of
`publish_later` for each."""
SUBSCRIBERS = ("socket", "plugin batch", "plugin calls")
"""How they leave it: bytes, `on_messages`, or `on_message`."""
PAIRS = (
    ("plugin batch", "socket", "socket", "socket"),
    ("plugin calls", "socket", "socket reads", "socket"),
    ("plugin calls", "socket", "socket", "socket"),
    ("socket", "plugin batch", "socket", "socket"),
    ("socket", "plugin calls", "socket", "socket"),
    ("plugin batch", "plugin batch", "socket", "socket"),
    ("plugin calls", "plugin calls", "socket reads", "socket"),
    ("plugin calls", "plugin calls", "socket", "socket"),
)
"""Each pair compares a publisher and subscriber with another publisher and subscriber."""


def _socket_subscriber(harness: Harness, qos: int) -> Callable[[], object]:
    """Connect a subscriber that discards what it gets. Return a function that acknowledges a step's messages."""
    client = harness.connect("subscriber", auto_ack=False)
    client.subscribe("bench/a", qos)
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


def _plugin_subscriber(client: ClientHandle, qos: int, batches: bool) -> None:
    """Let a plugin client look at every payload and acknowledge every message."""

    def one(delivery: Delivery) -> None:
        assert delivery.message.payload
        if qos:
            delivery.acknowledge()

    def several(deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            assert delivery.message.payload
            if qos:
                delivery.acknowledge()

    if batches:
        client.on_messages = several
    else:
        client.on_message = one


def make(publisher: str, subscriber: str, qos: int) -> Callable[[], object]:
    """Return a step, which passes `BATCH` messages from the publisher to the subscriber."""
    harness = Harness([Plugin(None, Context("bench"))])
    broker, run = harness.handle("bench"), harness.clock.run
    turn = harness.clock.run_until_idle
    after: Callable[[], object] = lambda: None  # noqa: E731
    if subscriber == "socket":
        after = _socket_subscriber(harness, qos)
    else:
        other = run(broker.connect(ClientRequest("subscriber")))
        run(other.subscribe("bench/a", qos))
        _plugin_subscriber(other, qos, subscriber == "plugin batch")
    if publisher.startswith("socket"):
        client = harness.connect("publisher", auto_ack=False)
        client.wire.write = lambda data: None  # type: ignore[method-assign]
        feed = client.connection.feed
        packets = [
            encode(Publish(TOPIC, PAYLOAD, qos, packet_id=number + 1 if qos else 0), 5)
            for number in range(BATCH)
        ]
        reads = packets if publisher == "socket reads" else [b"".join(packets)]

        def step() -> None:
            for data in reads:
                feed(data)
            turn()
            after()

        return step
    own = run(broker.connect(ClientRequest("publisher")))
    if publisher == "plugin batch":
        publish_many = own.publish_many
        messages = [(TOPIC, PAYLOAD, qos) for _ in range(BATCH)]

        def step() -> None:
            publish_many(messages)
            turn()
            after()

        return step
    publish_later = own.publish_later

    def step() -> None:
        for _ in range(BATCH):
            publish_later(TOPIC, PAYLOAD, qos)
        turn()
        after()

    return step


def measure(cases: list[tuple[str, str, int]], rounds: int, steps: int) -> dict[Any, float]:
    """Return the microseconds of each case per message, the lowest of `rounds` rounds of `steps` steps."""
    made = {case: make(*case) for case in cases}
    best = dict.fromkeys(cases, float("inf"))
    for number in range(rounds + 1):
        for case, step in made.items():
            began = time.process_time()
            for _ in range(steps):
                step()
            if number:
                best[case] = min(best[case], time.process_time() - began)
    return {case: seconds / steps / BATCH * 1e6 for case, seconds in best.items()}


def main() -> int:
    """Print the table for the build that runs, or run one case."""
    parser = argparse.ArgumentParser(prog="python -m bench.plugin_client", description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--count", nargs=2, metavar=("CASE", "STEPS"))
    options = parser.parse_args()
    if options.count:
        publisher, subscriber, qos = options.count[0].split(",")
        step = make(publisher, subscriber, int(qos))
        for _ in range(int(options.count[1])):
            step()
        return 0
    cases = sorted(
        {(*one, qos) for pair in PAIRS for one in (pair[:2], pair[2:]) for qos in (0, 1)}
    )
    found = measure(cases, options.rounds, options.steps)
    print("pure" if str(hookmq.mqtt.framing.__file__).endswith(".py") else "compiled")
    for pair, qos in itertools.product(PAIRS, (0, 1)):
        own, base = found[(*pair[:2], qos)], found[(*pair[2:], qos)]
        print(
            f"{pair[0]:13}{pair[1]:13} | {pair[2]:13} {pair[3]:7}{qos} {own:7.3f} {base:7.3f} {own / base:6.2f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
