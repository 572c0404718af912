"""Test the shapes of the curves in docs/explanation/performance.md by counting operations instead
of measuring time.

An operation is a Python or C call that a message causes in a whole in-memory broker. A flat cost has the same number of
calls at any size. A linear cost adds the same number of calls for each additional item.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hookmq.plugin import Plugin, hookimpl
from hookmq.routing.subscription_tree import SubscriptionTree
from hookmq_testing import Harness, MemoryClient, make_plugin

pytestmark = pytest.mark.skipif(
    not inspect.isfunction(SubscriptionTree.match),
    reason="compiled code tells no profiler what it calls; the pure build is the same source",
)


def calls(step: Callable[[], object]) -> Counter[str]:
    """Return the number of calls that `step` makes, by function name."""
    found: Counter[str] = Counter()

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            found[frame.f_code.co_qualname] += 1
        elif event == "c_call":
            found[argument.__qualname__] += 1

    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(None)
    return found


def packet(topic: str, payload: bytes = b"x" * 64, retain: bool = False) -> bytes:
    """Return a PUBLISH at QoS 0."""
    name = topic.encode()
    body = len(name).to_bytes(2) + name + payload
    size, length = len(body), b""
    while True:
        size, low = divmod(size, 128)
        length += bytes([low | (128 if size else 0)])
        if not size:
            return bytes([0x31 if retain else 0x30]) + length + body


def cost(client: MemoryClient, data: bytes, warm: int = 3) -> Counter[str]:
    """Process `data` several times (`warm`), then count the operations that the broker needs to process it once more."""
    harness = client.harness
    feed, turn = client.connection.feed, harness.clock.run_until_idle
    for _ in range(warm):
        feed(data)
        turn()

    def step() -> None:
        feed(data)
        turn()

    return calls(step)


def receiver(harness: Harness, name: str, filter: str) -> MemoryClient:
    """Return a subscriber that discards its packets, so the testing kit is not counted."""
    client = harness.connect(name, version=4)
    client.subscribe(filter)
    client.wire.write = lambda data: None  # type: ignore[method-assign]
    return client


def crowd(harness: Harness, count: int) -> None:
    """Add subscriptions that share topic levels with the load but do not match it."""
    shapes = ("bench/{}/d/status", "bench/{}/#", "bench/+/{}", "+/load/{}")
    filters = [shapes[number % 4].format(f"n{number}") for number in range(count)]
    for start in range(0, count, 400):
        client = harness.connect(f"crowd{start}", version=4)
        client.subscribe([(filter, 0) for filter in filters[start : start + 400]])


@pytest.mark.parametrize("warm", [0, 3], ids=["new topic", "known topic"])
def test_flat_over_subscriptions(warm: int) -> None:
    def at(count: int) -> Counter[str]:
        with Harness() as harness:
            crowd(harness, count)
            receiver(harness, "one", "bench/load")
            publisher = harness.connect("pub", version=4)
            cost(publisher, packet("other/topic"))
            return cost(publisher, packet("bench/load"), warm)

    small, large = at(8), at(800)
    assert small == large
    assert small.total() > 5


def test_flat_over_connections() -> None:
    def at(count: int) -> Counter[str]:
        with Harness() as harness:
            for number in range(count):
                harness.connect(f"idle{number}", version=4)
            receiver(harness, "one", "bench/load")
            return cost(harness.connect("pub", version=4), packet("bench/load"))

    assert at(2) == at(200)


def test_storing_a_retained_message_is_flat() -> None:
    def at(count: int) -> Counter[str]:
        with Harness() as harness:
            publisher = harness.connect("pub", version=4)
            for number in range(count):
                publisher.connection.feed(packet(f"kept/{number}", retain=True))
            return cost(publisher, packet("kept/new", retain=True))

    assert at(10) == at(1000)


def fetching(kept: int, filter: str) -> Counter[str]:
    """Return the number of operations for a SUBSCRIBE that matches `kept` retained messages."""
    with Harness() as harness:
        publisher = harness.connect("pub", version=4)
        for number in range(kept):
            publisher.connection.feed(packet(f"kept/{number}/{number % 7}", retain=True))
        body = b"\0\1" + len(filter).to_bytes(2) + filter.encode() + b"\0"
        data = bytes([0x82, len(body)]) + body
        clients = [harness.connect(name, version=4) for name in ("first", "second")]

        def subscribe(client: MemoryClient) -> None:
            client.wire.write = lambda data: None  # type: ignore[method-assign]
            client.connection.feed(data)
            harness.settle()

        subscribe(clients[0])
        return calls(lambda: subscribe(clients[1]))


@pytest.mark.parametrize("filter", ["kept/5/5", "kept/5/+", "kept/5/#"])
def test_fetching_one_retained_message_is_flat(filter: str) -> None:
    # Both sizes are above the number of cached routes that are checked one by one.
    assert fetching(500, filter) == fetching(2000, filter)


def test_fetching_all_retained_messages_is_linear() -> None:
    costs = [fetching(count, "kept/#").total() for count in (200, 400, 600)]
    steps = [after - before for before, after in pairwise(costs)]
    assert steps[0] == pytest.approx(steps[1], rel=0.02)
    assert steps[0] < 200 * 60  # calls for each message


def fanned(count: int, version: int = 4) -> Counter[str]:
    """Return the number of operations that deliver a message to `count` subscribers."""
    with Harness() as harness:
        for number in range(count):
            client = harness.connect(f"sub{number}", version=version)
            client.subscribe("bench/load")
            client.wire.write = lambda data: None  # type: ignore[method-assign]
        return cost(harness.connect("pub", version=4), packet("bench/load"))


def test_fan_out_is_linear_and_small_for_each_subscriber() -> None:
    one, two, three = (fanned(count).total() for count in (100, 200, 300))
    assert two - one == three - two
    assert two - one <= 100 * 8


@pytest.mark.parametrize("version", [4, 5], ids=["same version", "other version"])
def test_a_message_is_encoded_once_for_all_its_subscribers(version: int) -> None:
    def encoded(found: Counter[str]) -> int:
        return sum(count for name, count in found.items() if "encode" in name)

    few, many = fanned(2, version), fanned(100, version)
    assert encoded(few) == encoded(many)
    assert encoded(many) <= (0 if version == 4 else 8)


def test_no_operation_depends_on_the_payload() -> None:
    def at(size: int) -> Counter[str]:
        with Harness() as harness:
            receiver(harness, "one", "bench/load")
            publisher = harness.connect("pub", version=4)
            return cost(publisher, packet("bench/load", b"x" * size))

    # Remaining Length has 2 to 4 bytes; the payloads compared have 3.
    assert at(20_000) == at(900_000)


class Counting(Plugin):
    """A plugin that counts every message."""

    seen = 0

    @hookimpl
    def on_publish(self, message: object) -> None:
        self.seen += 1


def test_each_plugin_is_called_once_and_costs_the_same() -> None:
    totals = []
    for count in (1, 2, 3, 4):
        least = []
        for _ in range(3):  # one call of a hook in 64 is timed, which adds a call
            plugins = [make_plugin(Counting, {}, f"p{number}") for number in range(count)]
            with Harness(plugins) as harness:
                receiver(harness, "one", "bench/load")
                found = cost(harness.connect("pub", version=4), packet("bench/load"), warm=3)
            assert [one.plugin.seen for one in plugins] == [4] * count  # type: ignore[attr-defined]
            assert found["Counting.on_publish"] == count
            least.append(found.total())
        totals.append(min(least))
    steps = {after - before for before, after in pairwise(totals)}
    assert len(steps) == 1
