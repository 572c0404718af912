"""Test sequences of packets from several clients: CVE-2024-8376 (mosquitto), CVE-2021-28166.

The sequences include takeovers, lost connections, waiting plugins, slow stores, reloads and delays. No internal error
occurs, each client id has at most one connection, and no state remains when all clients are gone.
"""

from typing import Any

import mqttbytes as m
from attacks import PAYLOAD, SECRET, at_rest, check_silence, spoken
from byteclient import ByteClient
from bytememory import in_memory
from hookmq.plugin import Context, Plugin, hookimpl
from hookmq_testing import Harness, SlowStore
from hypothesis import event, given, settings
from hypothesis import strategies as st

IDS = ("a", "b", "a\u0300")


def packets(level: int) -> list[bytes]:
    """Return packets that are meaningful alone or in sequence."""
    five = level == 5
    topics = ("t", "t/u", "$SYS/x", "t" * 200)
    made = [
        m.connect(name, level=level, clean=clean, keep_alive=keep, username="u", password=SECRET.encode(),
                  will=("t/w", PAYLOAD) if will else None, will_qos=will, properties=expiry if five else b"",
                  will_properties=m.will_delay(3) if five and will else b"")
        for name in IDS for clean in (True, False) for keep in (0, 2) for will in (0, 1)
        for expiry in ((b"", m.session_expiry(5) + m.receive_maximum(2) + m.alias_maximum(2)) if five else (b"",))
    ]  # fmt: skip
    made += [
        m.publish(topic, PAYLOAD, qos, qos and number, level=level, retain=retain, dup=dup)
        for topic in topics for qos in (0, 1, 2) for number in (1, 2) for retain in (False, True) for dup in (False, True)
        if qos or not dup
    ]  # fmt: skip
    made += [make(n) for make in (m.puback, m.pubrec, m.pubrel, m.pubcomp) for n in (1, 2, 3, 7)]
    filters = ("t", "t/#", "+", "#", "$share/g/t/#", "$share//t", "t/#/u", "")
    made += [m.subscribe(5, (name, qos), level=level) for name in filters for qos in (0, 1, 2)]
    made += [m.unsubscribe(6, name, level=level) for name in filters]
    made += [
        m.PINGREQ,
        m.disconnect(),
        b"\x20\x02\0\0",
        b"\xf0\x00",
        b"\x00\x00",
        b"\x30\xff\xff\xff\x7f",
    ]
    if five:
        made += [
            m.disconnect(4),
            m.disconnect(0, m.session_expiry(7)),
            m.auth(0x18, m.auth_method("x")),
        ]
        made += [
            m.publish("t", PAYLOAD, 1, 3, properties=m.alias(1)),
            m.publish("", PAYLOAD, properties=m.alias(1)),
        ]
        made += [
            m.publish("t", PAYLOAD, 1, 4, properties=m.expiry(1)),
            m.puback(1, 0x80),
            m.pubrec(2, 0x97),
        ]
        made += [m.subscribe(5, ("t/#", 4 | 8 | 2), properties=m.identifier(9))]
    return made


PACKETS = {level: packets(level) for level in (3, 4, 5)}


@st.composite
def sent(draw: st.DrawFn) -> tuple[int, bytes]:
    """Draw a protocol level and a packet for it, which is sometimes corrupted."""
    level = draw(st.sampled_from([5, 5, 4, 3]))
    data = draw(st.sampled_from(PACKETS[level]))
    how = draw(st.integers(0, 19))
    if how == 0:
        data = data[: draw(st.integers(0, len(data)))]
    elif how == 1:
        at = draw(st.integers(0, len(data) - 1))
        data = data[:at] + bytes((draw(st.integers(0, 255)),)) + data[at + 1 :]
    elif how == 2:
        data += draw(st.sampled_from(PACKETS[level]))
    return level, data


STEP = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 3), sent()),
    st.tuples(st.just("send"), st.integers(0, 3), sent()),
    st.tuples(st.just("join"), st.integers(0, 3), st.sampled_from([5, 4])),
    st.tuples(st.just("drop"), st.integers(0, 3), st.none()),
    st.tuples(st.just("block"), st.integers(0, 3), st.booleans()),
    st.tuples(st.just("time"), st.sampled_from([0, 1, 4, 20]), st.none()),
    st.tuples(st.just("answer"), st.integers(0, 3), st.none()),
    st.tuples(st.just("commit"), st.integers(0, 3), st.none()),
    st.tuples(st.just("reload"), st.integers(0, 3), st.none()),
)


class Waits(Plugin):
    """A plugin that delays every second decision until it is released."""

    turn = 0
    waiting: list[Any]
    clock: Any

    def decide(self) -> Any:
        self.turn += 1
        if self.turn % 2 or not self.clock:
            return None
        self.waiting.append(self.clock.event())
        return self.waiting[-1]

    @hookimpl
    def on_connect(self) -> Any:
        return self.decide()

    @hookimpl
    def authorize(self) -> Any:
        return self.decide()

    @hookimpl
    def on_publish(self) -> Any:
        return self.decide()


def run(steps: list[Any], waits: bool, slow: bool) -> None:
    plugin = Waits(None, Context("waits"))
    plugin.waiting, plugin.clock = [], None
    store = SlowStore(slow=False)
    short = {"session": {"max_expiry": 60.0}}
    with Harness([plugin] if waits else [], store=store, config=short) as harness:
        plugin.clock = harness.clock if waits else None
        store.slow = slow
        before = at_rest(harness)
        clients: dict[int, ByteClient] = {}
        for what, which, value in steps:
            event(what)
            client = clients.get(which)
            if what == "send":
                if client is None or client.wire.closed:
                    client = clients[which] = in_memory(harness, value[0])
                client.send(value[1])
            elif what == "join":
                client = clients[which] = in_memory(harness, value)
                client.connect(IDS[which % len(IDS)])
            elif what == "time":
                harness.advance(which)
            elif what == "answer" and plugin.waiting:
                plugin.waiting.pop(0).set(None)
                harness.settle()
            elif what == "commit":
                store.finish(all=bool(which))
                harness.settle()
            elif what == "reload":
                harness.reload({"broker": {"max_qos": 2 - which % 2}})
            elif client is not None and what == "drop":
                client.close()
            elif client is not None:
                client.wire.block() if value else client.wire.unblock()
            online = [
                s.connection for s in harness.broker.sessions.values() if s.connection is not None
            ]
            assert len(set(map(id, online))) == len(online)
            assert harness.broker.state.queued_bytes >= 0
            for session in harness.broker.sessions.values():
                assert len(session.inflight) <= 65535
                assert session.queued >= 0
        for connection in list(harness.broker.connections):
            connection.wire.lose()  # type: ignore[attr-defined]
        harness.settle()
        plugin.clock = None
        for waiting in plugin.waiting:
            waiting.set(None)
        store.slow = False
        store.finish()
        harness.advance(100)
        left = at_rest(harness)
        assert left == {**before, "queued": 0}
        check_silence(spoken(harness))


@settings(max_examples=75)
@given(st.lists(STEP, max_size=40))
def test_sequences(steps: list[Any]) -> None:
    run(steps, waits=False, slow=False)


@settings(max_examples=75)
@given(st.lists(STEP, max_size=40), st.booleans())
def test_sequences_that_wait(steps: list[Any], slow: bool) -> None:
    """Sequences of packets cause no errors, even if plugins answer late and commits are slow."""
    run(steps, waits=True, slow=slow)
