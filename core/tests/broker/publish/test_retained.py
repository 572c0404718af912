"""Test which retained messages are stored, when they are sent and to which clients."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.hooks.verdicts import Allow
from hookmq.mqtt.packets import Packet, Publish, Suback, SubscribeRequest
from hookmq_testing import Harness, HookRecorder, MemoryClient, SlowStore

Make = Callable[..., Harness]
VERSIONS = (3, 4, 5)


def kept(version: int = 5) -> dict[str, Any]:
    return {"clean_start": False, **({"session_expiry_interval": 10000} if version == 5 else {})}


def taken(client: MemoryClient) -> list[tuple[str, bytes, int, bool]]:
    """Remove the unread messages and return them in order."""
    client.harness.settle()
    found = [p for p in client.unread if isinstance(p, Publish)]
    client.unread.clear()
    return [(m.topic, m.payload, m.qos, m.retain) for m in found]


# --- kept ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", VERSIONS)
@pytest.mark.parametrize("to", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_kept_and_sent(harness: Harness, of: int, to: int, qos: int) -> None:
    """[MQTT-3.3.1-5, 3.3.1-9] [MQTT311-3.3.1-5, 3.3.1-6, 3.3.1-8] Each new subscriber receives the newest message once,
    with the message's QoS and with RETAIN.
    """
    publisher = harness.connect("p", of)
    publisher.publish("t", b"old", 2, retain=True)
    publisher.publish("t", b"new", qos, retain=True)
    publisher.publish("t", b"live", 2)  # [MQTT-3.3.1-8] [MQTT311-3.3.1-12]
    client = harness.connect("s", to)
    for granted in (0, 1, 2):
        client.subscribe("t", granted)
        assert taken(client) == [("t", b"new", min(qos, granted), True)]
    client.subscribe("t/#", 2)
    assert taken(client) == [("t", b"new", qos, True)]


@pytest.mark.parametrize("of", VERSIONS)
def test_cleared_by_an_empty_payload(harness: Harness, of: int) -> None:
    """[MQTT-3.3.1-6, 3.3.1-7] [MQTT311-3.3.1-10, 3.3.1-11], edge case 27: an empty retained message
    clears the topic. It is delivered live but never stored.
    """
    live = harness.connect("live")
    live.subscribe("t", 2)
    publisher = harness.connect("p", of)
    for _ in range(2):
        publisher.publish("t", b"x", 1, retain=True)
        assert "t" in harness.broker.state.retained
        publisher.publish("t", b"", 1, retain=True)
        assert taken(live) == [("t", b"x", 1, False), ("t", b"", 1, False)]
        assert len(harness.broker.state.retained) == 0
        assert harness.broker.state.retained_bytes == 0
    publisher.publish("never", b"", 0, retain=True)
    client = harness.connect("s")
    client.subscribe("#")
    client.expect_nothing()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_topic_known_to_the_fast_path(harness: Harness, qos: int) -> None:
    """RETAIN takes effect even if it changes between messages on a topic that the fast path already knows."""
    live = harness.connect("live")
    live.subscribe("t", 2)
    client = harness.connect("s")
    publisher = harness.connect("p")
    for number in range(3):
        for retain in (False, False, True, False):
            publisher.publish("t", b"%d%d" % (number, retain), qos, retain=retain)
        client.subscribe("t", 2)
        assert taken(client)[-1] == ("t", b"%d1" % number, qos, True)
        client.unsubscribe("t")
    assert len(live.messages) == 12
    assert not any(m.retain for m in live.messages)


def test_within_bounds(broker_harness: Make) -> None:
    """Above `max_retained` or `max_retained_bytes`, no message is stored for a new topic. Existing messages can still
    be replaced and cleared.
    """
    harness = broker_harness(config={"broker": {"max_retained": 2}})
    live = harness.connect("live")
    live.subscribe("#")
    publisher = harness.connect("p")
    core = harness.broker.state

    def keep(topic: str, payload: bytes) -> bytes | None:
        publisher.publish(topic, payload, retain=True)
        live.expect_message(topic, payload)
        found = core.retained.get(topic)
        return None if found is None else found.message.payload

    assert keep("a", b"1") == b"1"
    who = core.retained_bytes - 2  # the publisher's entry counts too
    harness.reload(config={"broker": {"max_retained_bytes": who + 12}})
    assert keep("b", b"2") == b"2"
    assert keep("c", b"3") is None
    assert keep("a", b"123456789") == b"123456789"
    assert keep("a", b"1234567890") == b"123456789"
    assert keep("b", b"") is None
    assert keep("c", b"3") == b"3"
    assert core.retained_bytes == who + 12
    assert keep("a", b"") is None
    assert keep("b", b"0123456789") is None
    assert keep("b", b"012345678") == b"012345678"
    assert harness.metrics.dropped == {("retain_limit", "in"): 3}
    told = [fields for _, event, fields in harness.logs if event == "retained.full"]
    assert [fields["topic"] for fields in told] == ["c"]  # once a minute


# --- subscription options -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("handling", [0, 1, 2])
@pytest.mark.parametrize("again", [0, 1, 2])
@pytest.mark.parametrize("rap", [False, True])
def test_retain_handling(harness: Harness, handling: int, again: int, rap: bool) -> None:
    """[MQTT-3.3.1-9, 3.3.1-10, 3.3.1-11, 3.8.4-4], edge cases 25 and 26: retained messages sent in response to a
    SUBSCRIBE have RETAIN set, regardless of Retain As Published.

    "New" means new to the session, including after a reconnect or UNSUBSCRIBE.
    """
    harness.connect("p").publish("t", b"x", 1, retain=True)
    sent = [("t", b"x", 1, True)]
    client = harness.connect("s", **kept())
    options: dict[str, Any] = {"retain_as_published": rap}
    client.subscribe("t", 1, retain_handling=handling, **options)
    assert taken(client) == (sent if handling < 2 else [])
    client.subscribe("t", 1, retain_handling=again, **options)
    assert taken(client) == (sent if again == 0 else [])
    client.reconnect()
    client.subscribe("t", 1, retain_handling=again, **options)
    assert taken(client) == (sent if again == 0 else [])
    client.unsubscribe("t")
    client.subscribe("t", 1, retain_handling=again, **options)
    assert taken(client) == (sent if again < 2 else [])
    client.subscribe("+", 1, retain_handling=1, **options)
    assert taken(client) == sent


@pytest.mark.parametrize("rap", [False, True])
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_retain_as_published(harness: Harness, rap: bool, retain: bool, qos: int) -> None:
    """[MQTT-3.3.1-12, 3.3.1-13] [MQTT311-3.3.1-9], edge case 26: live messages keep RETAIN only
    with Retain As Published.
    """
    five = harness.connect("five", 5)
    five.subscribe("t", 2, retain_as_published=rap)
    four = harness.connect("four", 4)
    four.subscribe("t", 2)
    publisher = harness.connect("p")
    for _ in range(3):
        publisher.publish("t", b"x", qos, retain=retain)
        assert taken(five) == [("t", b"x", qos, retain and rap)]
        assert taken(four) == [("t", b"x", qos, False)]


def test_retain_handling_3(harness: Harness) -> None:
    """Edge case 25: Retain Handling 3 is a protocol error."""
    client = harness.connect("c")
    client.raw(b"\x82\x07\x00\x01\x00\x00\x01t\x30")
    client.expect_disconnect(0x82)


def test_shared_subscriptions_get_none(harness: Harness) -> None:
    """Edge case 25: a shared subscription receives no retained messages."""
    harness.connect("p").publish("t", b"x", retain=True)
    client = harness.connect("s")
    for _ in range(2):
        client.subscribe("$share/g/t", 1)
    client.expect_nothing()


def test_dollar_topics(harness: Harness) -> None:
    """[MQTT-4.7.2-1], edge case 34: a leading wildcard does not match retained messages whose
    topics start with $ either.
    """
    publisher = harness.connect("p")
    publisher.publish("$own/a", b"1", retain=True)
    publisher.publish("own/a", b"2", retain=True)
    client = harness.connect("s", 4)
    client.subscribe(["#", "+/a", "+/#"])
    assert {m[0] for m in taken(client)} == {"own/a"}
    client.subscribe("$own/#")
    assert taken(client) == [("$own/a", b"1", 0, True)]


def test_no_local(harness: Harness) -> None:
    """[MQTT-3.8.3-3] With No Local, a client does not receive its own retained messages either."""
    client = harness.connect("c")
    other = harness.connect("other")
    client.publish("a", b"mine", retain=True)
    other.publish("b", b"other", retain=True)
    client.subscribe("+", no_local=True)
    assert taken(client) == [("b", b"other", 0, True)]
    client.subscribe("+")
    assert {m[0] for m in taken(client)} == {"a", "b"}


def test_identifiers(harness: Harness) -> None:
    """[MQTT-3.3.4-3], edge case 30: a retained message carries only the identifier of the new subscription."""
    harness.connect("p").publish("a/b", b"x", retain=True)
    client = harness.connect("s")
    client.subscribe("a/#", identifier=1)
    client.subscribe("a/+", identifier=2)
    client.subscribe("a/b")
    found = [m.properties.subscription_identifier for m in client.messages]
    assert found == [(1,), (2,), None]


@pytest.mark.parametrize("seconds", [1, 100])
def test_encodings_kept_are_bounded(harness: Harness, seconds: int) -> None:
    """At most 16 encodings are cached. Caching one for each identifier and second would use unlimited memory."""
    client = harness.connect("c")
    client.publish("t", b"x", retain=True, message_expiry_interval=100_000)
    for number in range(1, 60):
        client.subscribe("t", identifier=number)
        message = client.expect_message("t", b"x")
        assert message.properties.subscription_identifier == (number,)
        assert message.properties.message_expiry_interval == 100_000 - (number - 1) * seconds
        harness.advance(seconds)
    found = harness.broker.state.retained.get("t")
    assert found is not None
    assert len(found.forms or ()) <= 16


# --- order and room -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_suback_first(harness: Harness, version: int) -> None:
    """SUBACK precedes the retained messages of each filter. A refused filter gets none."""
    publisher = harness.connect("p")
    for topic in ("a", "b", "c"):
        publisher.publish(topic, topic.encode(), retain=True)
    client = harness.connect("s", version, **kept(version))
    client.send_subscribe([("c", 0), ("a/#/x", 1), ("a", 2), ("+", 0)])
    harness.settle()
    first: Packet = client.unread[0]
    assert isinstance(first, Suback)
    topics = [m[0] for m in taken(client)]
    assert topics[:2] == ["c", "a"]
    assert sorted(topics[2:]) == ["a", "b", "c"]


def test_suback_first_with_a_slow_store(broker_harness: Make) -> None:
    """The SUBACK of a durable session waits for its commit, and the retained messages wait for the SUBACK."""
    store = SlowStore(slow=False)
    harness = broker_harness(store=store)
    harness.connect("p").publish("t", b"x", retain=True)
    client = harness.connect("s", **kept())
    store.slow = True
    client.send_subscribe("t", 1)
    client.expect_nothing()
    store.finish()
    store.slow = False
    harness.settle()
    assert [type(p) for p in client.unread] == [Suback, Publish]


def test_suback_behind_an_acknowledgement_that_waits(broker_harness: Make) -> None:
    """Acknowledgements stay in order, so SUBACK may wait behind a PUBACK. The retained messages wait for the SUBACK."""
    harness = broker_harness(
        config={"session": {"inflight_overflow": "backpressure", "backpressure_timeout": 30}}
    )
    slow = harness.connect("slow", auto_ack=False, receive_maximum=1)
    slow.subscribe("busy", 1)
    client = harness.connect("c")
    client.publish("t", b"x", retain=True)
    client.publish("busy", b"1", 1, expect=0)
    client.publish("busy", b"2", 1)
    client.expect_nothing()  # PUBACK is withheld
    client.send_subscribe("t")
    harness.advance(31)
    assert [type(p).__name__ for p in client.unread] == ["Puback", "Suback", "Publish"]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", VERSIONS)
def test_many(harness: Harness, version: int, qos: int) -> None:
    """All retained messages arrive, each once, even if there are more of them than a slice or a window can hold."""
    publisher = harness.connect("p", 4)
    topics = [f"many/{n % 7}/{n}" for n in range(700)]
    for topic in topics:
        publisher.publish(topic, topic.encode(), qos, retain=True)
    client = harness.connect("s", version)
    client.subscribe("many/#", qos)
    found = taken(client)
    assert sorted(m[0] for m in found) == sorted(topics)
    assert {m[2:] for m in found} == {(qos, True)}


def test_many_to_a_small_window(harness: Harness) -> None:
    """[MQTT-3.3.4-9] The window also limits retained messages. Live messages may be sent in between them."""
    publisher = harness.connect("p")
    for number in range(40):
        publisher.publish(f"r/{number}", b"x", 1, retain=True)
    client = harness.connect("s", auto_ack=False, receive_maximum=3)
    client.subscribe("r/#", 1)
    seen: list[str] = []
    while True:
        harness.settle()
        arrived = [p for p in client.unread if isinstance(p, Publish)]
        client.unread.clear()
        if not arrived:
            break
        assert len(arrived) <= 3
        seen += [m.topic for m in arrived]
        if len(seen) == 6:
            publisher.publish("r/live", b"y", 1)
        for message in arrived:
            client.ack(message)
    assert sorted(seen) == sorted([*(f"r/{n}" for n in range(40)), "r/live"])
    assert harness.broker.sessions["s"].backlog is None


def test_many_to_a_slow_reader(harness: Harness) -> None:
    """Retained messages for a slow reader are taken from the index as room becomes available, not copied to a buffer
    all at once.
    """
    publisher = harness.connect("p")
    for number in range(2000):
        publisher.publish(f"r/{number}", b"x" * 1000, retain=True)
    client = harness.connect("s", high_water=10_000)
    client.pause()
    client.send_subscribe("r/#")
    harness.settle()
    assert client.wire.paused
    assert client.wire.unsent < 600_000  # a slice or two of 256
    client.resume()
    client.expect(Suback)
    assert len({m[0] for m in taken(client)}) == 2000


def test_changes_while_they_are_sent(harness: Harness) -> None:
    """Retained messages may change while they are being sent. Cleared messages are skipped, replaced ones are sent in
    their new version, and none is sent twice.
    """
    publisher = harness.connect("p")
    for number in range(10):
        publisher.publish(f"r/{number}", b"old", 1, retain=True)
    client = harness.connect("s", auto_ack=False, receive_maximum=1)
    client.subscribe("r/#", 1)
    first = client.expect_message()
    rest = [f"r/{n}" for n in range(10) if f"r/{n}" != first.topic]
    # Publishes while the client is subscribed, so the client also gets live messages.
    other = harness.connect("o")
    client.unsubscribe("r/#")
    client.subscribe("r/#", 1)
    other.publish(rest[0], b"", 1, retain=True)
    other.publish(rest[1], b"new", 1, retain=True)
    client.auto_ack = True
    client.ack(first)
    messages = client.messages[1:]
    stored = {m.topic: m.payload for m in messages if m.retain}
    assert len([m for m in messages if m.retain]) == 9
    assert rest[0] not in stored
    assert stored[rest[1]] == b"new"
    assert stored[first.topic] == b"old"


def test_unsubscribed_while_they_are_sent(harness: Harness) -> None:
    """[MQTT-3.10.4-2] After UNSUBSCRIBE, retained messages whose delivery has not started are not
    sent.
    """
    publisher = harness.connect("p")
    for number in range(10):
        publisher.publish(f"r/{number}", b"x", 1, retain=True)
    client = harness.connect("s", auto_ack=False, receive_maximum=2)
    client.subscribe("r/#", 1)
    one, two = client.expect_message(), client.expect_message()
    client.unsubscribe("r/#")
    client.ack(one)
    client.ack(two)
    client.expect_nothing()
    assert harness.broker.sessions["s"].backlog is None


def test_interrupted(harness: Harness) -> None:
    """If a durable session is interrupted while retained messages are being sent, it receives the rest when
    it returns.
    """
    publisher = harness.connect("p")
    for number in range(10):
        publisher.publish(f"r/{number}", b"x", 1, retain=True)
    client = harness.connect("s", auto_ack=False, receive_maximum=2, **kept())
    client.subscribe("r/#", 1)
    client.drop()
    client.received.clear()
    client.reconnect(auto_ack=True)
    assert sorted(m[0] for m in taken(client)) == sorted(f"r/{n}" for n in range(10))


def test_too_large_and_expired_ones_are_passed_over(harness: Harness) -> None:
    """[MQTT-3.1.2-25, 3.3.2-5] Messages that are too large or expired are skipped, and the others
    are sent.
    """
    publisher = harness.connect("p")
    publisher.publish("r/large", b"x" * 100, retain=True)
    publisher.publish("r/gone", b"x", retain=True, message_expiry_interval=5)
    publisher.publish("r/small", b"x", retain=True)
    harness.advance(5)
    client = harness.connect("s", maximum_packet_size=60)
    client.subscribe("r/#", 1)
    assert taken(client) == [("r/small", b"x", 0, True)]
    assert harness.metrics.dropped[("too_large", "out")] == 1


def test_the_max_qos_of_a_plugin_applies_to_retained_messages(broker_harness: Make) -> None:
    """A plugin's `Allow(max_qos=...)` for a subscription also applies to its retained messages."""
    recorder = HookRecorder("authorize")
    recorder.answer("authorize", lambda subscription: Allow(max_qos=1) if subscription else Allow())
    harness = broker_harness(plugins=[recorder])
    harness.connect("p").publish("t", b"x", 2, retain=True)
    client = harness.connect("s")
    assert client.subscribe("t", 2).codes == (1,)
    assert taken(client) == [("t", b"x", 1, True)]


def test_several_filters_of_one_subscribe(harness: Harness) -> None:
    """[MQTT-3.8.4-5] Each filter of a SUBSCRIBE is processed as if it were alone. For a repeated filter, the retained
    messages are sent twice.
    """
    harness.connect("p").publish("t", b"x", 2, retain=True)
    client = harness.connect("s")
    client.subscribe([SubscribeRequest("t", 1), SubscribeRequest("t", 2, retain_handling=1)])
    # The second request replaced the first before its retained messages were read.
    assert taken(client) == []
    client.subscribe([SubscribeRequest("t", 1), SubscribeRequest("t", 2)])
    assert taken(client) == [("t", b"x", 2, True)]


@pytest.mark.parametrize(
    ("topic", "filter", "options"),
    [
        ("a/{}/b", "+/+/z", {}),
        ("{}", "#", {"no_local": True}),
        ("a/{}" + "/x" * 150, "+" + "/+" * 150 + "/z", {}),
    ],
)
def test_a_search_that_finds_nothing_takes_many_turns(
    harness: Harness,
    monkeypatch: pytest.MonkeyPatch,
    topic: str,
    filter: str,
    options: dict[str, Any],
) -> None:
    """A search that finds nothing lets other clients have turns. Searching 150,000 retained messages used to take one
    turn of 40 ms.
    """
    client = harness.connect("c")
    for number in range(6000):
        client.publish(topic.format(number), b"x", retain=True)
    turns = 0
    turn = harness.clock.turn

    def counted(clock: object) -> bool:
        nonlocal turns
        turns += 1
        return turn()

    monkeypatch.setattr(type(harness.clock), "turn", counted)
    client.send_subscribe([SubscribeRequest(filter, 0, **options)])
    assert taken(client) == []
    # A turn visits up to 2,000 messages, or fewer if their topics are long.
    assert turns >= (6 if len(topic) > 100 else 3) + 3
    assert harness.broker.sessions["c"].backlog is None


def test_few_encodings_of_a_large_message_are_kept(harness: Harness) -> None:
    """Only a few encodings of a large message are cached, because each one copies the payload, and a message may be
    retained for years.
    """
    client = harness.connect("c")
    client.publish("t", b"x" * 10_000, 1, retain=True)
    for kept_session in (False, True):
        options = kept() if kept_session else {}
        other = harness.connect(f"o{kept_session}", **options)
        for number in range(1, 10):
            other.subscribe("t", 1, identifier=number)
            assert other.expect_message("t").properties.subscription_identifier == (number,)
    found = harness.broker.state.retained.get("t")
    assert found is not None
    assert len(found.forms or ()) == 1
