"""Test that hostile bytes can only set `Decoder.error`, and never use more memory than the limit."""

from typing import Any

from hookmq.mqtt.encoder import encode
from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.packet_limits import PacketLimits
from hookmq_testing.decoder import Decoder
from hypothesis import given, settings
from hypothesis import strategies as st

LIMITS = PacketLimits(max_packet_size=300, max_user_properties=3, max_filters=4)
ENDPOINT = st.sampled_from(
    [(0, True), *((version, server) for version in (3, 4, 5) for server in (True, False))]
)


def feed_all(decoder: Decoder, stream: bytes, sizes: list[int]) -> list[Any]:
    """Feed `stream` in pieces of the given sizes, and check the invariants after each piece."""
    packets: list[Any] = []
    at, turn = 0, 0
    while at < len(stream):
        size = sizes[turn % len(sizes)] if sizes else len(stream)
        packets += decoder.feed(stream[at : at + size])
        at, turn = at + size, turn + 1
        assert decoder.buffered <= LIMITS.max_packet_size
        if decoder.error is not None:
            assert isinstance(decoder.error, ProtocolError)
            assert decoder.buffered == 0
            assert decoder.feed(b"\xc0\x00") == []
    return packets


SIZES = st.lists(st.integers(1, 50), max_size=4)


@settings(max_examples=75, deadline=None)
@given(ENDPOINT, st.binary(max_size=400), SIZES)
def test_random_bytes(endpoint: tuple[int, bool], stream: bytes, sizes: list[int]) -> None:
    version, server = endpoint
    whole = Decoder(version, LIMITS, server)
    pieces = Decoder(version, LIMITS, server)
    assert feed_all(whole, stream, []) == feed_all(pieces, stream, sizes)
    assert (whole.error and whole.error.code) == (pieces.error and pieces.error.code)
    assert whole.buffered == pieces.buffered


@settings(max_examples=100, deadline=None)
@given(data=st.data(), sizes=SIZES)
def test_mutated_packets(vectors: list[Any], data: st.DataObject, sizes: list[int]) -> None:
    row = data.draw(st.sampled_from(vectors))
    raw = bytearray(row.data)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw)))
        change = data.draw(st.sampled_from(("set", "insert", "delete")))
        byte = data.draw(st.sampled_from((0, 1, 2, 0x7F, 0x80, 0xFF)) | st.integers(0, 255))
        if change == "insert":
            raw.insert(at, byte)
        elif at < len(raw):
            if change == "set":
                raw[at] = byte
            else:
                del raw[at]
    decoder = Decoder(row.version, LIMITS, row.servers[0])
    for packet in feed_all(decoder, bytes(raw), sizes):
        # An accepted packet can be encoded and decoded again without change. The exception is DUP with QoS 0 in MQTT
        # 3.1.
        version = decoder.version
        again = Decoder(0 if row.version == 0 else version, server=row.servers[0])
        if not again.version and not hasattr(packet, "client_id"):
            again.version = version
        if getattr(packet, "dup", False) and not packet.qos:
            assert version == 3
            continue
        assert again.feed(encode(packet, version)) == [packet]


@settings(max_examples=50, deadline=None)
@given(ENDPOINT, st.integers(0, 255), st.integers(0, 2**28 - 1), SIZES)
def test_a_huge_length_reserves_nothing(
    endpoint: tuple[int, bool], header: int, size: int, sizes: list[int]
) -> None:
    """Receiving a header with a huge length reserves no memory. An oversized packet is refused before its
    body arrives.
    """
    version, server = endpoint
    length = bytearray()
    rest = size
    while True:
        length.append(rest & 0x7F | (0x80 if rest > 127 else 0))
        rest >>= 7
        if not rest:
            break
    decoder = Decoder(version, LIMITS, server)
    packets = feed_all(decoder, bytes((header,)) + length, sizes)
    whole = 1 + len(length) + size
    if decoder.error is None:
        assert whole <= LIMITS.max_packet_size
        assert decoder.buffered == (0 if packets else 1 + len(length))
    elif decoder.error.code == 0x95:
        assert whole > LIMITS.max_packet_size
