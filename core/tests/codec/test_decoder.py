"""What `Decoder` promises of a stream: limits, order of errors and packets, versions."""

import pytest
from hookmq.codec import (
    Auth,
    Connect,
    ConnectError,
    Decoder,
    Limits,
    Pingreq,
    Pingresp,
    Publish,
    Subscribe,
    SubscribeRequest,
    Unsubscribe,
    WillFields,
    decode,
    decode_publish,
    encode,
    frame,
)
from hookmq.errors import ProtocolError
from hookmq.properties import Properties
from hookmq.reason import ReasonCode

CONNECT = encode(Connect("c", 5, True, 0), 5)
PING = b"\xc0\x00"


def code_of(decoder: Decoder) -> ReasonCode | None:
    return decoder.error.code if decoder.error else None


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", None),
        (b"\x30", None),
        (b"\x30\x00", (2, 2)),
        (b"\x30\x7f", (2, 129)),
        (b"\x30\x80", None),
        (b"\x30\x80\x01", (3, 131)),
        (b"\x30\xff\x7f", (3, 16386)),
        (b"\x30\x80\x80", None),
        (b"\x30\x80\x80\x01", (4, 16388)),
        (b"\x30\xff\xff\x7f", (4, 2097155)),
        (b"\x30\x80\x80\x80", None),
        (b"\x30\x80\x80\x80\x01", (5, 2097157)),
        (b"\x30\xff\xff\xff\x7f", (5, 268435460)),
    ],
)
def test_frame(data: bytes, expected: tuple[int, int] | None) -> None:
    assert frame(data, 0) == expected
    shifted = None if expected is None else (expected[0] + 3, expected[1] + 3)
    assert frame(b"abc" + data, 3) == shifted


@pytest.mark.parametrize("length", ["8000", "808000", "80808000", "80808080", "8080808001"])
def test_frame_refuses_a_bad_length(length: str) -> None:
    """[MQTT-1.5.5-1]"""
    with pytest.raises(ProtocolError) as caught:
        frame(b"\x30" + bytes.fromhex(length), 0)
    assert caught.value.code is ReasonCode.MALFORMED_PACKET


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


@pytest.mark.parametrize("header", [h for h in range(256) if h >> 4 != 1])
def test_first_byte_must_be_connect(header: int) -> None:
    """[MQTT-3.1.0-1] Known from one byte, and nothing of it is kept."""
    decoder = Decoder()
    assert decoder.feed(bytes((header,))) == []
    assert isinstance(decoder.error, ConnectError)
    assert decoder.error.version == 0
    assert code_of(decoder) is ReasonCode.PROTOCOL_ERROR
    assert decoder.buffered == 0


@pytest.mark.parametrize("header", [0x10, 0x20, 0x36, 0x80, 0x90, 0xB0, 0xC1, 0xD0, 0xE4, 0x00])
def test_a_bad_first_byte_is_refused_before_the_length(header: int) -> None:
    decoder = Decoder(5)
    decoder.feed(bytes((header,)))
    assert decoder.error is not None


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
    """[MQTT-3.2.2-15] A packet of exactly the limit is accepted."""
    data = encode(Publish("t", bytes(200)), 4)
    limits = Limits(max_packet_size=len(data) + extra)
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
    """Not of what came in one read."""
    data = encode(Publish("t", bytes(200)), 4)
    decoder = Decoder(4, Limits(max_packet_size=len(data)))
    assert len(decoder.feed(data * 5)) == 5
    assert len(decoder.feed(data * 2 + data[:10])) == 2
    assert len(decoder.feed(data[10:] + data)) == 2
    assert decoder.error is None


@pytest.mark.parametrize("step", [1, 100])
def test_too_large_says_how_large(step: int) -> None:
    data = encode(Publish("t", bytes(50)), 4)
    decoder = Decoder(4, Limits(max_packet_size=len(data)))
    stream = PING + data + encode(Publish("t", bytes(51)), 4)
    for i in range(0, len(stream), step):
        decoder.feed(stream[i : i + step])
    assert decoder.error is not None
    assert decoder.error.detail == "packet of 56 bytes, at most 55 are accepted"


def test_decode_blames_a_connect_for_what_comes_in_its_place() -> None:
    """Of a client that is not connected yet, and of none other."""
    with pytest.raises(ConnectError):
        decode(0xC0, b"", 0)
    for version, server in ((4, True), (5, True), (4, False), (0, False)):
        with pytest.raises(ProtocolError) as caught:
            decode(0xC1, b"", version, server=server)
        assert type(caught.value) is ProtocolError


def test_too_large_is_known_from_the_header_alone() -> None:
    decoder = Decoder(4, Limits(max_packet_size=1000))
    for byte in (b"\x30", b"\xe8"):
        decoder.feed(byte)
        assert decoder.error is None
    decoder.feed(b"\x07")  # 1000 + 3 bytes
    assert code_of(decoder) is ReasonCode.PACKET_TOO_LARGE


def test_too_large_connect_has_no_version_to_answer_in() -> None:
    decoder = Decoder(limits=Limits(max_packet_size=10))
    decoder.feed(CONNECT)
    assert isinstance(decoder.error, ConnectError)
    assert decoder.error.version == 0
    assert code_of(decoder) is ReasonCode.PACKET_TOO_LARGE


def test_max_user_properties() -> None:
    carried = Properties(user_property=(("k", "v"),) * 3)
    data = encode(Publish("t", b"", properties=carried), 5)
    decoder = Decoder(5, Limits(max_user_properties=3))
    assert len(decoder.feed(data)) == 1
    decoder = Decoder(5, Limits(max_user_properties=2))
    assert decoder.feed(data) == []
    assert code_of(decoder) is ReasonCode.QUOTA_EXCEEDED


def test_max_user_properties_counts_connect_and_will_together() -> None:
    body = b"\0\4MQTT\5\6\0\0" + b"\x07&\0\1k\0\1v" + b"\0\1c" + b"\x07&\0\1k\0\1v" + b"\0\1w\0\0"
    assert isinstance(decode(0x10, body, 0, Limits(max_user_properties=2)), Connect)
    with pytest.raises(ConnectError) as caught:
        decode(0x10, body, 0, Limits(max_user_properties=1))
    assert caught.value.code is ReasonCode.QUOTA_EXCEEDED
    assert caught.value.version == 5


@pytest.mark.parametrize(
    ("name", "level", "answer"),
    [
        (b"MQTT", 0, 4), (b"MQTT", 3, 4), (b"MQTT", 0x83, 4), (b"MQTT", 6, 5), (b"MQTT", 127, 5),
        (b"MQTT", 0x85, 5), (b"MQTT", 0x86, 5), (b"MQIsdp", 4, 3), (b"MQIsdp", 5, 3),
        (b"MQIsdp", 0x84, 3), (b"mqtt", 4, 0), (b"", 4, 0),
    ],
)  # fmt: skip
def test_an_unknown_level_is_answered_in_the_nearest_form(
    name: bytes, level: int, answer: int
) -> None:
    """[MQTT-3.1.2-1, 3.1.2-2]"""
    body = len(name).to_bytes(2, "big") + name + bytes((level, 2)) + b"\0\0\0\1c"
    with pytest.raises(ConnectError) as caught:
        decode(0x10, body, 0)
    assert caught.value.code is ReasonCode.UNSUPPORTED_PROTOCOL_VERSION
    assert caught.value.version == answer


@pytest.mark.parametrize("topic", ["+", "#", "a/+", "a/#", "a+", "a#b"])
@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_will_topic_has_no_wildcard(topic: str, version: int) -> None:
    """[MQTT-4.7.0-1]"""
    packet = Connect("c", version, True, 0, will=WillFields(topic, b"", 0, False))
    decoder = Decoder()
    assert decoder.feed(encode(packet, version)) == []
    assert isinstance(decoder.error, ConnectError)
    assert (decoder.error.code, decoder.error.version) == (
        ReasonCode.TOPIC_NAME_INVALID,
        version,
    )


def test_max_filters() -> None:
    limits = Limits(max_filters=2)
    for count in (2, 3):
        names = tuple(f"t{i}" for i in range(count))
        for packet in (
            Subscribe(1, tuple(SubscribeRequest(name, 0) for name in names)),
            Unsubscribe(1, names),
        ):
            for version in (3, 4, 5):
                decoder = Decoder(version, limits)
                packets = decoder.feed(encode(packet, version))
                if count == 2:
                    assert packets == [packet]
                else:
                    assert code_of(decoder) is ReasonCode.QUOTA_EXCEEDED


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


def test_a_3_1_client_sets_dup_only_on_what_it_repeats() -> None:
    for header, good in ((0x6A, True), (0x8A, True), (0xC8, False), (0xE8, False)):
        body = b"\2\0\1" if header == 0x6A else b"\6\0\1\0\1t\0" if header == 0x8A else b"\0"
        decoder = Decoder(3)
        packets = decoder.feed(bytes((header,)) + body)
        assert len(packets) == good
        assert code_of(decoder) is (None if good else ReasonCode.MALFORMED_PACKET)


def test_authentication_data_without_a_method_is_refused_in_connack() -> None:
    """[MQTT-4.12.0-1], section 3.2.2.3.18"""
    decoder = Decoder(5, server=False)
    assert decoder.feed(b"\x20\x07\0\0\x04\x16\0\1x") == []
    assert code_of(decoder) is ReasonCode.PROTOCOL_ERROR


def test_decode_publish_is_a_servers_by_default() -> None:
    body = b"\0\1t\2\x0b\1"
    with pytest.raises(ProtocolError):
        decode_publish(0x30, body, 5)
    assert decode_publish(0x30, body, 5, server=False).topic == "t"


def test_a_will_is_of_qos_0_and_an_auth_of_success_unless_they_say_otherwise() -> None:
    assert WillFields("t", b"").qos == 0
    assert Auth() == Auth(0)


def test_feed_takes_empty_bytes() -> None:
    decoder = Decoder()
    assert decoder.feed(b"") == []
    assert decoder.error is None


def test_decode_publish_checks_its_flags() -> None:
    """It is called without `Decoder`, too."""
    for header, version in ((0x36, 4), (0x3E, 3), (0x38, 4), (0x38, 5), (0x39, 4), (0x39, 5)):
        with pytest.raises(ProtocolError) as caught:
            decode_publish(header, b"\0\1t\0\1", version)
        assert caught.value.code is ReasonCode.MALFORMED_PACKET
    assert decode_publish(0x38, b"\0\1t", 3) == Publish("t", b"", dup=True)


def test_decoded_packets_are_immutable_and_hashable() -> None:
    packet = decode_publish(0x30, b"\0\1tp", 4)
    assert type(packet) is Publish
    assert hash(packet) == hash(Publish("t", b"p"))
    with pytest.raises(AttributeError):
        packet.topic = "u"  # type: ignore[misc]


def test_secrets_and_payloads_stay_out_of_repr() -> None:
    connect = Connect("c", 5, True, 0, username="u", password=b"hunter2")
    publish = Publish("t", b"payload", properties=Properties(correlation_data=b"secret"))
    assert "hunter2" not in repr(connect)
    assert "payload" not in repr(publish)
    assert "secret" not in repr(publish)
    assert "farewell" not in repr(WillFields("t", b"farewell"))
