"""The cases that `bench.micro` measures: steps in handling a message, from input to output, without a socket.

This is a pyperf script. It measures the core that PYTHONPATH selects. `--count CASE N` runs N steps and exits, for
tools that count instructions. `--bytecodes` prints how many bytecodes each case's operation executes.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import Puback, Publish
from hookmq.plugin import Plugin, hookimpl
from hookmq.routing.subscription_tree import SubscriptionTree
from hookmq_testing import Harness
from hookmq_testing.decoder import Decoder

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH = 100
"""The number of packets in one read."""
PAYLOAD = bytes(64)


class Route:
    """A minimal route."""

    __slots__ = ("matched", "valid")

    def __init__(self, topic: str, matched: list[Any]) -> None:
        self.valid = True
        self.matched = len(matched)


class Passing(Plugin):
    """A plugin whose hook changes nothing, for measuring chains of plugins."""

    @hookimpl
    def on_publish(self, message: object) -> None:
        return None


class Delivering(Plugin):
    """A plugin whose `on_deliver` changes nothing."""

    @hookimpl
    def on_deliver(self, message: object) -> None:
        return None


def _stream(qos: int, topic: str = "bench/a") -> bytes:
    return b"".join(
        encode(Publish(topic, PAYLOAD, qos, packet_id=number + 1 if qos else 0), 4)
        for number in range(BATCH)
    )


def decode() -> Callable[[], object]:
    """Decode PUBLISH packets."""
    data = _stream(1)
    decoder = Decoder(4)

    def step() -> None:
        assert len(decoder.feed(data)) == BATCH

    return step


def encode_() -> Callable[[], object]:
    """Encode PUBLISH packets."""
    packets = [Publish("bench/a", PAYLOAD, 1, packet_id=number + 1) for number in range(BATCH)]

    def step() -> None:
        for packet in packets:
            encode(packet, 5)

    return step


def _router() -> tuple[SubscriptionTree[Any, int, Any], list[str]]:
    router: SubscriptionTree[Any, int, Any] = SubscriptionTree(Route)
    for number in range(3000):
        shape = ("site/{}/d/{}", "site/{}/d/{}/#", "site/{}/+/{}", "+/{}/d/{}")[number % 4]
        router.subscribe(shape.format(number % 97, number), object(), 0)
    return router, [f"site/{number * 29 % 97}/d/{number * 29}" for number in range(BATCH)]


def match() -> Callable[[], object]:
    """Match uncached topics against 3,000 filters."""
    router, topics = _router()

    def step() -> None:
        for topic in topics:
            router.match(topic)

    return step


def lookup() -> Callable[[], object]:
    """Look up cached topics."""
    router, topics = _router()

    def step() -> None:
        for topic in topics:
            router.lookup(topic)

    return step


def _through(
    qos: int,
    plugins: int = 0,
    offline: bool = False,
    receivers: int = 1,
    kind: type[Plugin] = Passing,
) -> Callable[[], object]:
    """Process one read from a publisher, and the turn that delivers its messages."""
    config = {"session": {"queue_messages": 10**9, "queue_bytes": 1 << 50}}
    harness = Harness([kind(None, _context(n)) for n in range(plugins)], config=config)
    for number in range(receivers):
        other = harness.connect(f"other{number}", version=4, clean_start=not offline)
        other.subscribe("bench/a", qos)
        if offline:
            other.disconnect()
        else:
            other.wire.write = lambda data: None  # type: ignore[method-assign]
            feed_other = other.connection.feed
    client = harness.connect("client", version=4, auto_ack=False)
    client.wire.write = lambda data: None  # type: ignore[method-assign]
    data = _stream(qos)
    feed, turn = client.connection.feed, harness.clock.run_until_idle
    sent = 0

    def step() -> None:
        nonlocal sent
        feed(data)
        turn()
        if qos and not offline:
            acknowledged = b"".join(
                b"\x40\x02" + ((sent + number) % 65535 + 1).to_bytes(2, "big")
                for number in range(BATCH)
            )
            sent += BATCH
            feed_other(acknowledged)
            turn()

    return step


def _coded(qos: int) -> Callable[[], object]:
    """Process messages between two socket clients, which encode what they send and decode what they receive."""
    harness = Harness()
    other = harness.connect("other")
    other.subscribe("bench/a", qos)
    client = harness.connect("client", auto_ack=False)
    received, answered = Decoder(5, server=False), Decoder(5, server=False)
    answers: list[bytes] = []

    def take(data: bytes) -> None:
        packets = received.feed(data)
        if qos:
            answers.extend(
                encode(Puback(packet.packet_id), 5)
                for packet in packets
                if isinstance(packet, Publish)
            )

    other.wire.write = take  # type: ignore[method-assign]
    client.wire.write = answered.feed  # type: ignore[assignment, method-assign]
    feed, acknowledge = client.connection.feed, other.connection.feed
    turn = harness.clock.run_until_idle

    def step() -> None:
        feed(
            b"".join(
                encode(Publish("bench/a", PAYLOAD, qos, packet_id=number + 1 if qos else 0), 5)
                for number in range(BATCH)
            )
        )
        turn()
        if qos:
            acknowledge(b"".join(answers))
            answers.clear()
            turn()

    return step


def _plugin(qos: int, many: bool = False, socket: bool = False) -> Callable[[], object]:
    """Process messages between two plugin clients, one by one or in one batch per turn. With `socket`, the subscriber
    has a socket.
    """
    from hookmq.plugin import ClientRequest

    harness = Harness([Plugin(None, _context(0))])
    broker, run = harness.handle("p0"), harness.clock.run
    if socket:
        subscriber = harness.connect("other")
        subscriber.subscribe("bench/a", qos)
        subscriber.wire.write = lambda data: None  # type: ignore[method-assign]
    else:
        other = run(broker.connect(ClientRequest("other")))
        run(other.subscribe("bench/a", qos))
        if many:
            other.on_messages = lambda deliveries: [one.acknowledge() for one in deliveries]
        else:
            other.on_message = lambda delivery: delivery.acknowledge()
    client = run(broker.connect(ClientRequest("client")))
    publish, turn = client.publish_later, harness.clock.run_until_idle
    publish_many = client.publish_many

    def step() -> None:
        if many:
            publish_many([("bench/a", PAYLOAD, qos) for _ in range(BATCH)])
        else:
            for _ in range(BATCH):
                publish("bench/a", PAYLOAD, qos)
        turn()

    return step


def _context(number: int) -> Any:
    from hookmq.plugin import Context

    return Context(f"p{number}")


def connect() -> Callable[[], object]:
    """Connect and disconnect clients: CONNECT, CONNACK, DISCONNECT."""
    harness = Harness()
    names = [f"c{number}" for number in range(BATCH)]

    def step() -> None:
        for name in names:
            client = harness.connect(name, version=4)
            client.disconnect()
        harness.clients.clear()

    return step


CASES: dict[str, tuple[Callable[[], Callable[[], object]], int]] = {
    "decode": (decode, 40),
    "encode": (encode_, 40),
    "match": (match, 30),
    "lookup": (lookup, 600),
    "qos 0": (lambda: _through(0), 60),
    "qos 0, 50 receivers": (lambda: _through(0, receivers=50), 8),
    "qos 0, on_publish": (lambda: _through(0, plugins=1), 20),
    "qos 0, on_deliver": (lambda: _through(0, plugins=1, kind=Delivering), 20),
    "chain of 3": (lambda: _through(0, plugins=3), 10),
    "enqueue": (lambda: _through(1, offline=True), 8),
    "qos 1 round": (lambda: _through(1), 10),
    "qos 0, with codec": (lambda: _coded(0), 10),
    "qos 0, plugin client": (lambda: _plugin(0), 10),
    "qos 0, plugin client in batches": (lambda: _plugin(0, many=True), 10),
    "qos 0, plugin client to socket": (lambda: _plugin(0, socket=True), 20),
    "qos 0, plugin client to socket in batches": (lambda: _plugin(0, many=True, socket=True), 40),
    "qos 1, with codec": (lambda: _coded(1), 5),
    "qos 1, plugin client": (lambda: _plugin(1), 8),
    "qos 1, plugin client in batches": (lambda: _plugin(1, many=True), 8),
    "connect": (connect, 1),
}
"""Maps each case to a function and a number of steps.

The function returns a step, which performs `BATCH` operations. The steps together take about 20 ms, and pyperf times
them for each value.
"""


def timed(make: Callable[[], Callable[[], object]], loops: int) -> float:
    """Return the CPU seconds that `loops` steps take."""
    step = make()
    step()
    began = time.process_time()
    for _ in range(loops):
        step()
    return time.process_time() - began


def bytecodes(make: Callable[[], Callable[[], object]]) -> float:
    """Return how many bytecodes an operation executes. Compiled code is not counted."""
    step = make()
    for _ in range(3):
        step()
    count = 0

    def trace(frame: Any, event: str, argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        if event == "opcode":
            count += 1
        return trace

    gc.disable()  # finalizers of other objects would count
    sys.settrace(trace)
    try:
        step()
    finally:
        sys.settrace(None)
        gc.enable()
    return count / BATCH


def main() -> None:
    """Run the cases under pyperf, or count instructions or bytecodes."""
    if "--count" in sys.argv:
        at = sys.argv.index("--count")
        timed(CASES[sys.argv[at + 1]][0], int(sys.argv[at + 2]))
    elif "--bytecodes" in sys.argv:
        print(json.dumps({name: bytecodes(make) for name, (make, _) in CASES.items()}))
    else:
        import pyperf  # type: ignore[import-not-found]  # installed by bench.install

        runner = pyperf.Runner(processes=1, values=3, warmups=1)
        runner.parse_args()
        for name, (make, loops) in CASES.items():
            runner.args.loops = loops
            runner.bench_time_func(
                name, lambda count, make=make: timed(make, count), inner_loops=BATCH
            )


if __name__ == "__main__":
    main()
