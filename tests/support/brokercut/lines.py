"""In-memory connections to a restarted broker, and helpers that read packet fields."""

import mqttbytes as m
from byteclient import ByteClient
from bytememory import MemoryTransport
from hookmq_testing import Harness


def memory_line(harness: Harness) -> ByteClient:
    """Connect to a harness's broker. Each wait advances the harness's clock by one second."""
    return ByteClient(MemoryTransport(harness, patience=1.0))


def kind(frame: bytes) -> int:
    """Return the packet type."""
    return frame[0] >> 4


def packet_id(frame: bytes) -> int:
    """Return the packet id of an acknowledgement, SUBACK or UNSUBACK."""
    return int.from_bytes(m.body(frame)[:2], "big")


def reason(frame: bytes) -> int:
    """Return the reason code of a PUBACK, PUBREC, PUBREL or PUBCOMP."""
    body = m.body(frame)
    return body[2] if len(body) > 2 else 0
