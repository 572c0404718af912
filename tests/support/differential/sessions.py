"""Scripts about sessions, and about QoS 1 and 2 across several connections."""

import mqttbytes as m
from differential.playing import Play, Script
from differential.registry import collector

SCRIPTS: dict[str, Script] = {}
script = collector(SCRIPTS)
KEPT = m.session_expiry(60)


def _kept(p: Play, name: str, level: int, clean: bool = False, more: bytes = b"") -> None:
    p.connect(name, level, clean=clean, properties=KEPT + more if level == 5 else b"")


@script
def session_present(p: Play) -> None:
    for level in (3, 4, 5):
        _kept(p, f"c{level}", level)
        p.send(f"c{level}", m.disconnect())
        _kept(p, f"c{level}", level)
        p.drop(f"c{level}")
        _kept(p, f"c{level}", level, clean=True)
        p.drop(f"c{level}")
        _kept(p, f"c{level}", level)


@script
def a_clean_session_leaves_nothing(p: Play) -> None:
    for level in (3, 4, 5):
        p.connect("c", level)
        p.subscribe("c", ("t", 1))
        p.drop("c")
        p.connect("c", level, clean=False)
        p.publish("c", "t", b"x")
        p.send("c", m.disconnect())
        p.connect("c", 5, clean=True)
        p.send("c", m.disconnect())


@script
def a_session_between_versions(p: Play) -> None:
    _kept(p, "c", 4)
    p.subscribe("c", ("t", 2))
    p.drop("c")
    p.connect("pub")
    p.publish("pub", "t", b"1", 1, 1, properties=m.user("a", "b"))
    _kept(p, "c", 5)
    p.drop("c")
    _kept(p, "c", 4)


@script
def session_expiry_0_on_disconnect(p: Play) -> None:
    _kept(p, "c", 5)
    p.send("c", m.disconnect(0, m.session_expiry(0)))
    _kept(p, "c", 5)


@script
def session_expiry_raised_on_disconnect(p: Play) -> None:
    p.connect("watch")
    p.subscribe("watch", ("will", 0))
    p.connect("c", will=("will", b"x"))
    p.send("c", m.disconnect(0, m.session_expiry(60)))


@script
def session_expiry_prolonged_on_disconnect(p: Play) -> None:
    p.connect("c", clean=False, properties=m.session_expiry(1))
    p.send("c", m.disconnect(0, m.session_expiry(100)))
    _kept(p, "c", 5)


@script
def clean_start_0_and_expiry_0(p: Play) -> None:
    p.connect("c", clean=False)
    p.drop("c")
    p.connect("c", clean=False)
    _kept(p, "d", 5)
    p.drop("d")
    p.connect("d", clean=False)
    p.drop("d")
    p.connect("d", clean=False)


@script
def session_expiry_for_ever(p: Play) -> None:
    p.connect("c", clean=False, properties=m.session_expiry(0xFFFFFFFF))
    p.drop("c")
    p.connect("c", clean=False, properties=m.session_expiry(0xFFFFFFFF))


@script
def queued_while_away(p: Play) -> None:
    p.connect("pub")
    for level in (3, 4, 5):
        _kept(p, f"c{level}", level)
        p.subscribe(f"c{level}", ("q/0", 0), ("q/1", 1), ("q/2", 2))
        p.drop(f"c{level}")
    for qos in (0, 1, 2):
        for topic in ("q/0", "q/1", "q/2"):
            p.publish("pub", topic, b"%d" % qos, qos, 10 * qos + int(topic[2:]) + 1)
    for number in (21, 22, 23):
        p.send("pub", m.pubrel(number))
    for level in (3, 4, 5):
        _kept(p, f"c{level}", level)


@script
def qos_1_is_sent_again_with_dup(p: Play) -> None:
    p.connect("pub")
    for level in (3, 4, 5):
        _kept(p, f"c{level}", level)
        p.subscribe(f"c{level}", ("t", 1))
    p.publish("pub", "t", b"1", 1, 1)
    p.publish("pub", "t", b"2", 1, 2)
    p.send("c5", m.puback(p.number("c5", 1)))
    for level in (3, 4, 5):
        p.drop(f"c{level}")
        _kept(p, f"c{level}", level)
        p.send(f"c{level}", m.puback(p.number(f"c{level}", 2)))
        p.drop(f"c{level}")
        _kept(p, f"c{level}", level)


@script
def qos_2_to_a_subscriber_step_by_step(p: Play) -> None:
    p.connect("pub")
    for level in (3, 4, 5):
        name = f"c{level}"
        _kept(p, name, level)
        p.subscribe(name, (f"t/{level}", 2))
        p.publish_2("pub", f"t/{level}", b"x", level)
        p.drop(name)
        _kept(p, name, level)
        p.send(name, m.pubrec(p.number(name, 1)))
        p.drop(name)
        _kept(p, name, level)
        p.send(name, m.pubcomp(p.number(name, 1)))
        p.drop(name)
        _kept(p, name, level)


@script
def qos_2_from_a_publisher_over_two_connections(p: Play) -> None:
    p.connect("watch")
    p.subscribe("watch", ("t/#", 0))
    for level in (3, 4, 5):
        name = f"c{level}"
        _kept(p, name, level)
        p.publish(name, f"t/{level}", b"x", 2, 5)
        p.drop(name)
        _kept(p, name, level)
        p.publish(name, f"t/{level}", b"x", 2, 5, dup=True)
        p.send(name, m.pubrel(5))
        p.send(name, m.pubrel(5))


@script
def qos_2_twice_before_pubrel(p: Play) -> None:
    p.connect("watch")
    p.subscribe("watch", ("t", 0))
    for level in (4, 5):
        p.connect(f"c{level}", level)
        p.publish(f"c{level}", "t", b"x", 2, 5)
        p.publish(f"c{level}", "t", b"x", 2, 5, dup=True)
        p.publish(f"c{level}", "t", b"x", 2, 5)
        p.send(f"c{level}", m.pubrel(5))


@script
def qos_2_id_used_for_another_message(p: Play) -> None:
    p.connect("watch")
    p.subscribe("watch", ("t/#", 0))
    for level in (4, 5):
        p.connect(f"c{level}", level)
        p.publish(f"c{level}", "t/a", b"first", 2, 5)
        p.publish(f"c{level}", "t/b", b"second", 2, 5)
        p.send(f"c{level}", m.pubrel(5))


@script
def qos_1_with_dup_is_a_new_message(p: Play) -> None:
    p.connect("watch")
    p.subscribe("watch", ("t", 0))
    p.connect("c")
    p.publish("c", "t", b"x", 1, 5)
    p.publish("c", "t", b"x", 1, 5, dup=True)
    p.connect("d", 4)
    p.publish("d", "t", b"x", 1, 5, dup=True)


@script
def when_qos_2_is_delivered(p: Play) -> None:
    p.connect("watch")
    p.subscribe("watch", ("t", 2))
    p.connect("c")
    p.publish("c", "t", b"x", 2, 5)
    p.send("c", m.pubrel(5))


@script
def acknowledgements_of_nothing(p: Play) -> None:
    for level in (3, 4, 5):
        for name, one in {
            "puback": m.puback,
            "pubrec": m.pubrec,
            "pubrel": m.pubrel,
            "pubcomp": m.pubcomp,
        }.items():
            p.connect(f"{name}{level}", level)
            p.send(f"{name}{level}", one(77))


@script
def acknowledgements_of_id_0(p: Play) -> None:
    for level in (4, 5):
        for name, one in {
            "puback": m.puback,
            "pubrec": m.pubrec,
            "pubrel": m.pubrel,
            "pubcomp": m.pubcomp,
        }.items():
            p.connect(f"{name}{level}", level)
            p.send(f"{name}{level}", one(0))


@script
def acknowledgements_of_the_wrong_kind(p: Play) -> None:
    p.connect("pub")
    for level in (4, 5):
        for qos, answer in ((1, m.pubrec), (1, m.pubcomp), (2, m.puback), (2, m.pubcomp)):
            name = f"{answer.__name__}-{qos}-{level}"
            p.connect(name, level)
            p.subscribe(name, (name, qos))
            p.publish_2("pub", name, b"x", 3)
            p.send(name, answer(p.number(name, 1)))


@script
def a_second_acknowledgement(p: Play) -> None:
    p.connect("pub")
    p.connect("c")
    p.subscribe("c", ("t", 2))
    p.publish("pub", "t", b"1", 1, 1)
    p.send("c", m.puback(p.number("c", 1)))
    p.send("c", m.puback(p.number("c", 1)))
    p.publish_2("pub", "t", b"2", 2)
    p.send("c", m.pubrec(p.number("c", 2)))
    p.send("c", m.pubrec(p.number("c", 2)))
    p.send("c", m.pubcomp(p.number("c", 2)))
    p.send("c", m.pubcomp(p.number("c", 2)))


@script
def refusing_acknowledgements(p: Play) -> None:
    p.connect("pub")
    _kept(p, "c", 5)
    p.subscribe("c", ("t", 2))
    p.publish("pub", "t", b"1", 1, 1)
    p.send("c", m.puback(p.number("c", 1), 0x80))
    p.publish_2("pub", "t", b"2", 2)
    p.send("c", m.pubrec(p.number("c", 2), 0x83))
    p.drop("c")
    _kept(p, "c", 5)


@script
def acknowledgements_in_long_form(p: Play) -> None:
    p.connect("c")
    p.publish("c", "t", b"x", 2, 1)
    p.send("c", m.pubrel(1, 0, m.reason_string("r") + m.user("a", "b")))
    p.publish("c", "t", b"x", 2, 2)
    p.send("c", m.pubrel(2, 0x92))
    p.connect("d")
    p.send("d", m.pubrel(2, 0x80))
    p.connect("e")
    p.send("e", m.puback(2, 0x33))


@script
def receive_maximum_of_the_client(p: Play) -> None:
    p.connect("pub")
    p.connect("c", properties=m.receive_maximum(2))
    p.subscribe("c", ("t", 2))
    for number in range(1, 6):
        p.publish("pub", "t", b"%d" % number, 1, number)
    p.publish("pub", "t", b"qos 0")
    p.send("c", m.puback(p.number("c", 1)))
    p.send("c", m.puback(p.number("c", 2)))
    p.send("c", m.puback(p.number("c", 3)), m.puback(p.number("c", 4)))


@script
def receive_maximum_and_qos_2(p: Play) -> None:
    p.connect("pub")
    p.connect("c", properties=m.receive_maximum(1))
    p.subscribe("c", ("t", 2))
    for number in (1, 2):
        p.publish_2("pub", "t", b"%d" % number, number)
    p.send("c", m.pubrec(p.number("c", 1)))
    p.send("c", m.pubcomp(p.number("c", 1)))
    p.send("c", m.pubrec(p.number("c", 2), 0x80))


@script
def receive_maximum_of_the_broker(p: Play) -> None:
    p.connect("watch")
    p.subscribe("watch", ("t", 0))
    p.connect("c")
    p.send("c", *(m.publish("t", b"x", 2, number) for number in range(1, 21)))
    p.publish("c", "t", b"one more", 2, 21)


@script
def more_than_20_qos_2_of_version_3(p: Play) -> None:
    p.connect("watch")
    p.subscribe("watch", ("t", 0))
    p.connect("c", 4)
    p.send("c", *(m.publish("t", b"x", 2, number, level=4) for number in range(1, 21)))
    p.publish("c", "t", b"one more", 2, 21)
    p.send("c", *(m.pubrel(number) for number in range(1, 22)))


@script
def session_expires(p: Play) -> None:
    p.connect("c", clean=False, properties=m.session_expiry(1))
    p.drop("c")
    p.connect("watch")
    for name in ("will",):
        p.subscribe("watch", (name, 0))
    p.connect("d", clean=False, properties=m.session_expiry(1), will=("will", b"x"),
              will_properties=m.will_delay(60))  # fmt: skip
    p.drop("d")
    p.got("watch", "will")
    p.connect("d", clean=False)
