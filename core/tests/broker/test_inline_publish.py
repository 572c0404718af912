"""Test that the fast path is only an optimization even if there are hooks. Neither clients nor plugins can tell which
path a PUBLISH took.

Each script runs twice: with a broker that uses the fast path, and with one that does not (``shortcuts``). Clients and
plugins must receive the same messages from both, and the counters must match.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hookmq.hooks.instance import HookOptions, PluginEntry, PluginInstance
from hookmq.hooks.verdicts import Deny, Drop, Handled
from hookmq.model.client import ClientInfo
from hookmq.model.message import Message
from hookmq.model.subscription import Subscription
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.framing import frame
from hookmq.mqtt.packets import Puback, Publish
from hookmq.mqtt.properties import EMPTY, Properties
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.plugin import BrokerHandle, Context, Plugin, hookimpl
from hookmq_testing import DurableStore, Harness, SlowStore
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

PLUGINS = 3


class Chained(Plugin):
    """A plugin in a chain. Each plugin reads one letter of the payload, which selects its result."""

    saw: list[tuple[Any, ...]]

    def position(self) -> int:
        return int(self.id[1:])

    @hookimpl
    def on_publish(self, client: ClientInfo | None, message: Message, broker: BrokerHandle) -> Any:
        self.saw.append((self.id, client and client.client_id, *described(message)))
        letter = message.payload[self.position() : self.position() + 1]
        if client is None:
            return None
        return ANSWERS.get(letter, abstain)(message, client, broker)

    @hookimpl
    def on_published(self, client: ClientInfo | None, message: Message, matched: int) -> None:
        self.saw.append(
            (self.id, "published", client and client.client_id, *described(message), matched)
        )


class Delivering(Plugin):
    """A plugin that also decides on deliveries."""

    saw: list[tuple[Any, ...]]

    @hookimpl
    def on_deliver(self, client: ClientInfo, message: Message, subscription: Subscription) -> Any:
        self.saw.append((self.id, client.client_id, *described(message), subscription.filter))
        letter = message.payload[PLUGINS : PLUGINS + 1]
        if client.client_id == "sub0":
            return None
        return DELIVERIES.get(letter, unchanged)(message)


def described(message: Message) -> tuple[Any, ...]:
    return (
        message.topic, message.payload, message.qos, message.retain, message.properties, message.sender,
        message.origin, message.received_at, message.expires_at,
    )  # fmt: skip


def abstain(message: Message, client: ClientInfo, broker: BrokerHandle) -> None:
    return None


def unchanged(message: Message) -> None:
    return None


async def later(answer: Any) -> Any:
    return answer


def fail(message: Message, *_: Any) -> Any:
    raise ValueError("broken")


def disconnect(message: Message, client: ClientInfo, broker: BrokerHandle) -> None:
    broker.disconnect(client.client_id, ReasonCode.ADMINISTRATIVE_ACTION)


def publish(message: Message, client: ClientInfo, broker: BrokerHandle) -> None:
    broker.publish(message.topic, b"nnn" + message.payload[:1], 0)


def remember(message: Message, client: ClientInfo, broker: BrokerHandle) -> None:
    broker.state.put(message.topic, message.payload)


def drop_subscriber(message: Message, client: ClientInfo, broker: BrokerHandle) -> None:
    broker.disconnect("sub1", ReasonCode.ADMINISTRATIVE_ACTION)


ANSWERS: dict[bytes, Callable[[Message, ClientInfo, BrokerHandle], Any]] = {
    b"s": lambda message, *_: message,
    b"r": lambda message, *_: message.replace(payload=message.payload + b"r"),
    b"q": lambda message, *_: message.replace(qos=0),
    b"t": lambda message, *_: message.replace(topic="moved"),
    b"i": lambda message, *_: message.replace(topic="in/+/valid"),
    b"o": lambda message, *_: message.replace(sender="other", origin="will"),
    b"+": lambda message, *_: message.replace(qos=2),
    b"d": lambda *_: Drop(),
    b"D": lambda *_: Deny(),
    b"h": lambda *_: Handled(),
    b"e": fail,
    b"x": lambda *_: 42,
    b"m": remember,
    b"a": lambda *_: later(None),
    b"b": lambda message, *_: later(message.replace(payload=b"nnnlater")),
    b"c": lambda *_: later(Drop()),
    b"k": disconnect,
    b"p": publish,
    b"u": drop_subscriber,
}
"""The result that a plugin returns for each letter. For any other letter, it abstains."""

DELIVERIES: dict[bytes, Callable[[Message], Any]] = {
    b"s": lambda message: message,
    b"r": lambda message: message.replace(payload=message.payload + b"d"),
    b"t": lambda message: message.replace(topic="elsewhere"),
    b"q": lambda message: message.replace(qos=0),
    b"d": lambda message: Drop(),
    b"D": lambda message: Deny(),
    b"e": fail,
    b"x": lambda message: 42,
}
TOPICS = ("t", "t/x", "other")


@dataclass
class Scene:
    """One broker with its chain, subscribers and a publisher. `answers` is true if plugins implement `on_publish`."""

    shortcuts: bool
    version: int = 4
    durable: bool = False
    slow: bool = False
    deliver: bool = False
    error: Literal["deny", "pass"] = "deny"
    filters: tuple[str, ...] | None = None
    saw: list[tuple[Any, ...]] = field(default_factory=list)
    drops: list[tuple[Any, ...]] = field(default_factory=list)
    heard: list[bytes] = field(default_factory=list)
    number: int = 0

    def __post_init__(self) -> None:
        made: list[PluginInstance] = []
        for number in range(PLUGINS):
            name = f"p{number}"
            plugin = Chained(None, Context(name))
            plugin.saw = self.saw
            entry = PluginEntry(use=name)
            if number == 1:
                hooks = {"on_publish": HookOptions(on_error=self.error)}
                entry = PluginEntry(use=name, filters=self.filters, hooks=hooks)
            made.append(PluginInstance(entry, plugin))
        if self.deliver:
            last = Delivering(None, Context("deliver"))
            last.saw = self.saw
            made.append(PluginInstance(PluginEntry(use="deliver"), last))
        self.harness = Harness(made, store=DurableStore() if self.durable else None)
        state = self.harness.broker.state
        state.shortcuts = self.shortcuts
        state.on_drop = lambda message, client, *why: self.drops.append(
            (message and described(message), client and client.client_id, *why)
        )
        self.subscribers = []
        for number, (version, qos) in enumerate(((4, 0), (5, 1), (5, 2), (4, 2))):
            options: dict[str, Any] = {"clean_start": False} if self.durable and number == 2 else {}
            if self.durable and number == 2:
                options["session_expiry_interval"] = 100
            if self.slow and number == 0:
                options["high_water"] = 50
            subscriber = self.harness.connect(f"sub{number}", version=version, **options)
            subscriber.subscribe("#", qos)
            self.subscribers.append(subscriber)
        if self.slow:
            self.subscribers[0].pause()
        self.publisher = self.harness.connect("pub", version=self.version, auto_ack=False)
        # The fast path knows every topic now.
        for topic in TOPICS:
            for qos in (0, 1, 2):
                self.feed([(topic, b"nnnn", qos, EMPTY)])

    def feed(self, messages: list[tuple[str, bytes, int, Properties]]) -> None:
        """Send PUBLISH packets in one read."""
        if self.publisher.wire.closed:
            self.heard.append(self.publisher.raw_received)
            self.publisher.reconnect()
        data = bytearray()
        for topic, payload, qos, properties in messages:
            self.number += 1
            known = properties if self.version == 5 else EMPTY
            packet = Publish(
                topic, payload, qos, packet_id=self.number if qos else 0, properties=known
            )
            data += encode(packet, self.version)
            if qos == 2:
                data += b"\x62\x02" + self.number.to_bytes(2, "big")
        self.publisher.raw(bytes(data))
        self.harness.settle()

    def end(self) -> dict[str, Any]:
        """Return everything that clients and plugins received, and the values of the counters."""
        clients = [*self.subscribers, self.publisher]
        for client in clients:
            client.resume()
        self.harness.settle()
        heard = [*self.heard, *(client.raw_received for client in clients)]
        kinds = [sorted(by_kind(data).items()) for data in heard]
        stats = {
            (one.id, name): {key: getattr(found, key) for key in COUNTED}
            for one in self.harness.hooks.plugins
            for name, found in one.kept.stats.items()
        }
        counters = {
            name: value
            for name, value in self.harness.metrics.snapshot().items()
            if name not in ("authz_cache_hits", "authz_cache_misses", "writes")
        }
        self.harness.close()
        return {
            "heard": kinds, "stats": stats, "counters": counters, "log": self.saw, "drops": self.drops,
        }  # fmt: skip


COUNTED = (
    "calls", "pending", "ok", "abstain", "deny", "replace", "drop", "error", "timeout", "timed", "last_error",
)  # fmt: skip


def by_kind(data: bytes) -> dict[int, list[bytes]]:
    """Return the packets in `data`, grouped by type. Packets stay in order within each group."""
    kinds: dict[int, list[bytes]] = {}
    pos = 0
    while pos < len(data):
        framed = frame(data, pos)
        assert framed is not None
        kinds.setdefault(data[pos] >> 4, []).append(data[pos : framed[1]])
        pos = framed[1]
    return kinds


def in_order(log: list[tuple[Any, ...]]) -> dict[tuple[str, bool], list[tuple[Any, ...]]]:
    """Group the calls in `log` by plugin, and by whether the plugin only observed them."""
    found: dict[tuple[str, bool], list[tuple[Any, ...]]] = {}
    for call in log:
        found.setdefault((call[0], call[1] == "published"), []).append(call)
    return found


def compare(script: Callable[[Scene], None], **options: Any) -> dict[str, Any]:
    """Run `script` with and without the fast path. Check that the results are equal, and return the result."""
    ends = []
    for shortcuts in (True, False):
        scene = Scene(shortcuts, **options)
        script(scene)
        ends.append(scene.end())
    fast, slow = ends
    # Each plugin's observers have a queue of their own, so only the order within a hook of a plugin is certain.
    assert in_order(fast["log"]) == in_order(slow["log"])
    for name in fast.keys() - {"log"}:
        assert fast[name] == slow[name], name
    return fast


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("letter", sorted(ANSWERS))
def test_every_answer_at_every_place(letter: bytes, version: int) -> None:
    def script(scene: Scene) -> None:
        for qos in (0, 1, 2):
            good = ("t", b"nnn1", qos, EMPTY)
            for place in range(PLUGINS):
                payload = bytearray(b"nnnn")
                payload[place : place + 1] = letter
                other = ("t/x", b"nnn2", qos, EMPTY)
                scene.feed([good, ("t", bytes(payload), qos, EMPTY), good, other])

    happened = compare(script, version=version)
    assert {call[0] for call in happened["log"] if call[1] == "pub"} == {"p0", "p1", "p2"}


@st.composite
def scripts(
    draw: st.DrawFn,
) -> tuple[dict[str, Any], list[list[tuple[str, bytes, int, Properties]]]]:
    """Draw the options of a scene, and the data that its publisher sends in each read."""
    options = {
        "version": draw(st.sampled_from([4, 5])),
        "durable": draw(st.booleans()),
        "slow": draw(st.booleans()),
        "deliver": draw(st.booleans()),
        "error": draw(st.sampled_from(["deny", "pass"])),
        "filters": draw(st.sampled_from([None, ("t/#",), ("moved",)])),
    }
    letters = st.sampled_from([b"n"] * 12 + sorted(ANSWERS))
    properties = [EMPTY, Properties(content_type="a"), Properties(message_expiry_interval=5)]
    reads = []
    for _ in range(draw(st.integers(1, 4))):
        messages = []
        for _ in range(draw(st.integers(1, 5))):
            payload = b"".join(draw(letters) for _ in range(PLUGINS))
            payload += draw(st.sampled_from([b"n"] * 4 + sorted(DELIVERIES)))
            qos = draw(st.integers(0, 2))
            messages.append(
                (draw(st.sampled_from(TOPICS)), payload, qos, draw(st.sampled_from(properties)))
            )
        reads.append(messages)
    return options, reads


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(scripts())
def test_chains_at_random(
    drawn: tuple[dict[str, Any], list[list[tuple[str, bytes, int, Properties]]]],
) -> None:
    options, reads = drawn

    def script(scene: Scene) -> None:
        for messages in reads:
            scene.feed(messages)

    compare(script, **options)


def test_an_acknowledgement_waits_for_what_the_hook_recorded(
    broker_harness: Callable[..., Harness],
) -> None:
    store = SlowStore(DurableStore(), slow=False)
    plugin = Chained(None, Context("p0"))
    plugin.saw = []
    harness = broker_harness([plugin], store=store)
    publisher = harness.connect("publisher")
    for _ in range(2):
        publisher.publish("t", b"n", 1, expect=ReasonCode.NO_MATCHING_SUBSCRIBERS)
    assert publisher.connection.memo[b"t"].calls
    store.slow = True
    publisher.publish("t", b"m", 1)
    harness.settle()
    assert store.committing is not None
    assert not [packet for packet in publisher.unread if isinstance(packet, Puback)]
    store.finish()
    harness.settle()
    assert publisher.expect(Puback).code == ReasonCode.NO_MATCHING_SUBSCRIBERS
