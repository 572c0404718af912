"""Count the calls and files on the path of a PUBLISH, and how often the path returns to a broker file that it has left.

New contributors read the code along this path. A change that makes the path longer must raise the counts in this file.
"""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

import hookmq
import pytest
from hookmq.hooks.instance import PluginEntry, PluginInstance
from hookmq.mqtt.packets import Puback
from hookmq.plugin import Context, Message, Plugin, TraceRequest, hookimpl
from hookmq_testing import DurableStore, Harness, MemoryClient

ROOT: Final = f"{Path(hookmq.__file__).parent}/"
PAGE: Final = Path(__file__).parents[2] / "docs" / "explanation" / "architecture.md"
CLIENTS: Final = ("/hookmq_testing/client.py", "/hookmq_testing/wire.py")
"""Client-side files, which are not part of the path."""
STARTS: Final = ("PacketReader.feed", "WriteScheduler.end_turn")

pytestmark = pytest.mark.skipif(hookmq.BUILD.kind != "pure", reason="compiled calls leave no trace")


class Trace:
    """The functions of `hookmq` that are called for one PUBLISH, in order, as (file, name)."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self._inside: list[bool | None] = []
        """For each frame, whether it is on the path, or None if the calls it makes are ignored."""

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            self._inside.append(self._enter(frame.f_code.co_filename, frame.f_code.co_qualname))
        elif event == "return" and self._inside:
            self._inside.pop()

    def _enter(self, path: str, name: str) -> bool | None:
        above = self._inside[-1] if self._inside else False
        if above is None:
            return None
        if not path.startswith(ROOT):
            return None if above and path.endswith(CLIENTS) else above
        if not above and not name.endswith(STARTS):
            return None
        if name == "PacketReader.feed" and self.calls:
            return None  # the receiver's acknowledgement is a packet of its own
        if not name.endswith(">"):  # a comprehension is not a separate call in newer Pythons
            self.calls.append((path.removeprefix(ROOT), name))
        return True

    @property
    def files(self) -> set[str]:
        return {file for file, _ in self.calls}

    @property
    def returns(self) -> int:
        """Return how often the path returns to a broker file that it has left."""
        broker = [file for file, _ in self.calls if file.startswith("broker/")]
        moves = [file for at, file in enumerate(broker) if at == 0 or broker[at - 1] != file]
        return len(moves) - len(set(moves))

    def __str__(self) -> str:
        return "\n".join(f"{file} {name}" for file, name in self.calls)


def publish(harness: Harness, client: MemoryClient, number: int) -> Trace:
    """Send a QoS 1 PUBLISH with this packet id to ``a/b``. Trace it until all the turns that it causes have ended."""
    packet = b"\x32\x09\x00\x03a/b" + number.to_bytes(2, "big") + b"\0x"
    connection = client.wire.connection
    assert connection is not None
    trace = Trace()
    sys.setprofile(trace)
    try:
        connection.feed(packet)
        harness.clock.run_until_idle()
    finally:
        sys.setprofile(None)
    return trace


@pytest.fixture
def harnesses() -> Iterator[Callable[..., Harness]]:
    made: list[Harness] = []

    def make(**options: Any) -> Harness:
        made.append(Harness(**options))
        return made[-1]

    yield make
    for harness in made:
        harness.close()


def check(trace: Trace, calls: int, files: int, returns: int) -> None:
    assert trace.calls, "nothing was traced"
    assert len(trace.calls) <= calls, str(trace)
    assert len(trace.files) <= files, "\n".join(sorted(trace.files))
    assert trace.returns <= returns, str(trace)


def test_the_first_of_its_topic_to_a_clean_session(harnesses: Callable[..., Harness]) -> None:
    harness = harnesses()
    subscriber = harness.connect("subscriber")
    subscriber.subscribe("a/b", qos=1)
    trace = publish(harness, harness.connect("publisher"), 1)
    assert subscriber.expect_message("a/b").payload == b"x"
    check(trace, calls=50, files=14, returns=3)
    told = re.findall(r"^\|[^|]*\| `([a-z_/]+\.py)` \|", PAGE.read_text(), re.MULTILINE)
    assert told == list(dict.fromkeys(file for file, _ in trace.calls))
    lookups = [name for _, name in trace.calls if name == "SubscriptionTree.lookup"]
    assert len(lookups) == 1


def test_a_durable_session_that_is_offline(harnesses: Callable[..., Harness]) -> None:
    harness = harnesses(store=DurableStore())
    subscriber = harness.connect("subscriber", session_expiry_interval=3600)
    subscriber.subscribe("a/b", qos=1)
    subscriber.drop()
    harness.clock.run_until_idle()
    publisher = harness.connect("publisher")
    trace = publish(harness, publisher, 1)
    assert publisher.expect(Puback).packet_id == 1
    check(trace, calls=60, files=18, returns=5)
    lookups = [name for _, name in trace.calls if name == "SubscriptionTree.lookup"]
    assert len(lookups) == 1


def test_the_fast_path(harnesses: Callable[..., Harness]) -> None:
    harness = harnesses()
    subscriber = harness.connect("subscriber")
    subscriber.subscribe("a/b", qos=1)
    publisher = harness.connect("publisher")
    for number in range(1, 6):
        publish(harness, publisher, number)
    trace = publish(harness, publisher, 6)
    check(trace, calls=11, files=4, returns=1)


class Watching(Plugin):
    """A plugin that is called for each message but changes nothing."""

    seen = 0

    @hookimpl
    def on_publish(self, message: Message) -> None:
        self.seen += 1


class Observing(Plugin):
    """A plugin that observes each message."""

    seen = 0

    @hookimpl
    def on_published(self, message: Message) -> None:
        self.seen += 1


def known_topic(
    harnesses: Callable[..., Harness], kind: type[Plugin] | None, *filters: str, count: int = 1
) -> tuple[Trace, list[Any]]:
    """Trace the sixth PUBLISH to the same topic, in a broker with `count` plugins. Return the trace and the plugins."""
    plugins = [kind(None, Context(f"p{number}")) for number in range(count)] if kind else []
    entries = [
        PluginInstance(PluginEntry(use=plugin.id, filters=filters or None), plugin)
        for plugin in plugins
    ]
    harness = harnesses(plugins=entries)
    harness.connect("subscriber").subscribe("a/b", qos=1)
    publisher = harness.connect("publisher")
    for number in range(1, 6):
        publish(harness, publisher, number)
    return publish(harness, publisher, 6), plugins


def test_the_fast_path_with_plugins_in_on_publish(harnesses: Callable[..., Harness]) -> None:
    without, _ = known_topic(harnesses, None)
    one, (plugin,) = known_topic(harnesses, Watching)
    five, _ = known_topic(harnesses, Watching, count=5)
    assert plugin.seen == 6
    added = [name for _, name in one.calls if name not in {name for _, name in without.calls}]
    assert added == ["passed", "BrokerState.arrival", "ask"]
    assert len(five.calls) == len(one.calls)  # each further plugin costs its own call only


def test_a_plugin_narrowed_to_other_topics_costs_nothing(
    harnesses: Callable[..., Harness],
) -> None:
    without, _ = known_topic(harnesses, None)
    for kind in (Watching, Observing):
        trace, (plugin,) = known_topic(harnesses, kind, "other/#", "more/+")
        assert trace.calls == without.calls
        assert plugin.seen == 0


def test_the_fast_path_with_an_observer(harnesses: Callable[..., Harness]) -> None:
    without, _ = known_topic(harnesses, None)
    one, (plugin,) = known_topic(harnesses, Observing)
    assert plugin.seen == 6
    # Notifying takes the same calls for all messages in a turn. Only creating each message's event adds calls.
    assert len(one.calls) <= len(without.calls) + 25, str(one)


def test_an_observer_adds_no_calls_for_each_message_at_qos_0(
    harnesses: Callable[..., Harness],
) -> None:
    counts = []
    for number in (1, 9):
        plugin = Observing(None, Context("p"))
        harness = harnesses(plugins=[plugin])
        harness.connect("subscriber").subscribe("a/b")
        connection = harness.connect("publisher").wire.connection
        assert connection is not None
        packet = b"\x30\x07\x00\x03a/b\0x"
        connection.feed(packet)
        harness.settle()
        trace = Trace()
        sys.setprofile(trace)
        try:
            connection.feed(packet * number)
            harness.clock.run_until_idle()
        finally:
            sys.setprofile(None)
        harness.settle()
        assert plugin.seen == 1 + number
        counts.append(sum(name != "fast_constructor.<locals>.construct" for _, name in trace.calls))
    assert counts[0] == counts[1]


def test_a_trace_changes_only_the_path_of_the_client_that_it_follows(
    harnesses: Callable[..., Harness],
) -> None:
    harness = harnesses(plugins=[Watching(None, Context("p"))])
    harness.connect("subscriber").subscribe("a/b", qos=1)
    one, two = harness.connect("one"), harness.connect("two")
    for number in range(1, 6):
        publish(harness, one, number)
        publish(harness, two, number)
    before = publish(harness, one, 6).calls
    followed = harness.handle("p").trace(TraceRequest(client_id="two"))
    assert publish(harness, one, 7).calls == before
    assert any("tracing/" in file for file, _ in publish(harness, two, 7).calls)
    followed.stop()
    publish(harness, two, 8)  # the end of the trace cleared the cached publishes
    assert publish(harness, two, 9).calls == before
    assert publish(harness, one, 8).calls == before
