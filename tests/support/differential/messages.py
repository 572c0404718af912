"""Scripts about PUBLISH: retained messages, properties, aliases, expiry, sizes and topics."""

import mqttbytes as m
from differential.playing import Play, Script
from differential.registry import collector

SCRIPTS: dict[str, Script] = {}
script = collector(SCRIPTS)


@script
def each_qos_to_each_qos(p: Play) -> None:
    for level in (3, 4, 5):
        p.connect(f"s{level}", level)
        p.subscribe(f"s{level}", ("q/0", 0), ("q/1", 1), ("q/2", 2))
    for level in (3, 4, 5):
        p.connect(f"p{level}", level)
        for topic in (0, 1, 2):
            p.publish(f"p{level}", f"q/{topic}", b"0")
            p.publish(f"p{level}", f"q/{topic}", b"1", 1, 1)
            p.publish_2(f"p{level}", f"q/{topic}", b"2")


@script
def no_matching_subscribers(p: Play) -> None:
    for level in (4, 5):
        p.connect(f"c{level}", level)
        p.publish(f"c{level}", "nobody", b"x", 1, 1)
        p.publish(f"c{level}", "nobody", b"x", 2, 2)
        p.send(f"c{level}", m.pubrel(2))


@script
def no_matching_subscribers_but_retained(p: Play) -> None:
    p.connect("c")
    p.publish("c", "nobody", b"x", 1, 1, retain=True)
    p.publish("c", "nobody", b"", 1, 2, retain=True)
    p.publish("c", "nobody", b"", 1, 3, retain=True)


@script
def no_local_subscriber_only(p: Play) -> None:
    p.connect("c")
    p.subscribe("c", ("t", 4))
    p.publish("c", "t", b"x", 1, 1)


@script
def retained(p: Play) -> None:
    for level in (3, 4, 5):
        p.connect(f"p{level}", level)
        p.publish(f"p{level}", f"r/{level}/0", b"0", retain=True)
        p.publish(f"p{level}", f"r/{level}/1", b"1", 1, 1, retain=True)
        p.publish(f"p{level}", f"r/{level}/2", b"2", 2, 2, retain=True)
        p.send(f"p{level}", m.pubrel(2))
    for level in (3, 4, 5):
        for qos in (0, 1, 2):
            p.connect(f"s{level}{qos}", level)
            p.subscribe(f"s{level}{qos}", ("r/#", qos))


@script
def retained_with_qos_2_before_pubrel(p: Play) -> None:
    p.connect("c")
    p.connect("late")
    p.publish("c", "r", b"x", 2, 1, retain=True)
    p.subscribe("late", ("r", 0))
    p.send("c", m.pubrel(1))
    p.subscribe("late", ("r", 0))


@script
def retained_replaced_and_cleared(p: Play) -> None:
    p.connect("c")
    p.connect("watch")
    p.subscribe("watch", ("r/#", 8))
    p.publish("c", "r/a", b"1", retain=True)
    p.publish("c", "r/a", b"2", retain=True)
    p.publish("c", "r/a", b"not kept")
    p.subscribe("c", ("r/a", 0))
    p.publish("c", "r/a", b"", retain=True)
    p.subscribe("c", ("r/a", 0))


@script
def retained_before_or_after_suback(p: Play) -> None:
    p.ordered = True
    p.connect("c")
    p.publish("c", "r", b"x", retain=True)
    p.subscribe("c", ("r", 0))


@script
def retain_handling(p: Play) -> None:
    p.connect("c")
    p.publish("c", "r", b"x", retain=True)
    for handling in (0, 1, 2):
        name = f"h{handling}"
        p.connect(name, clean=False, properties=m.session_expiry(60))
        p.subscribe(name, ("r", handling << 4))
        p.subscribe(name, ("r", handling << 4))
        p.drop(name)
        p.connect(name, clean=False, properties=m.session_expiry(60))
        p.subscribe(name, ("r", handling << 4))
        p.subscribe(name, ("r", handling << 4 | 1))
        p.send(name, m.unsubscribe(7, "r"))
        p.subscribe(name, ("r", handling << 4))


@script
def retain_as_published(p: Play) -> None:
    p.connect("c")
    p.connect("as")
    p.connect("not")
    p.connect("old", 4)
    p.subscribe("as", ("r", 8))
    p.subscribe("not", ("r", 0))
    p.subscribe("old", ("r", 0))
    p.publish("c", "r", b"x", retain=True)
    p.publish("c", "r", b"y")
    p.publish("c", "r", b"", retain=True)


@script
def retained_for_overlapping_filters(p: Play) -> None:
    p.connect("c")
    p.publish("c", "r/a", b"x", 1, 1, retain=True)
    p.subscribe("c", ("r/a", 0), ("r/+", 1), ("#", 2))
    p.connect("i")
    p.subscribe("i", ("r/a", 0), properties=m.identifier(1))
    p.subscribe("i", ("r/+", 1), properties=m.identifier(2))


@script
def retained_with_no_local(p: Play) -> None:
    p.connect("c")
    p.publish("c", "r", b"x", retain=True)
    p.subscribe("c", ("r", 4))
    p.connect("d")
    p.subscribe("d", ("r", 4))


@script
def retained_with_properties(p: Play) -> None:
    p.connect("c")
    properties = m.content_type("a/b") + m.user("k", "1") + m.user("k", "2") + m.expiry(500)
    p.publish("c", "r", b"x", retain=True, properties=properties)
    p.subscribe("c", ("r", 0))
    p.connect("old", 4)
    p.subscribe("old", ("r", 0))


@script
def retained_expires(p: Play) -> None:
    p.connect("c")
    p.publish("c", "r", b"x", retain=True, properties=m.expiry(1))
    p.until_gone("c", "PUBLISH", m.subscribe(3, ("r", 0)))


@script
def expiry_0(p: Play) -> None:
    p.connect("c")
    p.subscribe("c", ("t", 1))
    p.publish("c", "t", b"x", 1, 1, properties=m.expiry(0))
    p.publish("c", "t", b"x", properties=m.expiry(0))
    p.publish("c", "r", b"x", retain=True, properties=m.expiry(0))
    p.connect("late")
    p.subscribe("late", ("r", 0))


@script
def queued_message_expires(p: Play) -> None:
    p.connect("watch")
    p.connect("c", clean=False, properties=m.session_expiry(60))
    p.subscribe("c", ("t", 1))
    p.drop("c")
    p.publish("watch", "t", b"short", 1, 1, properties=m.expiry(1))
    p.publish("watch", "t", b"long", 1, 2, properties=m.expiry(100))
    p.publish("watch", "gone", b"x", retain=True, properties=m.expiry(2))
    p.until_gone("watch", "PUBLISH", m.subscribe(3, ("gone", 0)))
    p.connect("c", clean=False, properties=m.session_expiry(60))


@script
def properties_are_forwarded(p: Play) -> None:
    p.connect("s")
    p.connect("old", 4)
    p.connect("c")
    p.subscribe("s", ("t", 1))
    p.subscribe("old", ("t", 1))
    properties = m.payload_format(1) + m.expiry(100) + m.content_type("ü")
    properties += m.response_topic("a/b") + m.correlation(b"\x00\xff") + m.user("b", "2")
    p.publish("c", "t", b"x", 1, 1, properties=properties + m.user("a", "1") + m.user("b", "2"))
    p.publish("c", "t", b"x", 1, 1, properties=m.user("", ""))
    p.publish("c", "t", b"x", 1, 1, properties=m.content_type("") + m.correlation(b""))


@script
def user_properties_without_problem_information(p: Play) -> None:
    p.connect("s", properties=m.problem_information(0))
    p.subscribe("s", ("t", 1))
    p.publish("s", "t", b"x", 1, 1, properties=m.user("a", "1"))
    p.send("s", m.subscribe(2, ("$share//x", 0)))
    p.send("s", m.unsubscribe(3, "nothing"))


@script
def payload_format_that_is_not_true(p: Play) -> None:
    p.connect("s")
    p.subscribe("s", ("t", 0))
    p.publish("s", "t", b"\xff\xfe", 1, 1, properties=m.payload_format(1))
    p.publish("s", "t", b"x", 1, 2, properties=m.payload_format(2))


@script
def topic_alias(p: Play) -> None:
    p.connect("s")
    p.subscribe("s", ("t/#", 0))
    p.connect("c")
    p.publish("c", "t/a", b"1", properties=m.alias(1))
    p.publish("c", "", b"2", properties=m.alias(1))
    p.publish("c", "t/b", b"3", 1, 1, properties=m.alias(1))
    p.send("c", m.publish("", b"4", 2, 2, properties=m.alias(1)), m.pubrel(2))
    p.publish("c", "t/c", b"5", properties=m.alias(10))
    p.connect("c", clean=True)
    p.publish("c", "", b"6", properties=m.alias(1))


@script
def topic_alias_wrong(p: Play) -> None:
    for name, topic, properties in (
        ("zero", "t", m.alias(0)),
        ("above", "t", m.alias(11)),
        ("unknown", "", m.alias(3)),
        ("neither", "", b""),
        ("twice", "t", m.alias(1) * 2),
    ):
        p.connect(name)
        p.publish(name, topic, b"x", properties=properties)


@script
def topic_alias_and_a_bad_topic(p: Play) -> None:
    p.connect("c")
    p.publish("c", "a/+", b"x", properties=m.alias(1))


@script
def topic_alias_towards_the_client(p: Play) -> None:
    p.connect("s", properties=m.alias_maximum(5))
    p.subscribe("s", ("t/#", 1))
    p.connect("c")
    for number in range(4):
        p.publish("c", f"t/{number % 2}", b"x", number % 2, 1)


@script
def identifier_from_a_client(p: Play) -> None:
    p.connect("c")
    p.publish("c", "t", b"x", properties=m.identifier(1))


@script
def response_topics(p: Play) -> None:
    for number, topic in enumerate(("", "a/+", "#", "a\x00")):
        p.connect(f"c{number}")
        p.publish(f"c{number}", "t", b"x", 1, 1, properties=m.response_topic(topic))


@script
def bad_topics(p: Play) -> None:
    for level in (4, 5):
        for number, topic in enumerate(("", "a/+", "a/#", "+", "a\x00b")):
            p.connect(f"c{number}v{level}", level)
            p.publish(f"c{number}v{level}", topic, b"x", 1, 1)


@script
def topics_that_are_not_utf8(p: Play) -> None:
    for level in (4, 5):
        for number, topic in enumerate(
            (b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80")
        ):
            p.connect(f"c{number}v{level}", level)
            p.publish(f"c{number}v{level}", topic, b"x", 1, 1)


@script
def topics_with_control_characters(p: Play) -> None:
    for level in (4, 5):
        for number, topic in enumerate(("a\x01b", "a\x7fb", "a\ufffeb", "\ufeffa", "a\ufdd0b")):
            p.connect(f"c{number}v{level}", level)
            p.publish(f"c{number}v{level}", topic, b"x", 1, 1)


@script
def topics_that_are_exact(p: Play) -> None:
    p.connect("c")
    p.subscribe("c", ("A", 0), ("a/", 0), ("/", 0), ("a//b", 0), ("e\u0301", 0), (" ", 0))
    for topic in ("A", "a", "a/", "/", "//", "a//b", "a/b", "é", "e\u0301", " ", "  "):
        p.publish("c", topic, b"x")


@script
def longest_topic(p: Play) -> None:
    p.connect("c")
    topic = "t" * 65535
    p.subscribe("c", (topic, 0))
    p.publish("c", topic, b"x")


@script
def many_levels(p: Play) -> None:
    for number in (150, 200, 201, 300):
        p.connect(f"c{number}")
        topic = "/".join("a" * number)
        p.subscribe(f"c{number}", (topic, 0))
        p.publish(f"c{number}", topic, b"x", 1, 1)


@script
def long_payloads(p: Play) -> None:
    p.connect("c")
    p.subscribe("c", ("t", 1))
    for size in (0, 1, 127, 128, 16383, 16384, 200000):
        p.publish("c", "t", b"x" * size, 1, 1)


@script
def payload_above_the_brokers_size(p: Play) -> None:
    p.connect("c")
    p.publish("c", "t", b"x" * (1 << 20), 1, 1)
    p.connect("d", 4)
    p.publish("d", "t", b"x" * (1 << 20), 1, 1)


@script
def size_of_the_client(p: Play) -> None:
    p.connect("s", properties=m.packet_size(30))
    p.subscribe("s", ("t", 2))
    p.connect("c")
    overhead = len(m.publish("t", b"", 1, 1))
    for extra in (-1, 0, 1):
        p.publish("c", "t", b"x" * (30 - overhead + extra), 1, 1)
    p.publish("c", "t", b"y" * 100)
    p.publish("c", "t", b"after", 1, 2)


@script
def size_of_the_client_and_retained(p: Play) -> None:
    p.connect("c")
    p.publish("c", "t", b"x" * 100, retain=True)
    p.connect("s", properties=m.packet_size(30))
    p.subscribe("s", ("t", 1))


@script
def packet_id_0(p: Play) -> None:
    for level in (4, 5):
        p.connect(f"p{level}", level)
        p.publish(f"p{level}", "t", b"x", 1, 0)
        p.connect(f"s{level}", level)
        p.send(f"s{level}", m.subscribe(0, ("t", 0), level=level))
        p.connect(f"u{level}", level)
        p.send(f"u{level}", m.unsubscribe(0, "t", level=level))


@script
def qos_3_and_dup_with_qos_0(p: Play) -> None:
    for level in (4, 5):
        p.connect(f"q{level}", level)
        p.publish(f"q{level}", "t", b"x", 3, 1)
        p.connect(f"d{level}", level)
        p.subscribe(f"d{level}", ("t", 1))
        p.publish(f"d{level}", "t", b"x", dup=True)


@script
def dup_is_not_forwarded(p: Play) -> None:
    p.connect("s")
    p.subscribe("s", ("t", 2))
    p.publish("s", "t", b"x", 1, 1, dup=True)
    p.send("s", m.publish("t", b"x", 2, 2, dup=True), m.pubrel(2))


@script
def publishing_below_dollar(p: Play) -> None:
    p.connect("s")
    p.subscribe("s", ("#", 0), ("+/x", 0), ("$data/#", 0), ("$SYS/x", 0), ("$share/x", 0))
    for topic in ("$data/x", "$SYS/x", "$share/x", "$", "$/x"):
        for qos in (0, 1):
            p.publish("s", topic, b"x", qos, qos)


@script
def retained_below_dollar(p: Play) -> None:
    p.connect("c")
    p.publish("c", "$kept/x", b"x", retain=True)
    p.subscribe("c", ("#", 0))
    p.subscribe("c", ("+/x", 0))
    p.subscribe("c", ("$kept/+", 0))
    p.publish("c", "$kept/x", b"", retain=True)


@script
def one_id_for_everything(p: Play) -> None:
    p.connect("c")
    p.send("c", m.subscribe(1, ("t", 0)), m.publish("t", b"x", 1, 1), m.unsubscribe(1, "t"))
    p.publish("c", "u", b"x", 2, 1)
    p.publish("c", "u", b"x", 1, 1)
    p.send("c", m.pubrel(1))
