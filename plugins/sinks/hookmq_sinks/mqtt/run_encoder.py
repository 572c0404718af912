"""Encode the PUBLISH packets of a run of records."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from hookmq_sinks.mqtt.acks import packet_ids
from hookmq_sinks.record import Record
from hookmq_sinks.record_run import RecordRun

_REMEMBERED: Final = 10_000
"""The number of topics, and of lengths, from which on their remembered encodings are forgotten."""
_MOST: Final = 268_435_455
"""The maximum remaining length of a packet."""


class Coded(NamedTuple):
    """A run's packets, in order, and their QoS. At QoS 1, their packet ids follow one another."""

    packets: Sequence[bytes]
    qos: int


class RunEncoder:
    """Encodes runs of records without an object for each of them.

    `place` returns the topic at the remote broker and the QoS for a topic. `section` is the property section of a
    message without properties. `encode` returns the packet of a record that has properties, an expiry time or RETAIN,
    or None if it must not be sent. `place` and `encode` raise RecordError.
    """

    def __init__(
        self,
        place: Callable[[str], tuple[str, int]],
        section: bytes,
        encode: Callable[[Record], bytes | None],
    ) -> None:
        self._place = place
        self._section = section
        self._encode = encode
        self._known: dict[str, tuple[bytes, int]] = {}
        """The beginning of the variable header for each topic, and the QoS."""

    def encode(self, run: RecordRun, most: int | None) -> Coded | None:
        """Return the packets of a run. Return None if they differ in QoS, if a record must not be sent, or if a packet
        exceeds `most` bytes: each record then has to be encoded by itself. Raises RecordError.
        """
        columns, section, known = run.columns, self._section, self._known
        rows = slice(run.start, run.stop)
        topics, payloads = columns.topics[rows], columns.payloads[rows]
        if len(known) >= _REMEMBERED:
            known.clear()
        for topic in set(topics).difference(known):
            name, qos = self._place(topic)
            data = name.encode()
            known[topic] = len(data).to_bytes(2, "big") + data, qos
        heads = list(map(known.__getitem__, topics))
        qos = heads[0][1]
        if qos > 1 or any(one is not heads[0] and one[1] != qos for one in heads):
            return None
        more, fixed = len(section) + (2 if qos else 0), _FIXED[qos]
        sizes = [
            len(one[0]) + more + len(payload) for one, payload in zip(heads, payloads, strict=True)
        ]
        if max(sizes) > _MOST:
            return None
        ids = packet_ids(run.first, len(run)) if qos else [b""] * len(run)
        packets = [
            b"".join((fixed[size], head, number, section, payload))
            for size, (head, _), number, payload in zip(sizes, heads, ids, payloads, strict=True)
        ]
        for row in {*columns.properties, *columns.expires, *columns.retained}:
            if run.start <= row < run.stop:
                packet = self._encode(run.record(row))
                if packet is None:
                    return None
                packets[row - run.start] = packet
        if most is not None and max(map(len, packets)) > most:
            return None
        return Coded(packets, qos)


class _Fixed(dict[int, bytes]):
    """Caches the fixed headers of packets by the remaining length."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self._first = first

    def __missing__(self, remaining: int) -> bytes:
        data, left = bytearray((self._first,)), remaining
        while left > 127:
            data.append(left & 0x7F | 0x80)
            left >>= 7
        data.append(left)
        if len(self) >= _REMEMBERED:
            self.clear()
        found = self[remaining] = bytes(data)
        return found


_FIXED: Final = (_Fixed(0x30), _Fixed(0x32))
"""The fixed headers of packets at QoS 0 and 1."""

__all__ = ["Coded", "RunEncoder"]
