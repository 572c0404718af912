"""Scripts about SUBSCRIBE and UNSUBSCRIBE, filters, options and shared subscriptions."""

import mqttbytes as m
from differential.playing import Play, Script
from differential.registry import collector

SCRIPTS: dict[str, Script] = {}
script = collector(SCRIPTS)


@script
def several_filters_at_once(p: Play) -> None:
    for level in (3, 4, 5):
        p.connect(f"c{level}", level)
        p.subscribe(f"c{level}", ("a", 0), ("b", 1), ("c", 2), ("a", 1), ("#", 2))


@script
def bad_filters(p: Play) -> None:
    bad = ("", "a#", "a/#/b", "a+", "+a", "a/b+/c", "##", "a\x00b")
    for level in (4, 5):
        for number, name in enumerate(bad):
            p.connect(f"c{number}v{level}", level)
            p.send(f"c{number}v{level}", m.subscribe(1, ("ok", 0), (name, 0), level=level))


@script
def bad_filters_in_unsubscribe(p: Play) -> None:
    for level in (4, 5):
        for number, name in enumerate(("", "a#", "a+", "a\x00b")):
            p.connect(f"c{number}v{level}", level)
            p.send(f"c{number}v{level}", m.unsubscribe(1, name, level=level))


@script
def no_filters(p: Play) -> None:
    for level in (3, 4, 5):
        p.connect(f"s{level}", level)
        p.send(f"s{level}", m.subscribe(1, level=level))
        p.connect(f"u{level}", level)
        p.send(f"u{level}", m.unsubscribe(1, level=level))


@script
def bad_options(p: Play) -> None:
    for level in (3, 4, 5):
        for options in (0x03, 0x04, 0x30, 0x40, 0x80):
            p.connect(f"o{options:x}v{level}", level)
            p.send(f"o{options:x}v{level}", m.subscribe(1, ("t", options), level=level))


@script
def wildcards(p: Play) -> None:
    for name in ("sport/#", "+/+", "/+", "+", "sport/+", "sport/+/player", "#", "+/#", "+/b/#"):
        p.connect(name)
        p.subscribe(name, (name, 0))
    p.connect("pub")
    for topic in ("sport", "sport/", "sport/a", "sport/a/player", "/finance", "/", "a/b", "a//b"):
        p.publish("pub", topic, b"x")


@script
def overlapping(p: Play) -> None:
    for level in (3, 4, 5):
        p.connect(f"c{level}", level)
        p.subscribe(f"c{level}", ("t/a", 0), ("t/+", 2), ("t/#", 1))
    p.connect("pub")
    p.publish_2("pub", "t/a", b"x")
    p.publish("pub", "t/b", b"x", 1, 2)


@script
def overlapping_identifiers(p: Play) -> None:
    p.connect("c")
    p.subscribe("c", ("t/a", 0), properties=m.identifier(1))
    p.subscribe("c", ("t/+", 1), properties=m.identifier(268435455))
    p.subscribe("c", ("t/#", 1))
    p.subscribe("c", ("+/a", 1), properties=m.identifier(1))
    p.publish("c", "t/a", b"x", 1, 1)
    p.publish("c", "t/b", b"x", 1, 2)
    p.publish("c", "t", b"x", 1, 3)


@script
def overlapping_with_retain_as_published(p: Play) -> None:
    p.connect("c")
    p.subscribe("c", ("t/a", 8), ("t/+", 0))
    p.publish("c", "t/a", b"x", retain=True)


@script
def overlapping_with_no_local(p: Play) -> None:
    p.connect("c")
    p.subscribe("c", ("t/a", 4), ("t/+", 0))
    p.publish("c", "t/a", b"x")


@script
def identifier_changes(p: Play) -> None:
    p.connect("c")
    p.subscribe("c", ("t", 0), properties=m.identifier(5))
    p.publish("c", "t", b"1")
    p.subscribe("c", ("t", 0), properties=m.identifier(6))
    p.publish("c", "t", b"2")
    p.subscribe("c", ("t", 0))
    p.publish("c", "t", b"3")


@script
def identifiers_that_are_wrong(p: Play) -> None:
    for name, properties in {
        "zero": m.identifier(0),
        "twice": m.identifier(1) * 2,
        "too-long": b"\x0b\x80\x80\x80\x80\x01",
    }.items():
        p.connect(name)
        p.send(name, m.subscribe(1, ("t", 0), properties=properties))


@script
def identifier_stays_with_the_session(p: Play) -> None:
    p.connect("c", clean=False, properties=m.session_expiry(60))
    p.subscribe("c", ("t", 5), properties=m.identifier(5))
    p.drop("c")
    p.connect("pub")
    p.publish("pub", "t", b"1", 1, 1)
    p.connect("c", clean=False, properties=m.session_expiry(60))
    p.publish("pub", "t", b"2", 1, 1)
    p.publish("c", "t", b"own", 1, 1)


@script
def user_properties_in_subscribe(p: Play) -> None:
    p.connect("c")
    p.send("c", m.subscribe(1, ("t", 0), properties=m.user("a", "1")))
    p.send("c", m.unsubscribe(2, "t", properties=m.user("a", "1")))


@script
def no_local(p: Play) -> None:
    p.connect("c")
    p.connect("other")
    p.subscribe("c", ("t", 4))
    p.publish("c", "t", b"own")
    p.publish("other", "t", b"of another")


@script
def no_local_and_a_will(p: Play) -> None:
    p.connect("c", clean=False, properties=m.session_expiry(60), will=("t", b"x"), will_qos=1)
    p.subscribe("c", ("t", 5))
    p.drop("c")
    p.connect("c", clean=False, properties=m.session_expiry(60))


@script
def unsubscribe(p: Play) -> None:
    for level in (3, 4, 5):
        name = f"c{level}"
        p.connect(name, level)
        p.subscribe(name, ("a", 0), ("b/#", 1))
        p.send(name, m.unsubscribe(2, "a", "nothing", "b/+", "b/#", level=level))
        p.send(name, m.unsubscribe(3, "a", level=level))
        p.publish(name, "a", b"x")
        p.publish(name, "b/c", b"x")


@script
def unsubscribe_one_of_two(p: Play) -> None:
    p.connect("c")
    p.subscribe("c", ("t", 0), ("+", 1))
    p.send("c", m.unsubscribe(2, "+"))
    p.publish("c", "t", b"x", 1, 1)


@script
def unsubscribe_with_messages_in_flight(p: Play) -> None:
    p.connect("c", clean=False, properties=m.session_expiry(60) + m.receive_maximum(1))
    p.subscribe("c", ("t", 1))
    p.connect("pub")
    p.publish("pub", "t", b"1", 1, 1)
    p.publish("pub", "t", b"2", 1, 2)
    p.send("c", m.unsubscribe(2, "t"))
    p.publish("pub", "t", b"3", 1, 3)
    p.send("c", m.puback(p.number("c", 1)))


@script
def qos_is_lowered_by_subscribing_again(p: Play) -> None:
    p.connect("c")
    p.subscribe("c", ("t", 2))
    p.subscribe("c", ("t", 0))
    p.publish("c", "t", b"x", 1, 1)


@script
def shared_group(p: Play) -> None:
    p.pooled = ("a", "b")
    p.connect("a")
    p.connect("b")
    p.connect("c")
    p.subscribe("a", ("$share/g/t/#", 1))
    p.subscribe("b", ("$share/g/t/#", 1))
    p.subscribe("c", ("t/#", 1))
    for number in range(4):
        p.publish("c", "t/x", b"%d" % number, 1, 1)
    p.send("a", m.unsubscribe(2, "$share/g/t/#"))
    p.publish("c", "t/x", b"rest", 1, 1)


@script
def shared_and_own(p: Play) -> None:
    p.connect("a")
    p.subscribe("a", ("$share/g/t", 1), ("t", 0))
    p.publish("a", "t", b"x", 1, 1)
    p.send("a", m.unsubscribe(2, "t"))
    p.publish("a", "t", b"y", 1, 1)
    p.send("a", m.unsubscribe(2, "t", "$share/g/t"))
    p.publish("a", "t", b"z", 1, 1)


@script
def two_shared_groups(p: Play) -> None:
    p.connect("a")
    p.subscribe("a", ("$share/g/t", 1), ("$share/h/t", 1), ("$share/g/+", 1))
    p.publish("a", "t", b"x", 1, 1)


@script
def shared_identifiers(p: Play) -> None:
    p.connect("a")
    p.subscribe("a", ("$share/g/t", 1), properties=m.identifier(4))
    p.publish("a", "t", b"x", 1, 1)


@script
def shared_names(p: Play) -> None:
    names = [
        "$share//x",
        "$share/g",
        "$share/g/",
        "$share/+/x",
        "$share/#/x",
        "$share/a+b/x",
        "$share/g/#",
        "$share/g//",
        "$share",
        "$share/",
    ]
    for level in (4, 5):
        for number, name in enumerate(names):
            p.connect(f"c{number}v{level}", level)
            p.send(f"c{number}v{level}", m.subscribe(1, (name, 0), level=level))


@script
def shared_of_version_3(p: Play) -> None:
    p.connect("a", 4)
    p.subscribe("a", ("$share/g/t", 1))
    p.publish("a", "t", b"x", 1, 1)


@script
def shared_and_retained(p: Play) -> None:
    p.connect("a")
    p.publish("a", "r", b"x", retain=True)
    p.subscribe("a", ("$share/g/r", 1))
    p.subscribe("a", ("$share/g/#", 1))


@script
def shared_with_no_local(p: Play) -> None:
    p.connect("a")
    p.send("a", m.subscribe(1, ("$share/g/t", 4)))


@script
def shared_and_dollar_topics(p: Play) -> None:
    p.connect("a")
    p.subscribe("a", ("$share/g/#", 0), ("$share/h/$data/#", 0))
    p.publish("a", "$data/x", b"x", 1, 1)


@script
def shared_with_everyone_away(p: Play) -> None:
    for name in ("a", "b"):
        p.connect(name, clean=False, properties=m.session_expiry(60))
        p.subscribe(name, ("$share/g/t", 1))
        p.drop(name)
    p.connect("pub")
    p.pooled = ("a", "b")
    p.publish("pub", "t", b"1", 1, 1)
    p.publish("pub", "t", b"2", 1, 1)
    for name in ("a", "b"):
        p.open(name)
    p.send("a", m.connect("a", clean=False, properties=m.session_expiry(60)))


@script
def shared_and_refused(p: Play) -> None:
    p.pooled = ("a", "b")
    for name in ("a", "b"):
        p.connect(name)
        p.subscribe(name, ("$share/g/t", 1))
    p.connect("pub")
    p.publish("pub", "t", b"1", 1, 1)
    for name in ("a", "b"):
        if p.ids[name]:
            p.send(name, m.puback(p.number(name, 1), 0x80))


@script
def filters_below_sys(p: Play) -> None:
    p.connect("c")
    p.subscribe("c", ("$SYS/nothing", 0), ("$nothing/#", 1))
    p.send("c", m.unsubscribe(2, "$SYS/nothing", "$nothing/#"))


@script
def unsubscribe_below_dollar(p: Play) -> None:
    p.connect("c")
    p.send("c", m.unsubscribe(2, "$never/x"))
    p.send("c", m.unsubscribe(2, "$SYS/never"))


@script
def options_change_by_subscribing_again(p: Play) -> None:
    p.connect("rap")
    p.connect("none")
    p.connect("local")
    p.subscribe("rap", ("r", 0x00))
    p.subscribe("rap", ("r", 0x08))
    p.subscribe("none", ("r", 0x08))
    p.subscribe("none", ("r", 0x00))
    p.publish("rap", "r", b"x", retain=True)
    p.subscribe("local", ("t", 0x00))
    p.subscribe("local", ("t", 0x04))
    p.publish("local", "t", b"x")
    p.subscribe("local", ("t", 0x00))
    p.publish("local", "t", b"x")
