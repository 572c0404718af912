"""Test the limits on packet bodies, and the flags of packets."""

from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packet_limits import PacketLimits
from hookmq.mqtt.packets import (
    Subscribe,
    SubscribeRequest,
    Unsubscribe,
)
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq_testing.decoder import Decoder


def code_of(decoder: Decoder) -> ReasonCode | None:
    return decoder.error.code if decoder.error else None


def test_max_filters() -> None:
    limits = PacketLimits(max_filters=2)
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


def test_a_3_1_client_sets_dup_only_on_what_it_repeats() -> None:
    for header, good in ((0x6A, True), (0x8A, True), (0xC8, False), (0xE8, False)):
        body = b"\2\0\1" if header == 0x6A else b"\6\0\1\0\1t\0" if header == 0x8A else b"\0"
        decoder = Decoder(3)
        packets = decoder.feed(bytes((header,)) + body)
        assert len(packets) == good
        assert code_of(decoder) is (None if good else ReasonCode.MALFORMED_PACKET)
