"""Test a few clients that perform random actions in any order, and compare the results with a model of MQTT's
guarantees.

- Every QoS 1 and 2 message reaches every session that was subscribed when it was published, unless
  it was dropped at a limit and counted. QoS 2 messages arrive exactly once. QoS 1 messages repeat
  only with DUP and the same packet id. QoS 0 messages arrive at most once.
- Messages of one publisher, topic and QoS keep their order. No client receives a message that it
  did not subscribe to.
- No window is exceeded, and no packet id is used twice at a time.
- No state remains when all clients have left.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from hookmq.mqtt.packets import Packet, Puback, Pubcomp, Publish, Pubrec, Pubrel
from hookmq.storage.memory_store import MemoryStore
from hookmq_testing import Harness, HookRecorder, MemoryClient
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

FITS = {
    "#": ("a", "a/b", "c"),
    "a/#": ("a", "a/b"),
    "+": ("a", "c"),
    "a/b": ("a/b",),
    "a": ("a",),
}
"""Filters and the topics that they match."""
TOPICS = ("a", "a/b", "c")
SLOTS = range(4)
Order = tuple[int, str, int]
"""(publisher, topic, QoS): the messages that must keep their order."""


@dataclass
class Person:
    """A client in the model. If `kept`, the fields that start with `session` outlive its connection."""

    slot: int
    client: MemoryClient | None = None
    kept: bool = False
    eager: bool = True
    window: int = 256
    session_filters: dict[str, int] = field(default_factory=dict)
    session_awaited: dict[int, Order] = field(default_factory=dict)
    """QoS 1 and 2 messages that must still arrive."""
    session_possible: dict[int, Order] = field(default_factory=dict)
    """QoS 0 messages that may still arrive, because they may have been queued for an earlier connection."""
    session_seen: dict[int, int] = field(default_factory=dict)
    """Received messages that the broker has not released yet, by packet id."""
    session_pending: dict[int, Packet] = field(default_factory=dict)
    """The client's own publishes that are not complete, with the packet to send again, by packet id."""
    session_last: dict[Order, int] = field(default_factory=dict)
    passing: dict[int, Order] = field(default_factory=dict)
    """QoS 0 messages that must arrive before the connection ends."""
    unacknowledged: dict[int, type[Packet]] = field(default_factory=dict)
    """The acknowledgements that the client owes, by packet id."""

    def forget(self) -> None:
        """Reset the state of a session that has ended."""
        for kind in ("filters", "awaited", "possible", "seen", "pending", "last"):
            getattr(self, "session_" + kind).clear()

    def gone(self, queue_qos0: bool) -> None:
        """Reset the state of a connection that has ended."""
        self.client = None
        if queue_qos0:
            self.session_possible.update(self.passing)
        self.passing.clear()
        self.unacknowledged.clear()
        if not self.kept:
            self.forget()


class Recording(MemoryStore):
    """An in-memory store that receives every record, like a store on disk. It reads queues in pages."""


class Clients(RuleBasedStateMachine):
    """Drives the broker and a few clients through random actions, and checks the guarantees in the module docstring."""

    @initialize(
        page=st.sampled_from([1, 3, 256]),
        inflight=st.sampled_from([2, 256]),
        bound=st.sampled_from([3, 10_000, 10_000]),
        policy=st.sampled_from(["newest", "oldest"]),
        cache=st.sampled_from([0, 2, 1024]),
        cut=st.sampled_from([1, 1000]),
        queue_qos0=st.booleans(),
        people=st.lists(
            st.tuples(
                st.sampled_from([3, 4, 5]),
                st.booleans(),
                st.sampled_from([True, True, False]),
                st.sampled_from([1, 3, None]),
                st.lists(st.tuples(st.sampled_from(sorted(FITS)), st.integers(0, 2)), max_size=2),
            ),
            min_size=len(SLOTS),
            max_size=len(SLOTS),
        ),
    )
    def begin(
        self,
        page: int,
        inflight: int,
        bound: int,
        policy: str,
        cache: int,
        cut: int,
        queue_qos0: bool,
        people: list[tuple[int, bool, bool, int | None, list[tuple[str, int]]]],
    ) -> None:
        self.recorder = HookRecorder("on_dropped")
        self.store = MemoryStore() if page > 3 else Recording()
        self.queue_qos0 = queue_qos0
        self.inflight = inflight
        self.harness = Harness(
            plugins=[self.recorder] if bound < 10_000 else [],
            store=self.store,
            config={
                "session": {
                    "queue_page": page,
                    "max_inflight": inflight,
                    "queue_messages": bound,
                    "queue_drop": policy,
                    "queue_qos0": queue_qos0,
                },
                "broker": {"authz_cache": cache, "fan_out_batch": cut},
            },
        )
        self.people = [Person(slot) for slot in SLOTS]
        self.published = 0
        for slot, (version, kept, eager, window, filters) in enumerate(people):
            self.connect(slot, version, kept, eager, window, True)
            for topic_filter, qos in filters:
                self.subscribe(slot, topic_filter, qos)

    # --- what clients do ------------------------------------------------------------------------------------------

    @rule(
        slot=st.sampled_from(SLOTS),
        version=st.sampled_from([3, 4, 5]),
        kept=st.booleans(),
        eager=st.booleans(),
        window=st.sampled_from([1, 3, None]),
        bye=st.booleans(),
    )
    def connect(
        self, slot: int, version: int, kept: bool, eager: bool, window: int | None, bye: bool
    ) -> None:
        person = self.people[slot]
        there = person.kept
        if person.client is not None:
            if bye:
                person.client.drop()
            else:  # a takeover: the old connection is flushed before it ends
                person.client.resume()
                self.hear(person, answer=False)
            person.gone(self.queue_qos0)
        options: dict[str, Any] = {}
        if version == 5:
            options["receive_maximum"] = window
            if kept:
                options["session_expiry_interval"] = 1000
        client = self.harness.connect(
            f"c{slot}", version, not kept, auto_ack=False, high_water=150, **options
        )
        if not kept:
            person.forget()
        if version != 3:
            assert client.session_present == (kept and there)
        person.client, person.kept, person.eager = client, kept, eager
        person.window = min(window or 65535, self.inflight) if version == 5 else self.inflight
        for number, packet in list(person.session_pending.items()):
            if isinstance(packet, Publish) and packet.qos == 1:
                del person.session_pending[number]
            else:
                client.send(packet)
        self.settle()

    @rule(slot=st.sampled_from(SLOTS), polite=st.booleans())
    def leave(self, slot: int, polite: bool) -> None:
        person = self.people[slot]
        if person.client is not None:
            if polite:
                person.client.disconnect()
            else:
                person.client.drop()
            person.gone(self.queue_qos0)
        self.settle()

    # Use three rules instead of one: Hypothesis disables rules at random, and without publishing nothing happens.
    @rule(slot=st.sampled_from(SLOTS), topic=st.sampled_from(TOPICS), count=st.integers(1, 4))
    def publish_0(self, slot: int, topic: str, count: int) -> None:
        self.publish(slot, topic, 0, count)

    @rule(slot=st.sampled_from(SLOTS), topic=st.sampled_from(TOPICS), count=st.integers(1, 4))
    def publish_1(self, slot: int, topic: str, count: int) -> None:
        self.publish(slot, topic, 1, count)

    @rule(slot=st.sampled_from(SLOTS), topic=st.sampled_from(TOPICS), count=st.integers(1, 4))
    def publish_2(self, slot: int, topic: str, count: int) -> None:
        self.publish(slot, topic, 2, count)

    def publish(self, slot: int, topic: str, qos: int, count: int) -> None:
        person = self.people[slot]
        if person.client is None:
            return
        packets: list[Packet] = []
        for _ in range(count):
            number = next(n for n in range(1, 65536) if n not in person.session_pending)
            self.published += 1
            packet = Publish(topic, b"%d" % self.published, qos, packet_id=number if qos else 0)
            packets.append(packet)
            if qos == 1:
                person.session_pending[number] = packet
            elif qos == 2:
                again = Publish(topic, packet.payload, 2, dup=True, packet_id=number)
                person.session_pending[number] = again
            for other in self.people:
                if other.client is None and not other.kept:
                    continue
                granted = [q for f, q in other.session_filters.items() if topic in FITS[f]]
                if not granted:
                    continue
                effective = min(qos, max(granted))
                order = (slot, topic, effective)
                if effective or (other.kept and self.queue_qos0 and other.client is None):
                    other.session_awaited[self.published] = order
                elif other.client is not None:
                    other.passing[self.published] = order
        person.client.send(*packets)
        self.settle()

    @rule(slot=st.sampled_from(SLOTS), filter=st.sampled_from(sorted(FITS)), qos=st.integers(0, 2))
    def subscribe(self, slot: int, filter: str, qos: int) -> None:
        person = self.people[slot]
        if person.client is not None:
            person.client.send_subscribe(filter, qos)
            person.session_filters[filter] = qos
            self.settle()

    @rule(slot=st.sampled_from(SLOTS), filter=st.sampled_from(sorted(FITS)))
    def unsubscribe(self, slot: int, filter: str) -> None:
        person = self.people[slot]
        if person.client is not None:
            person.client.send_unsubscribe(filter)
            person.session_filters.pop(filter, None)
            self.settle()

    @rule(slot=st.sampled_from(SLOTS), count=st.integers(1, 5), last=st.booleans())
    def acknowledge(self, slot: int, count: int, last: bool) -> None:
        person = self.people[slot]
        numbers = list(person.unacknowledged)
        self.answer(person, numbers[-count:] if last else numbers[:count])
        self.settle()

    @rule(slot=st.sampled_from(SLOTS))
    def pause(self, slot: int) -> None:
        client = self.people[slot].client
        if client is not None:
            client.pause()

    @rule(slot=st.sampled_from(SLOTS))
    def resume(self, slot: int) -> None:
        client = self.people[slot].client
        if client is not None:
            client.resume()
        self.settle()

    @rule(seconds=st.sampled_from([0.5, 30]))
    def wait(self, seconds: float) -> None:
        self.harness.advance(seconds)

    @precondition(lambda self: any(p.kept and p.client is None for p in self.people))
    @rule()
    def expire(self) -> None:
        self.harness.advance(700_000)
        for person in self.people:
            if person.client is None:
                person.kept = False
                person.forget()
        self.settle()

    # --- what they hear -------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Let all clients process packets until no more packets arrive."""
        heard = True
        while heard:
            self.harness.settle()
            heard = sum(map(self.hear, self.people)) > 0
        for call in self.recorder.calls("on_dropped"):
            if call.why.reason in ("queue_full", "queue_bytes"):
                person = self.people[int(call.client.client_id[1:])]
                number = int(call.message.payload)
                for known in (person.passing, person.session_awaited, person.session_possible):
                    known.pop(number, None)
        self.recorder.clear()

    def hear(self, person: Person, answer: bool = True) -> bool:
        client = person.client
        if client is None:
            return False
        assert not client.closed
        packets = list(client.unread)
        client.unread.clear()
        for packet in packets:
            if isinstance(packet, Publish):
                self.take(person, packet)
            elif isinstance(packet, Pubrel):
                person.session_seen.pop(packet.packet_id, None)
                person.unacknowledged[packet.packet_id] = Pubcomp
            elif isinstance(packet, Puback | Pubcomp):
                del person.session_pending[packet.packet_id]
            elif isinstance(packet, Pubrec):
                assert packet.packet_id in person.session_pending
                person.session_pending[packet.packet_id] = Pubrel(packet.packet_id)
                if answer:
                    client.send(Pubrel(packet.packet_id))
        answered = (
            self.answer(person, list(person.unacknowledged)) if answer and person.eager else 0
        )
        return bool(packets or answered)

    def take(self, person: Person, packet: Publish) -> None:
        message = int(packet.payload)
        number = packet.packet_id
        if packet.qos:
            assert number not in person.unacknowledged
            person.unacknowledged[number] = Puback if packet.qos == 1 else Pubrec
            assert len(person.unacknowledged) <= person.window
            if packet.dup:
                # The client may see it for the first time, because its previous connection ended before it arrived.
                if person.session_seen.get(number) == message:
                    return
            else:
                assert number not in person.session_seen
            person.session_seen[number] = message
        known = (person.session_awaited, person.passing, person.session_possible)
        order = next(one for one in known if message in one).pop(message)
        assert order[1:] == (packet.topic, packet.qos)
        assert message > person.session_last.get(order, 0)
        person.session_last[order] = message

    def answer(self, person: Person, numbers: Iterable[int]) -> int:
        """Send the acknowledgements that are due for some packet ids. Return how many packets were sent."""
        client = person.client
        if client is None:
            return 0
        answers: list[Packet] = []
        for number in numbers:
            kind = person.unacknowledged[number]
            if kind is Puback:
                del person.unacknowledged[number], person.session_seen[number]
                answers.append(Puback(number))
            elif kind is Pubrec:
                person.unacknowledged[number] = Pubrel  # the client waits for PUBREL
                answers.append(Pubrec(number))
            elif kind is Pubcomp:
                del person.unacknowledged[number]
                answers.append(Pubcomp(number))
        client.send(*answers)
        return len(answers)

    # --- the end --------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "people"):
            return
        core = self.harness.broker.state
        for person in self.people:
            if person.client is None and person.kept:
                self.connect(person.slot, 5, True, True, None, True)
        for person in self.people:
            if person.client is not None:
                person.client.resume()
                person.eager = True
        self.settle()
        for person in self.people:
            assert not person.session_awaited
            assert not person.passing
            assert not person.session_pending
            assert not person.unacknowledged
            assert not person.session_seen
        assert core.queued_bytes == 0
        for session in core.sessions.values():
            assert (session.inflight, session.queued, session.queued_bytes) == ({}, 0, 0)
        for person in self.people:
            if person.client is not None:
                self.connect(person.slot, 5, False, True, None, True)
                self.leave(person.slot, True)
        assert core.sessions == {}
        assert len(core.router) == 0
        assert (core.remembered, core.queued_bytes, core.retained_bytes) == (0, 0, 0)
        assert (core.groups, core.fan_outs, core.writes.dirty) == ({}, {}, [])
        assert not core.committer.busy
        assert len(core.deadlines) == 1  # the check for messages to resend
        assert (self.store._messages, self.store._queues) == ({}, {})
        self.harness.close()


Clients.TestCase.settings = settings(
    max_examples=50,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow],
)
TestClients = Clients.TestCase
