"""Test that clients leave no objects behind when they disconnect.

Each test runs rounds of every way to connect and disconnect, then counts live objects by type. The counts after many
rounds must equal those after a few.
"""

import gc
from collections import Counter
from collections.abc import Callable

import pytest
from hookmq_testing import Harness, will

SETTINGS = {"session": {"max_expiry": 3600}}


def clean_sessions(harness: Harness, number: int) -> None:
    """Connect, subscribe, publish at every QoS and disconnect, each time with a new client id."""
    for version in (4, 5):
        client = harness.connect(f"c{number}-{version}", version=version)
        client.subscribe([(f"a/{number}", 2), (f"b/{number}/#", 1), ("$share/g/c/+", 1)])
        for qos in (0, 1, 2):
            client.publish(f"a/{number}", b"x", qos=qos)
            client.publish(f"c/{number}", b"y", qos=qos)
        client.unsubscribe(f"b/{number}/#")
        client.disconnect()


def durable_sessions(harness: Harness, number: int) -> None:
    """Create one session with queued messages that expires, and one that is resumed and then ended."""
    for way in ("expires", "ends"):
        name = f"d{number}-{way}"
        client = harness.connect(name, version=5, clean_start=False, session_expiry_interval=60)
        client.subscribe([(f"d/{number}", 2)])
        client.drop()
        sender = harness.connect("", version=5)
        for qos in (1, 2):
            sender.publish(f"d/{number}", b"later", qos=qos)
        sender.disconnect()
        if way == "expires":
            harness.clock.advance(61)
        else:
            client = harness.connect(name, version=5, clean_start=False)
            assert client.session_present
            client.disconnect()


def wills_and_retained(harness: Harness, number: int) -> None:
    """Publish a retained will, then clear its topic."""
    client = harness.connect(f"w{number}", version=5, will=will(f"w/{number}", b"gone", 1, True))
    client.drop()
    other = harness.connect("", version=5)
    other.subscribe([(f"w/{number}", 1)])
    assert other.expect_message(f"w/{number}").payload == b"gone"
    other.publish(f"w/{number}", b"", retain=True)
    other.disconnect()


def expiring_retained(harness: Harness, number: int) -> None:
    """Replace and clear retained messages, on one topic and on many, long before they expire."""
    client = harness.connect(f"e{number}", version=5)
    for topic in ("e/always", f"e/{number % 4}"):
        for interval in (4294967295, 3600, 7200):
            client.publish(topic, b"x", 1, retain=True, message_expiry_interval=interval)
    client.publish(f"e/{number % 4}", b"", retain=True)
    client.disconnect()


def reloads(harness: Harness, number: int) -> None:
    """Replace settings and hooks while sessions and retained messages exist, so that permissions are checked again."""
    client = harness.connect("r", version=5, clean_start=False, session_expiry_interval=60)
    client.subscribe("r/#", 1)
    client.publish("r/1", b"x", 1, retain=True, message_expiry_interval=1000)
    harness.reload(config={"broker": {"max_retained": 1000 + number}})
    client.drop()
    harness.reload(config={"broker": {"max_retained": 2000 + number}})


def takeovers(harness: Harness, number: int) -> None:
    """Connect repeatedly with the same client id."""
    first = harness.connect("taken", version=5)
    first.publish("t", b"x", topic_alias=1)
    second = harness.connect("taken", version=5)
    assert first.closed
    second.disconnect()


def bad_clients(harness: Harness, number: int) -> None:
    """Send bytes that are not MQTT, and an incomplete packet."""
    for data in (b"\x10\x00", b"\x30\xff\xff\xff\x7f", b"\x10\xff"):
        client = harness.connect(f"bad{number}", version=4)
        client.raw(data)
        client.drop()


KINDS = [
    clean_sessions, durable_sessions, wills_and_retained, expiring_retained, reloads, takeovers, bad_clients,
]  # fmt: skip


def objects(harness: Harness) -> Counter[str]:
    """Return the number of the broker's live objects of each type, and the sizes of their containers."""
    for client in harness.clients:
        assert client.closed
    harness.clock.advance(100)  # cancelled deadlines are removed when they come due
    harness.clients.clear()
    harness.logs.clear()
    gc.collect()
    # Do not pass a generator to `Counter`. It would check whether the generator is a Mapping, and Python caches the
    # result. The cache would then differ between the first and the second count.
    counts: Counter[str] = Counter()
    for found in gc.get_objects():
        kind = type(found)
        if (
            str(kind.__module__).startswith("hookmq.")
            or kind in (dict, list, set)
            or kind.__name__ in ("deque", "partial", "function", "method", "bytearray")
        ):
            counts[f"{kind.__module__}.{kind.__qualname__}"] += 1
    return counts


@pytest.mark.parametrize("churn", KINDS)
def test_nothing_stays(churn: Callable[[Harness, int], None]) -> None:
    with Harness(config=SETTINGS) as harness:
        for number in range(4):
            churn(harness, number)
        before = objects(harness)
        state = len(harness.broker.state.sessions), len(harness.broker.connections)
        for number in range(4, 34):
            churn(harness, number)
        assert len(harness.broker.state.deadlines) < 20
        more = objects(harness) - before
        assert (len(harness.broker.state.sessions), len(harness.broker.connections)) == state
        # One leaked object per round would be thirty.
        assert {name: count for name, count in more.items() if count >= 15} == {}


def test_the_check_detects_objects_that_remain() -> None:
    """The check detects sessions that have not been removed."""
    with Harness(config=SETTINGS) as harness:
        before = objects(harness)
        for number in range(60):
            client = harness.connect(f"k{number}", version=5, session_expiry_interval=3600)
            client.drop()
        more = objects(harness) - before
        assert more["hookmq.session.session.Session"] == 60
