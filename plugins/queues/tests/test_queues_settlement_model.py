"""Test explicit settlement with random operations by two consumers, and with broker crashes.

A message is settled if and only if its settlement was acknowledged. All other messages are delivered in the end.
"""

import tempfile
from pathlib import Path
from typing import Any

from hookmq.mqtt_api import Puback, Publish
from hookmq_testing import Harness, MemoryClient
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from .conftest import Brokers, plugin_of

JOBS = "$queue/jobs"
QUEUES = [
    {
        "name": "jobs", "visibility_timeout": 20, "prefetch": 4,
        "groups": [{"name": "g", "settle": "explicit", "backoff": {"initial": 2, "causes": ["nack", "timeout", "lost"]}}],
    }
]  # fmt: skip


class SettlementMachine(RuleBasedStateMachine):
    """Two consumers that settle, return and reject the messages they hold, and that disconnect and reconnect."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.brokers = Brokers(Path(self.folder.name))
        self.harness: Harness = self.brokers(queues=QUEUES)
        self.clients: dict[str, MemoryClient] = {}
        self.held: dict[str, set[int]] = {}
        """The messages that each consumer got on its current connection and has not settled. The broker may have taken
        some of them away.
        """
        self.published = 0
        self.connections = 0
        self.settled: set[int] = set()
        self.delivered: dict[int, int] = {}
        """The delivery count that the next delivery of each message must exceed."""

    def take(self) -> None:
        self.harness.settle()
        found: list[tuple[int, int, str]] = []
        for name, client in self.clients.items():
            for one in client.unread:
                assert isinstance(one, Publish), one
                given = dict(one.properties.user_property or ())
                found.append((int(given["delivery-count"]), int(given["offset"]), name))
            client.unread.clear()
        # Both may have got a message since the last call, one after the other.
        for count, offset, name in sorted(found):
            assert offset not in self.settled
            assert count > self.delivered.get(offset, 0)
            self.delivered[offset] = count
            for other in self.held.values():
                other.discard(offset)  # a message has one consumer
            self.held[name].add(offset)

    @rule(name=st.sampled_from("ab"))
    def connect(self, name: str) -> None:
        """Connect. This may take over the connection or resume the session."""
        how: dict[str, Any] = {
            "clean_start": False,
            "session_expiry_interval": 3600,
            "keep_alive": 0,
        }
        self.connections += 1
        if self.connections % 5 == 0:
            self.wait(61)  # the broker delays clients that take over again and again
        self.clients.pop(name, None)
        self.held[name] = set()
        client = self.clients[name] = self.harness.connect(name, **how)
        assert client.subscribe(JOBS, 1).codes == (1,)
        self.take()

    @rule(name=st.sampled_from("ab"))
    def drop(self, name: str) -> None:
        client = self.clients.pop(name, None)
        if client is not None:
            client.drop()
            self.held[name] = set()
            self.take()

    @rule(count=st.integers(1, 4))
    def publish(self, count: int) -> None:
        client = self.harness.connect("publisher")
        for _ in range(count):
            client.publish(JOBS, b"", 1, expect=0)
        client.drop()
        self.published += count
        self.take()

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), verb=st.sampled_from(["ack", "ack", "nack", "reject"]))
    def settle(self, data: st.DataObject, verb: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.clients)))
        offset = data.draw(st.integers(0, self.published))
        hits: bool = data.draw(st.booleans())
        if self.held[name] and hits:
            offset = data.draw(st.sampled_from(sorted(self.held[name])))
        client = self.clients[name]
        pairs = (("message-id", f"jobs:{offset}"),)
        number = client.publish(f"{JOBS}/${verb}", b"", 1, user_property=pairs)
        self.harness.settle()
        (answer,) = [one for one in client.unread if isinstance(one, Puback)]
        client.unread.remove(answer)
        assert answer.packet_id == number
        if answer.code == 0:
            assert offset in self.held[name]
            self.held[name].discard(offset)
            if verb != "nack":
                self.settled.add(offset)
        self.take()

    @rule(seconds=st.sampled_from([1, 5, 25]))
    def wait(self, seconds: int) -> None:
        self.harness.advance(seconds)
        self.take()

    @rule()
    def crash(self) -> None:
        self.brokers.crash(self.harness)
        self.clients.clear()
        self.held = {name: set() for name in self.held}
        # A crash may forget deliveries, but not that there was one.
        self.delivered = dict.fromkeys(self.delivered, 1)
        self.harness = self.brokers(queues=QUEUES)

    @invariant()
    def they_agree(self) -> None:
        dispatcher = plugin_of(self.harness).queues["jobs"].dispatchers["g"]
        assert dispatcher.backlog == self.published - len(self.settled)
        leases = dispatcher.group.leases
        for one in dispatcher.consumers.by_key.values():
            mine = [offset for offset, lease in leases.items() if lease.consumer == one.key]
            assert one.held == len(mine) <= 4
            assert set(mine) <= self.held[one.client_id]

    def teardown(self) -> None:
        self.drop("b")  # it would take messages and never settle them
        self.connect("a")
        for _ in range(200):
            if len(self.settled) == self.published:
                break
            self.harness.advance(5)
            self.take()
            for offset in sorted(self.held["a"]):
                client = self.clients["a"]
                client.publish(
                    f"{JOBS}/$ack", b"", 1, user_property=(("message-id", f"jobs:{offset}"),)
                )
                self.harness.settle()
                (answer,) = [one for one in client.unread if isinstance(one, Puback)]
                client.unread.remove(answer)
                self.held["a"].discard(offset)
                if answer.code == 0:
                    self.settled.add(offset)
                self.take()
        assert self.settled == set(range(self.published))
        for one in self.brokers.made:
            one.close()
        self.folder.cleanup()


TestSettlement = SettlementMachine.TestCase
TestSettlement.settings = settings(
    max_examples=8,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
