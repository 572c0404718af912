"""Helpers that publish messages whose payloads are numbers, and check which of them arrive."""

from hookmq.mqtt.packets import Publish
from hookmq_testing import Harness, MemoryClient


def payloads(client: MemoryClient) -> list[bytes]:
    """Remove the unread messages and return their payloads."""
    client.harness.settle()
    found = [p.payload for p in client.unread if isinstance(p, Publish)]
    client.unread.clear()
    return found


def numbers(*which: int) -> list[bytes]:
    return [b"%d" % n for n in which]


def send(harness: Harness, which: range, qos: int = 1, topic: str = "t", name: str = "p") -> None:
    """Publish numbers as payloads, waiting for the acknowledgement of each."""
    publisher = next((c for c in harness.clients if c.connect.client_id == name), None)
    if publisher is None:
        publisher = harness.connect(name)
    for number in which:
        publisher.publish(topic, b"%d" % number, qos, expect=0 if qos else None)


def nothing_left(harness: Harness, name: str = "c") -> bool:
    session = harness.broker.sessions[name]
    return (
        session.inflight == {}
        and (session.queued, session.stored, session.queued_bytes) == (0, 0, 0)
        and harness.broker.state.queued_bytes == 0
    )
