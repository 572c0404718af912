"""A client that exchanges bytes with a broker in memory. It answers nothing by itself."""

from typing import Any

import mqttbytes as m
import pytest
from hookmq.broker import PacketReader
from hookmq.model.client import Peer, Scope
from hookmq_testing import Harness, MemoryWire

LEVELS = pytest.mark.parametrize("level", [4, 5])
"""Runs a test for both MQTT 3.1.1 and 5.0."""


class RawClient:
    """One connection. `arrived` contains the bytes that were received but not yet checked."""

    def __init__(self, harness: Harness, level: int = 5, scope: Scope | None = None) -> None:
        self.harness = harness
        self.level = level
        self.arrived = b""
        self.wire = MemoryWire(harness.clock, self._took, lambda: None)
        peer = Peer("192.0.2.7", 1024, "memory")
        self.connection: PacketReader = harness.broker.accept(self.wire, peer, scope or Scope())
        self.wire.connection = self.connection
        self._packet_id = 0

    def _took(self, data: bytes) -> None:
        self.arrived += data

    # what it does ----------------------------------------------------------------------------------------------------

    def send(self, *packets: bytes) -> "RawClient":
        """Send bytes in one segment."""
        self.wire.send(b"".join(packets))
        self.harness.settle()
        return self

    def connect(self, client_id: m.Field = "c", **options: Any) -> "RawClient":
        """Send CONNECT."""
        return self.send(m.connect(client_id, level=self.level, **options))

    def publish(self, topic: m.Field, payload: bytes = b"", *args: int, **options: Any) -> None:
        """Send PUBLISH."""
        self.send(m.publish(topic, payload, *args, level=self.level, **options))

    def subscribe(self, *filters: tuple[m.Field, int], properties: bytes = b"") -> None:
        """Subscribe to filters, each with its options byte. Assert that the requested QoS is granted for each."""
        self._packet_id += 1
        number = 1000 + self._packet_id
        self.send(m.subscribe(number, *filters, level=self.level, properties=properties))
        answer = m.suback(number, *(options & 3 for _, options in filters), level=self.level)
        assert self.arrived.startswith(answer), f"not subscribed: {self.arrived.hex(' ')}"
        self.arrived = self.arrived[len(answer) :]

    def unsubscribe(self, *filters: m.Field) -> None:
        """Unsubscribe from filters. Assert that each subscription existed."""
        self._packet_id += 1
        number = 1000 + self._packet_id
        self.send(m.unsubscribe(number, *filters, level=self.level))
        self.expect(m.unsuback(number, *([0] * len(filters)), level=self.level))

    def leave(self) -> None:
        """Close the connection without DISCONNECT."""
        self.wire.lose()
        self.harness.settle()

    def goodbye(self, *packets: bytes) -> None:
        """Send DISCONNECT (or `packets`). Assert that the broker closes the connection without sending anything."""
        self.send(*(packets or (m.disconnect(),)))
        self.ends()

    # what it finds ---------------------------------------------------------------------------------------------------

    def take(self) -> bytes:
        """Return all bytes that arrived since the last check."""
        self.harness.settle()
        data, self.arrived = self.arrived, b""
        return data

    def take_frames(self) -> list[bytes]:
        """Return all packets that arrived since the last check."""
        return m.frames(self.take())

    def take_one(self) -> bytes:
        """Return the packet that arrived. Assert that it is the only one."""
        found = self.take_frames()
        assert len(found) == 1, f"one packet, not {[one.hex(' ') for one in found]}"
        return found[0]

    def take_publish(self) -> tuple[int, bytes, int, list[bytes], bytes]:
        """Return the PUBLISH that arrived, split by `mqttbytes.split_publish`. Assert that it is the only packet."""
        return m.split_publish(self.take_one(), self.level)

    def expect(self, *packets: bytes) -> None:
        """Assert that exactly these packets arrived, in this order, and that the connection is open."""
        self._compare(packets)
        assert not self.wire.closed, "the connection is closed"
        assert not self.wire.closing

    def ends(self, *packets: bytes) -> None:
        """Assert that exactly these packets arrived and that the broker then closed the connection."""
        self._compare(packets)
        assert self.wire.closed, "the connection is still open"

    def refused(self, *codes: int, after: bytes = b"") -> None:
        """Assert that the broker closed the connection after the packets `after`.

        In MQTT 5, DISCONNECT with one of the codes must precede the end. In MQTT 3, nothing may.
        """
        data = self.take()
        assert data.startswith(after), f"{data.hex(' ')}, expected first {after.hex(' ')}"
        assert self.wire.closed, f"the connection is still open: {data.hex(' ')}"
        found = m.frames(data[len(after) :])
        if self.level < 5:
            assert found == []
            return
        assert len(found) == 1, [one.hex(" ") for one in found]
        assert found[0][0] == 0xE0, f"not DISCONNECT: {found[0].hex(' ')}"
        assert found[0][2] in codes, f"DISCONNECT 0x{found[0][2]:02X}"

    def not_accepted(self, *codes: int) -> bytes:
        """Assert that the broker closed the connection after a CONNACK with one of the codes. Return the CONNACK.

        Without codes, assert that the broker sent nothing.
        """
        data = self.take()
        assert self.wire.closed, f"the connection is still open: {data.hex(' ')}"
        if not codes:
            assert data == b"", data.hex(" ")
            return b""
        (found,) = m.frames(data)
        assert found[0] == 0x20
        flags, code = m.body(found)[:2]
        assert flags == 0
        assert code in codes, f"CONNACK 0x{code:02X}"
        return found

    def accepted(self, present: bool = False) -> list[bytes]:
        """Remove the CONNACK, which must be the first packet and have code 0. Return its properties."""
        self.harness.settle()
        found = m.frames(self.arrived)
        assert found, "nothing arrived"
        first = found[0]
        self.arrived = self.arrived[len(first) :]
        assert first[0] == 0x20, f"not CONNACK: {first.hex(' ')}"
        rest = m.body(first)
        assert rest[:2] == bytes((present, 0)), f"CONNACK {rest[:2].hex(' ')}"
        assert not self.wire.closed
        if self.level < 5:
            assert len(rest) == 2
            return []
        properties, rest = m.split_section(rest[2:])
        assert rest == b""
        return properties

    def _compare(self, packets: tuple[bytes, ...]) -> None:
        data, wanted = self.take(), b"".join(packets)
        assert data == wanted, f"{data.hex(' ')}, expected {wanted.hex(' ')}"


def join(
    harness: Harness,
    client_id: m.Field = "c",
    level: int = 5,
    *,
    present: bool = False,
    scope: Scope | None = None,
    **options: Any,
) -> RawClient:
    """Connect a client and assert that it is accepted. `options` are those of `mqttbytes.connect`."""
    client = RawClient(harness, level, scope)
    client.connect(client_id, **options)
    client.accepted(present)
    return client
