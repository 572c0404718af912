"""Scripts about packets that clients must not send."""

import mqttbytes as m
from differential.playing import Play, Script
from differential.registry import collector

SCRIPTS: dict[str, Script] = {}
script = collector(SCRIPTS)


def _each(p: Play, packets: dict[str, bytes], levels: tuple[int, ...] = (4, 5)) -> None:
    for level in levels:
        for name, data in packets.items():
            p.connect(f"{name}-v{level}", level)
            p.send(f"{name}-v{level}", data)


@script
def header_flags(p: Play) -> None:
    _each(
        p,
        {
            "pingreq": b"\xc1\x00",
            "disconnect": b"\xe1\x00",
            "puback": b"\x42\x02\x00\x01",
            "pubrec": b"\x51\x02\x00\x01",
            "pubrel": b"\x60\x02\x00\x01",
            "pubcomp": b"\x72\x02\x00\x01",
        },
        (3, 4, 5),
    )
    for level in (3, 4, 5):
        subscribe = m.subscribe(1, ("t", 0), level=level)
        unsubscribe = m.unsubscribe(1, "t", level=level)
        _each(p, {"subscribe": b"\x80" + subscribe[1:]}, (level,))
        _each(p, {"unsubscribe": b"\xa0" + unsubscribe[1:]}, (level,))


@script
def packets_of_a_broker(p: Play) -> None:
    _each(
        p,
        {
            "reserved": b"\x00\x00",
            "connack": b"\x20\x02\x00\x00",
            "suback": m.suback(1, 0),
            "unsuback": m.unsuback(1, 0),
            "pingresp": b"\xd0\x00",
        },
    )


@script
def auth_without_a_method(p: Play) -> None:
    _each(p, {"empty": b"\xf0\x00", "short": b"\xf0\x02\x18\x00"})


@script
def bodies_that_are_too_long(p: Play) -> None:
    _each(
        p,
        {
            "pingreq": b"\xc0\x01\x00",
            "disconnect": b"\xe0\x03\x00\x00\x00",
            "puback": b"\x40\x05\x00\x01\x00\x00\x00",
            "pubrel": b"\x62\x05\x00\x01\x00\x00\x00",
        },
    )


@script
def bodies_that_are_too_short(p: Play) -> None:
    _each(
        p,
        {
            "publish": b"\x30\x01\x00",
            "publish-empty": b"\x30\x00",
            "publish-cut": b"\x30\x03\x00\x05a",
            "publish-without-id": b"\x32\x03\x00\x01a",
            "puback": b"\x40\x01\x00",
            "pubrel": b"\x62\x00",
            "subscribe": b"\x82\x00",
            "subscribe-cut": b"\x82\x06\x00\x01\x00\x00\x05a",
            "unsubscribe": b"\xa2\x01\x00",
        },
    )


@script
def remaining_length(p: Play) -> None:
    _each(p, {"five-bytes": b"\x30\xff\xff\xff\xff\x01", "padded": b"\xc0\x80\x00"})


@script
def publish_properties(p: Play) -> None:
    _each(
        p,
        {
            "unknown": m.publish("t", b"x", properties=b"\x7e\x00"),
            "of-connect": m.publish("t", b"x", properties=m.receive_maximum(1)),
            "expiry-twice": m.publish("t", b"x", properties=m.expiry(5) * 2),
            "type-twice": m.publish("t", b"x", properties=m.content_type("a") * 2),
            "length-beyond": b"\x30\x05\x00\x01t\x09x",
            "no-section": b"\x30\x03\x00\x01t",
            "not-utf8": m.publish("t", b"x", properties=m.user("a", b"\xff")),
            "zero-in-text": m.publish("t", b"x", properties=m.content_type("a\x00")),
        },
        (5,),
    )


@script
def properties_in_other_packets(p: Play) -> None:
    _each(
        p,
        {
            "subscribe": m.subscribe(1, ("t", 0), properties=m.expiry(1)),
            "unsubscribe": m.unsubscribe(1, "t", properties=m.identifier(1)),
            "puback": m.puback(1, 0, m.content_type("a")),
            "pubrel": m.pubrel(1, 0, m.reason_string("a") * 2),
            "disconnect": m.disconnect(0, m.receive_maximum(1)),
            "disconnect-twice": m.disconnect(0, m.session_expiry(0) * 2),
        },
        (5,),
    )
