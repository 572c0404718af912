"""Test SUBSCRIBE and UNSUBSCRIBE: granted QoS and overlapping subscriptions."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.hooks.verdicts import Allow, Deny
from hookmq.model.events import Action
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import Publish, Suback, SubscribeRequest, Unsuback
from hookmq_testing import Harness, HookRecorder, MemoryClient

Make = Callable[..., Harness]
VERSIONS = (3, 4, 5)
ABSENT = 0x11


def payloads(client: MemoryClient) -> list[bytes]:
    """Remove the unread messages and return their payloads."""
    client.harness.settle()
    found = [p.payload for p in client.unread if isinstance(p, Publish)]
    client.unread.clear()
    return found


# --- SUBACK ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_one_code_for_each_filter(harness: Harness, version: int) -> None:
    """[MQTT-3.8.4-1, 3.8.4-2, 3.8.4-5, 3.8.4-6, 3.8.4-7, 3.9.3-1, 2.2.1-6] [MQTT311-3.8.4-1, 3.8.4-2, 3.8.4-4, 3.8.4-5,
    3.9.3-1, 3.9.3-2], edge cases 45 and 58: a refused filter does not affect the others. MQTT 3.1 has no failure code.
    """
    client = harness.connect("c", version)
    filters = [("a", 2), ("a/#/b", 1), ("b", 0), ("c+", 2), ("c", 1), ("$share/g", 1)]
    failed = {5: (0x8F, 0x8F, 0x8F), 4: (0x80, 0x80, 0x80), 3: (1, 2, 1)}[version]
    number = client.send_subscribe(filters)
    answer = client.expect(Suback)
    assert answer.packet_id == number
    assert answer.codes == (2, failed[0], 0, failed[1], 1, failed[2])
    client.expect_nothing()
    assert sorted(harness.broker.sessions["c"].subscriptions) == ["a", "b", "c"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "topic_filter",
    [
        "a#", "#/a", "a/#/b", "a/b#", "##", "a+", "+a", "a/+b/c", "++",
        "$share/", "$share/g", "$share//x", "$share/g/", "$share/+/x", "$share/#/x", "$share/a#b/x", "$share/g/a#",
        "/".join("x" * 202),
    ],
)  # fmt: skip
def test_invalid_filters(harness: Harness, version: int, topic_filter: str) -> None:
    """[MQTT-4.7.1-1, 4.7.1-2, 4.7.3-1, 4.8.2-1, 4.8.2-2] [MQTT311-4.7.1-2, 4.7.1-3], edge cases 33, 35
    and 58: invalid filters are refused.
    """
    client = harness.connect("c", version)
    codes = client.subscribe(topic_filter, 1).codes
    assert codes == ({5: 0x8F, 4: 0x80, 3: 1}[version],)
    client.expect_nothing()
    assert not harness.broker.sessions["c"].subscriptions


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("data", "code", "versions"),
    [
        pytest.param("80 06 0001 @ 0001 74 00", 0x81, (3, 4, 5), id="flags [MQTT-3.8.1-1]"),
        pytest.param("8a 06 0001 @ 0001 74 00", 0x81, (4, 5), id="DUP, which 3.1 may set"),
        pytest.param("82 02 0001 @", 0x82, (3, 4, 5), id="no filter [MQTT-3.8.3-2]"),
        pytest.param("82 06 0000 @ 0001 74 00", 0x82, (3, 4, 5), id="id 0 [MQTT-2.2.1-3]"),
        pytest.param("82 05 0001 @ 0001 74", 0x81, (3, 4, 5), id="no options"),
        pytest.param("82 05 0001 @ 0002 74", 0x81, (3, 4, 5), id="half a filter"),
        pytest.param("82 06 0001 @ 0001 ff 00", 0x81, (3, 4, 5), id="UTF-8 [MQTT-3.8.3-1]"),
        pytest.param("82 06 0001 @ 0001 00 00", 0x81, (3, 4, 5), id="U+0000 [MQTT-4.7.3-2]"),
        pytest.param("82 06 0001 @ 0001 74 03", 0x82, (3, 4, 5), id="QoS 3 [MQTT311-3.8.3-4]"),
        pytest.param("82 06 0001 @ 0001 74 04", 0x81, (3, 4), id="bits 2-7 [MQTT311-3.8.3-4]"),
        pytest.param("82 06 0001 @ 0001 74 40", 0x81, (3, 4, 5), id="bit 6 [MQTT-3.8.3-5]"),
        pytest.param("82 06 0001 @ 0001 74 80", 0x81, (3, 4, 5), id="bit 7 [MQTT-3.8.3-5]"),
        pytest.param("82 06 0001 @ 0001 74 30", 0x82, (3, 4, 5), id="retain handling 3"),
        pytest.param(
            "82 0e 0001 @ 0009 2473686172652f672f 04", 0x82, (5,), id="no local [3.8.3-4]"
        ),
        pytest.param("82 08 0001 02 0b00 0001 74 00", 0x82, (5,), id="identifier 0"),
        pytest.param("82 0a 0001 04 0b01 0b02 0001 74 00", 0x82, (5,), id="identifier twice"),
        pytest.param("82 08 0001 02 2301 0001 74 00", 0x81, (5,), id="a property of PUBLISH"),
        pytest.param("a0 05 0001 @ 0001 74", 0x81, (3, 4, 5), id="flags [MQTT-3.10.1-1]"),
        pytest.param("a2 02 0001 @", 0x82, (3, 4, 5), id="no filter [MQTT-3.10.3-2]"),
        pytest.param("a2 05 0000 @ 0001 74", 0x82, (3, 4, 5), id="UNSUBSCRIBE of id 0"),
        pytest.param("a2 05 0001 @ 0001 ff", 0x81, (3, 4, 5), id="UTF-8 [MQTT-3.10.3-1]"),
        pytest.param("a2 04 0001 @ 0001", 0x81, (3, 4, 5), id="half a filter, UNSUBSCRIBE"),
    ],
)
def test_malformed(
    harness: Harness, version: int, data: str, code: int, versions: tuple[int, ...]
) -> None:
    """[MQTT311-3.8.1-1, 3.8.3-1, 3.8.3-3, 3.10.1-1, 3.10.3-1, 3.10.3-2], edge cases 29, 31, 32 and
    39: a malformed SUBSCRIBE or UNSUBSCRIBE ends the connection. In the parameters, @ stands for
    the properties.
    """
    if version not in versions:
        return
    made = bytearray.fromhex(data.replace("@", "00" if version == 5 else ""))
    made[1] = len(made) - 2
    client = harness.connect("c", version)
    client.raw(bytes(made))
    client.expect_disconnect(code)


def test_3_1_may_set_dup(harness: Harness) -> None:
    """Edge case 59: MQTT 3.1 clients may set DUP in SUBSCRIBE, UNSUBSCRIBE and PUBREL."""
    client = harness.connect("c", 3)
    client.raw(b"\x8a\x06\x00\x01\x00\x01t\x01")
    assert client.next() == Suback(1, (1,))
    client.raw(b"\xaa\x05\x00\x02\x00\x01t")
    assert client.next() == Unsuback(2)
    client.raw(b"\x6a\x02\x00\x09")
    assert client.next().packet_id == 9  # type: ignore[union-attr]


@pytest.mark.parametrize("version", VERSIONS)
def test_denied(broker_harness: Make, version: int) -> None:
    """[MQTT311-3.9.3-2], edge cases 45 and 58: a denied subscription does not end the connection. An MQTT 3.1 client
    gets a SUBACK that grants the requested QoS, but receives no messages.
    """
    recorder = HookRecorder("authorize")
    recorder.answer(
        "authorize",
        lambda action, topic: (
            Deny(reason="private") if action is Action.SUBSCRIBE and topic == "no" else Allow()
        ),
    )
    harness = broker_harness(plugins=[recorder])
    client = harness.connect("c", version)
    answer = client.subscribe([("no", 2), ("yes", 1)])
    assert answer.codes == {5: (0x87, 1), 4: (0x80, 1), 3: (2, 1)}[version]
    assert answer.properties.reason_string == ("private" if version == 5 else None)
    for _ in range(2):
        client.publish("no", b"no")
        client.publish("yes", b"yes")
    assert payloads(client) == [b"yes", b"yes"]


def test_reason_in_words_where_it_fits(broker_harness: Make) -> None:
    """[MQTT-3.9.2-1, 3.1.2-29] SUBACK has a reason string if the client wants one and it fits."""
    recorder = HookRecorder("authorize")
    recorder.answer("authorize", Deny(reason="x" * 50))
    harness = broker_harness(plugins=[recorder])
    options: list[dict[str, Any]] = [
        {"maximum_packet_size": 58},
        {"request_problem_information": 0},
        {"maximum_packet_size": 59},
    ]
    for given, words in zip(options, (None, None, "x" * 50), strict=True):
        client = harness.connect("c", **given)
        answer = client.subscribe("t")
        assert answer.codes == (0x87,)
        assert answer.properties.reason_string == words


@pytest.mark.parametrize("version", VERSIONS)
def test_subscriptions_that_need_an_unavailable_feature_are_refused(
    broker_harness: Make, version: int
) -> None:
    """[MQTT311-3.8.3-2], edge case 24: subscriptions that need an unavailable feature are refused."""
    harness = broker_harness(
        config={
            "broker": {
                "wildcard_available": False,
                "shared_available": False,
                "subscription_identifiers_available": False,
            }
        }
    )
    client = harness.connect("c", version)
    if version == 5:  # CONNACK announced the restrictions, so these are protocol errors
        for topic_filter, code in (("a/#", 0xA2), ("+", 0xA2), ("$share/g/a", 0x9E)):
            client = harness.connect("c")
            client.send_subscribe(["a", topic_filter])
            client.expect_disconnect(code)
        client = harness.connect("c")
        client.send_subscribe("b", identifier=1)
        client.expect_disconnect(0xA1)
        return
    codes = client.subscribe(["a/#", "+", "$share/g/a", "a"]).codes
    assert codes == {4: (0x80, 0x80, 0x80, 0), 3: (0, 0, 0, 0)}[version]
    assert list(harness.broker.sessions["c"].subscriptions) == ["a"]


def test_too_many(broker_harness: Make) -> None:
    """The broker limits subscriptions per client and filters per packet. A client at the first limit can still replace
    its existing subscriptions.
    """
    harness = broker_harness(
        config={"session": {"max_subscriptions": 2}, "broker": {"max_filters": 3}}
    )
    client = harness.connect("c")
    assert client.subscribe(["a", "b", "c"]).codes == (0, 0, 0x97)
    assert client.subscribe(["c", "a"], 2).codes == (0x97, 2)
    client.unsubscribe("b")
    assert client.subscribe(["c", "d"]).codes == (0, 0x97)
    client.send_subscribe(["a", "b", "c", "d"])
    client.expect_disconnect(0x97)


# --- overlapping and replaced -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", VERSIONS)
def test_overlapping(harness: Harness, version: int, qos: int) -> None:
    """[MQTT-3.3.4-2] [MQTT311-3.3.5-1], edge case 30: with overlapping subscriptions, the client
    receives one copy, at the highest QoS.
    """
    client = harness.connect("c", version)
    client.subscribe([("a/#", 0), ("a/+", 2), ("a/b", 1), ("#", 0)])
    publisher = harness.connect("p")
    for _ in range(3):
        publisher.publish("a/b", b"x", qos)
        client.expect_message("a/b", b"x", qos)
    client.expect_nothing()
    client.unsubscribe("a/+")
    publisher.publish("a/b", b"x", qos)
    client.expect_message("a/b", b"x", min(qos, 1))


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_identifiers(harness: Harness, qos: int) -> None:
    """[MQTT-3.3.4-3, 3.3.4-4], edge cases 29 and 30: a message carries the identifiers of all matching subscriptions,
    including duplicates.
    """
    client = harness.connect("c")
    client.subscribe("a/#", 0, identifier=1)
    client.subscribe("a/+", 2, identifier=268435455)
    client.subscribe("a/b", 1)
    client.subscribe("+/b", 1, identifier=1)
    client.subscribe("c", 1)
    publisher = harness.connect("p")
    for _ in range(2):
        publisher.publish("a/b", b"", qos)
        found = client.expect_message(qos=qos).properties.subscription_identifier
        assert sorted(found or ()) == [1, 1, 268435455]
        publisher.publish("c", b"", qos)
        assert client.expect_message().properties.subscription_identifier is None
    # Section 3.8.2.1.2: a new SUBSCRIBE without an identifier removes the old identifier.
    client.subscribe("a/#", 0)
    client.subscribe("a/+", 0, identifier=5)
    publisher.publish("a/x", b"", qos)
    assert client.expect_message().properties.subscription_identifier == (5,)


@pytest.mark.parametrize("filters", [("t", "+", "#"), ("#", "+", "t"), ("+", "t", "#")])
def test_retain_as_published_of_one_that_overlaps(
    harness: Harness, filters: tuple[str, ...]
) -> None:
    """[MQTT-3.3.1-13] With overlapping subscriptions, the single copy keeps RETAIN if at least one of them uses Retain
    As Published.
    """
    client = harness.connect("c")
    for number, topic_filter in enumerate(filters):
        client.subscribe(topic_filter, 1, retain_as_published=number == 1)
    publisher = harness.connect("p")
    for retain in (True, False, True):
        publisher.publish("t", b"x", 1, retain=retain)
        client.expect_message("t", b"x", 1, retain=retain)
        client.unread.clear()
    client.unsubscribe(filters[1])
    publisher.publish("t", b"x", 1, retain=True)
    client.expect_message("t", b"x", 1, retain=False)


# --- no local and bridges ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_no_local(harness: Harness, qos: int) -> None:
    """[MQTT-3.8.3-3], edge case 31: No Local excludes messages from any publisher with the same client id."""
    client = harness.connect("c")
    other = harness.connect("other")
    client.subscribe("t", 2, no_local=True)
    for _ in range(3):
        client.publish("t", b"mine", qos)
        other.publish("t", b"other", qos)
    assert payloads(client) == [b"other"] * 3
    client.reconnect()
    client.subscribe("t", 2, no_local=True)
    client.publish("t", b"mine", qos)
    assert payloads(client) == []


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_no_local_beside_another(harness: Harness, qos: int) -> None:
    """If No Local excludes one of two overlapping subscriptions, the message has the QoS and identifier of the other
    one.
    """
    client = harness.connect("c")
    other = harness.connect("other")
    client.subscribe("t", 2, no_local=True, identifier=1)
    client.subscribe("+", 1, identifier=2)
    for _ in range(2):
        client.publish("t", b"mine", qos)
        message = client.expect_message("t", b"mine", min(qos, 1))
        assert message.properties.subscription_identifier == (2,)
        other.publish("t", b"other", qos)
        message = client.expect_message("t", b"other", qos)
        assert sorted(message.properties.subscription_identifier or ()) == [1, 2]
    payloads(client)
    client.unsubscribe("+")
    client.publish("t", b"mine", qos)
    client.subscribe("+", 1, no_local=True)
    client.publish("t", b"mine", qos)
    assert payloads(client) == []


def test_no_local_is_still_a_match(harness: Harness) -> None:
    """A subscription still matches a message that No Local excludes. Code 0x10 means that no subscription matched, not
    that no client received the message.
    """
    client = harness.connect("c")
    client.subscribe("t", 1, no_local=True)
    for _ in range(3):
        client.publish("t", b"", 1, expect=0)


@pytest.mark.parametrize("version", [3, 4])
def test_bridges(harness: Harness, version: int) -> None:
    """Edge case 55: bit 7 of the protocol level marks a bridge. Its subscriptions are No Local and keep RETAIN."""
    bridge = harness.connect("b", version, bridge=True)
    bridge.subscribe("t", 2)
    other = harness.connect("other")
    for retain in (False, True, False):
        bridge.publish("t", b"mine", 1, expect=0)
        bridge.expect_nothing()
        other.publish("t", b"x", 1, retain=retain)
        bridge.expect_message("t", b"x", 1, retain=retain)


# --- UNSUBSCRIBE ------------------------------------------------------------------------------------------------------


# --- sessions and plugins -----------------------------------------------------------------------------------------------


def test_a_filter_rewritten_by_a_plugin(broker_harness: Make) -> None:
    """If a plugin rewrites a filter, the client still unsubscribes with its original filter. Subscribing again replaces
    the rewritten filter.
    """
    recorder = HookRecorder("on_subscribe")
    homes = iter(("one/x", "two/x", "one/x"))
    recorder.answer(
        "on_subscribe", lambda subscription: subscription.replace(topic_filter=next(homes))
    )
    harness = broker_harness(plugins=[recorder])
    client = harness.connect("c")
    publisher = harness.connect("p")
    for there, gone in (("one/x", "two/x"), ("two/x", "one/x")):
        client.subscribe("x")
        publisher.publish(there, there.encode())
        publisher.publish(gone, gone.encode())
        assert payloads(client) == [there.encode()]
    assert client.unsubscribe("two/x").codes == (ABSENT,)
    assert client.unsubscribe("x").codes == (0,)
    assert len(harness.broker.state.router) == 0


def test_publishes_behind_a_subscribe(harness: Harness) -> None:
    """If one segment contains SUBSCRIBE, messages and UNSUBSCRIBE, only the messages between the two packets are
    delivered.
    """
    for version in VERSIONS:
        client = harness.connect("c", version)
        properties = b"\0" if version == 5 else b""
        body = b"\0\x01" + properties + b"\0\x01t\x01"
        subscribe = bytes((0x82, len(body))) + body
        body = b"\0\x02" + properties + b"\0\x01t"
        unsubscribe = bytes((0xA2, len(body))) + body
        data = encode(Publish("t", b"x"), version)
        client.raw(data + data + subscribe + data + data + unsubscribe + data + subscribe + data)
        assert payloads(client) == [b"x"] * 3


def test_several_requests_of_one_filter(harness: Harness) -> None:
    """[MQTT-3.8.4-5] Repeating a filter within one SUBSCRIBE has the same result as sending separate packets."""
    client = harness.connect("c")
    answer = client.subscribe([SubscribeRequest("t", 2), SubscribeRequest("t", 0)])
    assert answer.codes == (2, 0)
    client.publish("t", b"x", 2)
    client.expect_message("t", b"x", 0)
