"""The acknowledgements that are expected for consecutive records."""

import struct
from typing import Final

from hookmq_sinks.mqtt.in_flight import IDS, packet_id

ACK: Final = 4
"""The size in bytes of a PUBACK without a reason code, which is the usual form."""
_PUBACK: Final = b"\x40\x02"


def packet_ids(offset: int, count: int) -> list[bytes]:
    """Return the encoded packet ids of `count` records, beginning with the record at `offset`."""
    start = packet_id(offset)
    numbers = range(start, start + count)
    if numbers[-1] > IDS:
        data = struct.pack(f">{count}H", *map(packet_id, range(offset, offset + count)))
    else:
        data = struct.pack(f">{count}H", *numbers)
    return [data[at : at + 2] for at in range(0, 2 * count, 2)]


def expected_acks(offset: int, count: int) -> bytes:
    """Return the PUBACKs of `count` records, in order, beginning with the record at `offset`."""
    return b"".join([_PUBACK + one for one in packet_ids(offset, count)])


__all__ = ["ACK", "expected_acks", "packet_ids"]
