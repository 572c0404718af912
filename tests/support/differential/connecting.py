"""Scripts about CONNECT and CONNACK, wills, and the end of connections."""

import mqttbytes as m
from differential.playing import Play, Script
from differential.registry import collector

SCRIPTS: dict[str, Script] = {}
script = collector(SCRIPTS)
LEVELS = (3, 4, 5)


@script
def each_version(p: Play) -> None:
    for level in LEVELS:
        p.connect(f"c{level}", level, keep_alive=60, clean=True)
        p.connect(f"k{level}", level, clean=False)


@script
def limits_in_connack(p: Play) -> None:
    p.limits = True
    p.connect("a")
    p.connect("b", properties=m.receive_maximum(5) + m.alias_maximum(3) + m.session_expiry(60))
    p.connect("c", properties=m.response_information(1) + m.problem_information(0))


@script
def keep_alive_0(p: Play) -> None:
    for level in LEVELS:
        p.connect(f"c{level}", level, keep_alive=0)


@script
def empty_client_id(p: Play) -> None:
    for level in LEVELS:
        for clean in (True, False):
            p.connect(f"e{level}{clean}", level, "", clean=clean)


@script
def long_client_ids(p: Play) -> None:
    for level in LEVELS:
        p.connect(f"l{level}", level, "x" * 60)
    p.connect("huge", 5, "y" * 65535)


@script
def client_id_with_strange_characters(p: Play) -> None:
    p.connect("a", 5, "ünï/+#$ \ufeff")
    p.connect("b", 4, "a b")
    p.connect("c", 5, "a\x01b")
    p.connect("d", 4, "\ufffe")


@script
def other_protocol_names(p: Play) -> None:
    p.connect("a", 4, name="MQTU")
    p.connect("b", 5, name="mqtt")
    p.connect("c", 4, name="MQIsdp")
    p.connect("d", 3, name="MQTT")
    p.connect("e", 5, name="")


@script
def other_levels(p: Play) -> None:
    for level in (0, 2, 6, 127):
        p.connect(f"l{level}", level, name="MQTT")


@script
def bridge_levels(p: Play) -> None:
    p.connect("a", 0x84)
    p.connect("b", 0x83)


@script
def reserved_connect_flag(p: Play) -> None:
    for level in LEVELS:
        p.connect(f"r{level}", level, flags=3)


@script
def will_flags_that_disagree(p: Play) -> None:
    for level in LEVELS:
        p.connect(f"q{level}", level, flags=0x0A)
        p.connect(f"r{level}", level, flags=0x22)
        p.connect(f"x{level}", level, will=("w", b"x"), will_qos=3)


@script
def password_without_user_name(p: Play) -> None:
    for level in LEVELS:
        p.connect(f"p{level}", level, password=b"secret")


@script
def user_name_and_password(p: Play) -> None:
    for level in LEVELS:
        p.connect(f"p{level}", level, username="me", password=b"\x00\xff")
        p.connect(f"u{level}", level, username="")


@script
def bytes_after_connect(p: Play) -> None:
    for level in LEVELS:
        p.connect(f"c{level}", level, rest=b"\x00\x01z")


@script
def user_name_flag_without_the_field(p: Play) -> None:
    for level in LEVELS:
        p.connect(f"c{level}", level, flags=0x82)


@script
def second_connect(p: Play) -> None:
    for level in LEVELS:
        p.connect(f"c{level}", level)
        p.send(f"c{level}", m.connect(f"c{level}", level=level))


@script
def something_before_connect(p: Play) -> None:
    for name, data in {
        "ping": m.PINGREQ,
        "publish": m.publish("t", b"x"),
        "subscribe": m.subscribe(1, ("t", 0)),
        "disconnect": m.disconnect(),
        "auth": m.auth(0x18, m.auth_method("m")),
        "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    }.items():
        p.open(name)
        p.send(name, data)


@script
def pipelined_behind_connect(p: Play) -> None:
    p.open("a")
    p.client_ids.add("a")
    p.send("a", m.connect("a"), m.subscribe(1, ("t", 1)), m.publish("t", b"x", 1, 2))
    p.open("b")
    p.send("b", m.connect("b", flags=3), m.publish("t", b"no"))


@script
def connect_properties(p: Play) -> None:
    everything = m.session_expiry(0) + m.receive_maximum(7) + m.packet_size(1000)
    everything += m.alias_maximum(0) + m.response_information(0) + m.problem_information(1)
    p.connect("all", properties=everything + m.user("a", "1") + m.user("a", "1"))
    bad = {
        "receive-0": m.receive_maximum(0),
        "size-0": m.packet_size(0),
        "problem-2": m.problem_information(2),
        "response-2": m.response_information(2),
        "twice": m.receive_maximum(3) * 2,
        "expiry-twice": m.session_expiry(3) * 2,
        "of-publish": m.alias(1),
        "of-connack": b"\x24\x01",
        "unknown": b"\x7f\x00",
        "cut-off": b"\x21\x00",
    }
    for name, properties in bad.items():
        p.connect(name, properties=properties)


@script
def authentication(p: Play) -> None:
    p.connect("method", properties=m.auth_method("SCRAM-SHA-256"))
    p.connect("data", properties=m.auth_data(b"x"))
    p.connect("plain")
    p.send("plain", m.auth(0x19, m.auth_method("m")))


@script
def a_connack_larger_than_the_client_takes(p: Play) -> None:
    p.connect("a", properties=m.packet_size(4))
    p.connect("b", 5, "", properties=m.packet_size(12))


@script
def takeover(p: Play) -> None:
    p.connect("watch")
    p.subscribe("watch", ("will/#", 1))
    for level in LEVELS:
        p.connect(f"old{level}", level, "same", will=(f"will/{level}", b"gone"))
        p.connect(f"new{level}", level, "same")


@script
def takeover_of_a_session(p: Play) -> None:
    p.connect("pub")
    for level in (4, 5):
        options = {"clean": False, "properties": m.session_expiry(60) if level == 5 else b""}
        p.connect(f"old{level}", level, f"kept{level}", **options)
        p.subscribe(f"old{level}", (f"t/{level}", 1))
        p.publish("pub", f"t/{level}", b"1", 1, 1)
        p.connect(f"new{level}", level, f"kept{level}", **options)
        p.publish("pub", f"t/{level}", b"2", 1, 2)


@script
def will_after_a_lost_connection(p: Play) -> None:
    p.connect("watch")
    p.subscribe("watch", ("will/#", 2))
    for level in LEVELS:
        for qos in (0, 1, 2):
            p.connect("c", level, will=(f"will/{level}", b"gone"), will_qos=qos)
            p.drop("c")


@script
def will_after_disconnect(p: Play) -> None:
    p.connect("watch")
    p.subscribe("watch", ("will/#", 0))
    for level in LEVELS:
        p.connect("c", level, will=("will/a", b"gone"))
        p.send("c", m.disconnect())
    for code in (0x00, 0x04, 0x80, 0x81, 0x93):
        p.connect("c", will=(f"will/{code}", b"gone"))
        p.send("c", m.disconnect(code))


@script
def will_after_a_protocol_error(p: Play) -> None:
    p.connect("watch")
    p.subscribe("watch", ("will/#", 0))
    for level in LEVELS:
        p.connect("c", level, will=(f"will/{level}", b"gone"))
        p.send("c", m.packet(0x30, b"\x00\x02a+"))


@script
def will_that_is_retained(p: Play) -> None:
    for level in LEVELS:
        p.connect("c", level, will=(f"will/{level}", b"gone"), will_qos=1, will_retain=True)
        p.drop("c")
    p.connect("watch")
    p.subscribe("watch", ("will/#", 1))


@script
def will_with_properties(p: Play) -> None:
    p.connect("watch")
    p.subscribe("watch", ("will", 1))
    properties = m.content_type("text/plain") + m.expiry(100) + m.payload_format(1)
    properties += m.response_topic("answer") + m.correlation(b"\x01\x02") + m.user("k", "v")
    p.connect("c", will=("will", b"x"), will_properties=properties)
    p.drop("c")


@script
def will_topics(p: Play) -> None:
    for number, topic in enumerate(("", "a/+", "a/#", "$SYS/x", "a\x00b", "$x/y")):
        for level in (4, 5):
            p.connect(f"t{number}v{level}", level, will=(topic, b"x"))


@script
def will_with_an_empty_payload(p: Play) -> None:
    p.connect("watch")
    p.publish("watch", "will", b"kept", retain=True)
    p.subscribe("watch", ("will", 0))
    p.connect("c", 4, will=("will", b""), will_retain=True)
    p.drop("c")
    p.connect("late")
    p.subscribe("late", ("will", 0))


@script
def will_delay(p: Play) -> None:
    p.connect("watch")
    p.subscribe("watch", ("will/#", 0))
    options = {"clean": False, "properties": m.session_expiry(60)}
    p.connect("c", will=("will/a", b"1"), will_properties=m.will_delay(1), **options)
    p.drop("c")
    p.got("watch", "will/a")


@script
def will_delay_and_the_client_comes_back(p: Play) -> None:
    p.connect("watch")
    p.subscribe("watch", ("will/#", 0))
    options = {"will": ("will/b", b"2"), "will_properties": m.will_delay(60)}
    p.connect("c", clean=False, properties=m.session_expiry(60), **options)
    p.drop("c")
    p.connect("c", clean=False, properties=m.session_expiry(60), **options)
    p.drop("c")
    p.connect("c", clean=True)


@script
def will_delay_longer_than_the_session(p: Play) -> None:
    p.connect("watch")
    p.subscribe("watch", ("will/#", 0))
    p.connect("c", will=("will/c", b"3"), will_properties=m.will_delay(60))
    p.drop("c")


@script
def disconnect_variants(p: Play) -> None:
    for name, data in {
        "plain": m.disconnect(),
        "code": m.disconnect(0),
        "properties": m.disconnect(0, m.reason_string("r") + m.user("a", "b")),
        "expiry": m.disconnect(0, m.session_expiry(60)),
        "of the server": m.disconnect(0x8E),
        "unknown": m.disconnect(0x33),
        "reference": m.disconnect(0, b"\x1c" + m.text("elsewhere")),
    }.items():
        p.connect(name)
        p.send(name, data)
    p.connect("old", 4)
    p.send("old", b"\xe0\x01\x00")


@script
def nothing_after_disconnect_counts(p: Play) -> None:
    p.connect("watch")
    p.subscribe("watch", ("t", 0))
    p.connect("c")
    p.send("c", m.disconnect(), m.publish("t", b"too late"))
