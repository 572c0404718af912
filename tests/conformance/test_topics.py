"""Test chapter 4.7: topics, filters and how they match."""

import unicodedata
from collections.abc import Callable

import mqttbytes as m
import pytest
from bytememory import LEVELS, join
from hookmq_testing import Harness
from statements import edge, statement

QUIET = m.problem_information(0)
"""Makes the broker omit reason strings."""
MAY_BE_REFUSED = ("\u0001", "\u001f", "\u007f", "\u009f", "\ufffe", "\uffff", "\U0010ffff")
"""Characters that a string should not contain, according to section 1.5.4."""

BAD = [
    *(
        pytest.param(name, marks=statement("MQTT-4.7.1-1", "MQTT311-4.7.1-2"))
        for name in ("a#", "#/a", "a/#/b", "a/b#", "##", "#a", "a/#b", "+/#/+")
    ),
    *(
        pytest.param(name, marks=statement("MQTT-4.7.1-2", "MQTT311-4.7.1-3"))
        for name in ("a+", "+a", "a/+b/c", "++", "a/b+", "+#")
    ),
]


@edge(35)
@LEVELS
@pytest.mark.parametrize("name", BAD)
def test_wildcards_out_of_place(harness: Harness, level: int, name: str) -> None:
    client = join(harness, "c", level, properties=QUIET)
    client.send(m.subscribe(1, ("ok", 0), (name, 0), level=level))
    client.expect(m.suback(1, 0, 0x8F if level == 5 else 0x80, level=level))
    for topic in ("a", "b", "x/a", "a/x/b"):
        client.publish(topic, b"x")
    client.expect()


@statement("MQTT-4.7.3-1", "MQTT311-4.7.3-1")
@edge(35)
@LEVELS
def test_empty_filters_end_the_connection(harness: Harness, level: int) -> None:
    join(harness, "c", level).send(m.subscribe(1, ("a", 0), ("", 0), level=level)).refused(
        0x82, 0x8F
    )
    join(harness, "c", level).send(m.unsubscribe(1, "a", "", level=level)).refused(0x82, 0x8F)


MATCHES = [
    ("sport/tennis/player1/#", "sport/tennis/player1", True),
    ("sport/tennis/player1/#", "sport/tennis/player1/ranking", True),
    ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
    ("sport/tennis/player1/#", "sport/tennis/player10", False),
    ("sport/#", "sport", True),
    ("sport/#", "sports", False),
    ("#", "a", True),
    ("#", "/", True),
    ("sport/tennis/+", "sport/tennis/player1", True),
    ("sport/tennis/+", "sport/tennis/player1/ranking", False),
    ("sport/+", "sport", False),
    ("sport/+", "sport/", True),
    ("+/+", "/finance", True),
    ("/+", "/finance", True),
    ("+", "/finance", False),
    ("+/+/+", "a//b", True),
    ("a/+/b", "a//b", True),
    ("+/tennis/#", "sport/tennis", True),
    ("a/b", "a/b/", False),
    ("a//b", "a/b", False),
    ("/a", "a", False),
    ("a", "A", False),
    ("a b", "a b", True),
    ("#", "$x/a", False),
    ("+/a", "$x/a", False),
    ("+/#", "$x/a", False),
    ("$x/#", "$x/a", True),
    ("$x/#", "$x", True),
    ("$x/+", "$x/a", True),
    ("$x/a", "$x/a", True),
    ("a/+", "a/$x", True),
    ("a/#", "a/$x/b", True),
]


@statement(
    "MQTT-4.7.2-1",
    "MQTT-3.3.2-3",
    "MQTT-4.7.3-4",
    "MQTT311-4.7.2-1",
    "MQTT311-3.3.2-3",
    "MQTT311-4.7.3-4",
)
@edge(34)
@LEVELS
@pytest.mark.parametrize(("name", "topic", "matches"), MATCHES)
def test_matching(harness: Harness, level: int, name: str, topic: str, matches: bool) -> None:
    client = join(harness, "c", level)
    client.subscribe((name, 0))
    sent = m.publish(topic, b"x", level=level)
    for _ in range(2):
        client.send(sent)
        client.expect(*([sent] if matches else []))


@statement("MQTT-4.7.2-1", "MQTT311-4.7.2-1")
@LEVELS
def test_clients_cannot_publish_to_broker_topics(harness: Harness, level: int) -> None:
    client = join(harness, "c", level, properties=QUIET)
    client.subscribe(("$SYS/#", 0), ("#", 0))
    client.publish("$SYS/x", b"forged", 1, 1)
    client.expect(m.puback(1, 0x87 if level == 5 else None))


@statement("MQTT-4.7.3-4", "MQTT311-4.7.3-4", "MQTT-1.5.4-3", "MQTT311-1.5.3-3")
@edge(35)
@LEVELS
def test_matching_is_exact(harness: Harness, level: int) -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    assert unicodedata.normalize("NFC", decomposed) == composed
    names = [
        composed,
        decomposed,
        "stra\u00dfe",
        "strasse",
        "STRASSE",
        "a/b",
        "a/b/",
        "a//b",
        " a/b",
        "a/b ",
        "\ufeffa/b",
    ]
    client = join(harness, "c", level)
    for name in names:
        client.subscribe((name, 0))
        for topic in names:
            client.publish(topic, b"x")
        client.expect(m.publish(name, b"x", level=level))
        client.unsubscribe(name)


@statement("MQTT-4.7.3-3", "MQTT311-4.7.3-3")
@LEVELS
@pytest.mark.parametrize("unit", ["a", "\u00e9", "\U0001f600"])
def test_topics_of_65535_bytes(harness: Harness, level: int, unit: str) -> None:
    size = len(unit.encode())
    topic = unit.encode() * (65_535 // size) + b"x" * (65_535 % size)
    assert len(topic) == 65_535
    client = join(harness, "c", level)
    client.subscribe((topic, 1))
    client.publish(topic, b"x", 1, 1)
    client.expect(m.publish(topic, b"x", 1, 1, level=level), m.puback(1))
    client.publish(topic[:-1], b"x")
    client.expect()
    client.unsubscribe(topic)


@edge(36)
@LEVELS
def test_characters_that_may_be_refused_are_refused(harness: Harness, level: int) -> None:
    for character in MAY_BE_REFUSED:
        client = join(harness, "c", level)
        client.publish(f"a{character}", b"x")
        client.refused(0x81)


@edge(36)
@LEVELS
def test_characters_that_may_be_refused_may_be_taken(
    broker_harness: Callable[..., Harness], level: int
) -> None:
    harness = broker_harness(config={"broker": {"text": "tolerant"}})
    for character in MAY_BE_REFUSED:
        topic = f"a{character}"
        client = join(harness, "c", level)
        client.subscribe((topic, 0))
        client.publish(topic, b"x")
        client.expect(m.publish(topic, b"x", level=level))
