"""Test how `Decoder` handles a stream: limits, versions, and the order of errors and packets."""

import pytest
from hookmq.mqtt.connect_packet import ConnectError
from hookmq.mqtt.decoder import decode, decode_publish
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.framing import frame
from hookmq.mqtt.packet_limits import PacketLimits
from hookmq.mqtt.packets import (
    Connect,
    Pingreq,
    Pingresp,
    Publish,
)
from hookmq.mqtt.properties import Properties
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq_testing.decoder import Decoder

CONNECT = encode(Connect("c", 5, True, 0), 5)
PING = b"\xc0\x00"


def code_of(decoder: Decoder) -> ReasonCode | None:
    return decoder.error.code if decoder.error else None


def test_version_comes_from_connect() -> None:
    for version in (3, 4, 5):
        decoder = Decoder()
        assert decoder.version == 0
        decoder.feed(encode(Connect("c", version, True, 0), version))
        assert decoder.version == version


def test_packets_behind_connect_in_one_read() -> None:
    publish = Publish("t", b"p", properties=Properties(content_type="x"))
    decoder = Decoder()
    assert decoder.feed(CONNECT + PING + encode(publish, 5) + PING[:1]) == [
        Connect("c", 5, True, 0),
        Pingreq(),
        publish,
    ]
    assert decoder.buffered == 1
    assert decoder.feed(PING[1:] + PING) == [Pingreq(), Pingreq()]


def test_packets_before_an_error_are_returned_and_then_nothing() -> None:
    decoder = Decoder()
    assert decoder.feed(CONNECT + PING + b"\xd0\x00" + PING) == [
        Connect("c", 5, True, 0),
        Pingreq(),
    ]
    error = decoder.error
    assert code_of(decoder) is ReasonCode.PROTOCOL_ERROR
    assert decoder.feed(PING) == []
    assert decoder.error is error
    assert decoder.buffered == 0


def test_a_client_is_told_the_version() -> None:
    decoder = Decoder(4, server=False)
    assert decoder.feed(b"\xd0\x00") == [Pingresp()]
    decoder.version = 5
    assert decoder.feed(b"\xe0\x01\x8e")[0].code == 0x8E  # type: ignore[union-attr]
    decoder = Decoder(server=False)
    assert decoder.feed(b"\x20\x02\x00\x00") == []
    assert code_of(decoder) is ReasonCode.PROTOCOL_ERROR


def test_unknown_version_is_a_fault_of_the_caller() -> None:
    with pytest.raises(KeyError):
        Decoder(6)


@pytest.mark.parametrize("extra", [-1, 0, 1, 50])
def test_max_packet_size_counts_the_fixed_header(extra: int) -> None:
    """[MQTT-3.2.2-15] The maximum packet size includes the fixed header. A packet of exactly this
    size is accepted.
    """
    data = encode(Publish("t", bytes(200)), 4)
    limits = PacketLimits(max_packet_size=len(data) + extra)
    for step in (1, 2, 3, len(data)):
        decoder = Decoder(4, limits)
        packets = [p for i in range(0, len(data), step) for p in decoder.feed(data[i : i + step])]
        if extra < 0:
            assert packets == []
            assert code_of(decoder) is ReasonCode.PACKET_TOO_LARGE
            assert decoder.buffered == 0
        else:
            assert len(packets) == 1


def test_max_packet_size_is_of_each_packet() -> None:
    """The limit applies to each packet, not to each read."""
    data = encode(Publish("t", bytes(200)), 4)
    decoder = Decoder(4, PacketLimits(max_packet_size=len(data)))
    assert len(decoder.feed(data * 5)) == 5
    assert len(decoder.feed(data * 2 + data[:10])) == 2
    assert len(decoder.feed(data[10:] + data)) == 2
    assert decoder.error is None


@pytest.mark.parametrize("step", [1, 100])
def test_too_large_says_how_large(step: int) -> None:
    data = encode(Publish("t", bytes(50)), 4)
    decoder = Decoder(4, PacketLimits(max_packet_size=len(data)))
    stream = PING + data + encode(Publish("t", bytes(51)), 4)
    for i in range(0, len(stream), step):
        decoder.feed(stream[i : i + step])
    assert decoder.error is not None
    assert decoder.error.detail == "packet of 56 bytes, at most 55 are accepted"


def test_decode_blames_a_connect_for_what_comes_in_its_place() -> None:
    """If a client's first packet is not CONNECT, it is treated as a failed CONNECT. Later packets are not."""
    with pytest.raises(ConnectError):
        decode(0xC0, b"", 0)
    for version, server in ((4, True), (5, True), (4, False), (0, False)):
        with pytest.raises(ProtocolError) as caught:
            decode(0xC1, b"", version, server=server)
        assert type(caught.value) is ProtocolError


def test_too_large_is_known_from_the_header_alone() -> None:
    decoder = Decoder(4, PacketLimits(max_packet_size=1000))
    for byte in (b"\x30", b"\xe8"):
        decoder.feed(byte)
        assert decoder.error is None
    decoder.feed(b"\x07")  # 1000 + 3 bytes
    assert code_of(decoder) is ReasonCode.PACKET_TOO_LARGE


def test_too_large_connect_has_no_version_to_answer_in() -> None:
    decoder = Decoder(limits=PacketLimits(max_packet_size=10))
    decoder.feed(CONNECT)
    assert isinstance(decoder.error, ConnectError)
    assert decoder.error.version == 0
    assert code_of(decoder) is ReasonCode.PACKET_TOO_LARGE


def test_a_large_packet_in_many_pieces() -> None:
    payload = bytes(range(256)) * 4096
    data = encode(Publish("t", payload), 4)
    decoder = Decoder(4)
    for i in range(0, len(data) - 1000, 1000):
        assert decoder.feed(data[i : i + 1000]) == []
        assert decoder.buffered == i + 1000
    rest = data[decoder.buffered :]
    (packet,) = decoder.feed(rest + PING[:1])
    assert packet == Publish("t", payload)
    assert decoder.buffered == 1


def test_the_longest_header_may_come_in_two_pieces() -> None:
    data = encode(Publish("t", bytes(1 << 21)), 4)
    assert frame(data, 0) == (5, len(data))
    decoder = Decoder(4)
    assert decoder.feed(data[:1]) == []
    assert [type(packet) for packet in decoder.feed(data[1:] + PING)] == [Publish, Pingreq]


def test_only_a_server_takes_an_error_for_that_of_a_connect() -> None:
    decoder = Decoder(server=False)
    assert decoder.feed(PING) == []
    assert code_of(decoder) is ReasonCode.PROTOCOL_ERROR
    assert not isinstance(decoder.error, ConnectError)


def test_decode_publish_is_a_servers_by_default() -> None:
    body = b"\0\1t\2\x0b\1"
    with pytest.raises(ProtocolError):
        decode_publish(0x30, body, 5)
    assert decode_publish(0x30, body, 5, server=False).topic == "t"


def test_feed_takes_empty_bytes() -> None:
    decoder = Decoder()
    assert decoder.feed(b"") == []
    assert decoder.error is None


def test_decode_publish_checks_its_flags() -> None:
    """`decode_publish` checks the packet's flags itself, because it is also called without `Decoder`."""
    for header, version in ((0x36, 4), (0x3E, 3), (0x38, 4), (0x38, 5), (0x39, 4), (0x39, 5)):
        with pytest.raises(ProtocolError) as caught:
            decode_publish(header, b"\0\1t\0\1", version)
        assert caught.value.code is ReasonCode.MALFORMED_PACKET
    assert decode_publish(0x38, b"\0\1t", 3) == Publish("t", b"", dup=True)
