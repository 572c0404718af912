"""Tests of the claims in docs/explanation/choices.md, section by section."""

import pytest
from hookmq.mqtt.packets import Puback, Pubcomp, Pubrec, Pubrel
from hookmq.plugin import Action, Deny
from hookmq_testing import Harness, HookRecorder, will

# Connecting


def test_the_second_client_takes_over() -> None:
    with Harness() as harness:
        first = harness.connect("c")
        harness.connect("c")
        first.expect_disconnect(0x8E)


def test_the_second_client_may_be_refused() -> None:
    with Harness(config={"broker": {"duplicate_client_id": "reject"}}) as harness:
        first = harness.connect("c")
        harness.connect("c", expect=0x85)
        first.expect_nothing()


def test_a_flapping_client_waits_for_a_second() -> None:
    with Harness() as harness:
        for _ in range(11):
            harness.connect("c")
        slowed = harness.connect("c", expect=None)
        slowed.expect_nothing()
        harness.advance(1.0)
        assert slowed.connack is not None


def test_no_client_id() -> None:
    with Harness() as harness:
        assert harness.connect("").client_id
        harness.connect("", version=4, clean_start=True)
        harness.connect("", version=4, clean_start=False, expect=2)


def test_an_authentication_method_nobody_knows() -> None:
    with Harness() as harness:
        harness.connect("c", authentication_method="X", expect=0x8C)


def test_connect_may_take_ten_seconds() -> None:
    with Harness() as harness:
        silent = harness.open()
        harness.advance(9.9)
        assert not silent.closed
        harness.advance(0.2)
        assert silent.closed


def test_a_session_that_asks_for_ever_lives_for_seven_days() -> None:
    with Harness() as harness:
        for version in (5, 4):
            forever = {"session_expiry_interval": 0xFFFFFFFF} if version == 5 else {}
            client = harness.connect(f"c{version}", version, False, properties=forever)
            client.drop()
        harness.advance(7 * 86400 - 1)
        assert set(harness.broker.sessions) == {"c5", "c4"}
        harness.advance(2)
        for version in (5, 4):
            assert not harness.connect(f"c{version}", version, False).session_present


def test_a_client_is_gone_after_one_and_a_half_keep_alives() -> None:
    with Harness() as harness:
        client = harness.connect("c", keep_alive=60)
        harness.advance(89)
        client.expect_nothing()
        harness.advance(2)
        client.expect_disconnect(0x8D)


def test_a_packet_larger_than_allowed() -> None:
    with Harness(config={"broker": {"max_packet_size": 1000}}) as harness:
        client = harness.connect("c")
        client.publish("a", b"x" * 2000)
        client.expect_disconnect(0x95)


# Publishing


def test_nobody_subscribed() -> None:
    with Harness() as harness:
        client = harness.connect("c")
        client.publish("a", b"", 1, expect=0x10)
        client.publish("a", b"", 2, expect=0x10)


@pytest.mark.parametrize("policy", ["acknowledge", "disconnect"])
def test_denied(policy: str) -> None:
    rules = HookRecorder("authorize")
    rules.answer("authorize", Deny())
    with Harness([rules], config={"broker": {"mqtt3_denied_publish": policy}}) as harness:
        client = harness.connect("five")
        client.publish("a", b"", 1, expect=0x87)
        client.publish("a", b"", 0)
        client.expect_nothing()
        old = harness.connect("four", version=4)
        if policy == "acknowledge":
            old.publish("a", b"", 1, expect=0)
        else:
            old.publish("a", b"", 1)
            assert old.closed


@pytest.mark.parametrize("policy", ["strict", "tolerant"])
def test_more_than_receive_maximum(policy: str) -> None:
    broker = {"receive_maximum": 1, "receive_maximum_policy": policy}
    with Harness(config={"broker": broker}) as harness:
        client = harness.connect("c", auto_ack=False)
        client.publish("a", b"", 2)
        client.publish("a", b"", 2)
        if policy == "strict":
            client.expect_disconnect(0x93)
        else:
            client.expect(Pubrec)
            client.expect(Pubrec)


def test_more_than_maximum_qos() -> None:
    with Harness(config={"broker": {"max_qos": 1}}) as harness:
        client = harness.connect("c")
        assert client.subscribe("a", 2).codes == (1,)
        client.publish("a", b"", 2)
        client.expect_disconnect(0x9B)


@pytest.mark.parametrize("check", [False, True])
def test_a_payload_declared_as_text_that_is_none(check: bool) -> None:
    with Harness(config={"broker": {"check_payload_format": check}}) as harness:
        client = harness.connect("c")
        expected = 0x99 if check else 0x10
        client.publish("a", b"\xff", 1, payload_format_indicator=1, expect=expected)


def test_two_hundred_slashes() -> None:
    with Harness() as harness:
        client = harness.connect("c")
        client.publish("/" * 200, b"", 1, expect=0x10)
        client.publish("/" * 201, b"", 1)
        client.expect_disconnect(0x90)


def test_acknowledgements_that_nobody_waits_for() -> None:
    with Harness() as harness:
        client = harness.connect("c")
        client.send(Puback(1), Pubcomp(2))
        client.ping()
        client.expect_nothing()
        client.send(Pubrel(3))
        assert client.expect(Pubcomp).code == 0x92


# Subscribing


def test_suback_before_retained_messages() -> None:
    with Harness() as harness:
        client = harness.connect("c")
        client.publish("a", b"kept", retain=True)
        client.send_subscribe("a")
        kinds = [type(client.next()).__name__ for _ in range(2)]
        assert kinds == ["Suback", "Publish"]


def test_overlapping_subscriptions() -> None:
    with Harness() as harness:
        client = harness.connect("c")
        for identifier, (filter, qos) in enumerate([("a/+", 0), ("a/#", 2), ("a/b", 1)], 1):
            client.subscribe(filter, qos, identifier=identifier)
        client.publish("a/b", b"x", 2)
        message = client.expect_message("a/b", qos=2)
        assert sorted(message.properties.subscription_identifier or ()) == [1, 2, 3]
        client.expect(Pubrec)
        client.expect(Pubcomp)
        client.expect_nothing()


def test_unsubscribing_from_nothing() -> None:
    with Harness() as harness:
        assert harness.connect("c").unsubscribe("a").codes == (0x11,)


def test_wildcards_and_dollar() -> None:
    with Harness() as harness:
        client = harness.connect("c")
        client.subscribe(["#", "+/b"])
        client.publish("$x/b", b"")
        client.expect_nothing()


@pytest.mark.parametrize("on_revoke", ["disconnect", "silent"])
def test_a_right_that_ends(on_revoke: str) -> None:
    rules = HookRecorder("authorize")
    with Harness([rules], config={"broker": {"on_revoke": on_revoke}}) as harness:
        client = harness.connect("c")
        client.subscribe("a")
        rules.answer("authorize", Deny())
        harness.handle("recorder").invalidate_authz()
        harness.settle()
        if on_revoke == "disconnect":
            client.expect_disconnect(0x87)
        else:
            harness.handle("recorder").publish("a", b"x")
            client.expect_nothing()


# Delivering


@pytest.mark.parametrize("queue", [False, True])
def test_qos_0_to_a_client_that_is_away(queue: bool) -> None:
    with Harness(config={"session": {"queue_qos0": queue}}) as harness:
        client = harness.connect("c", session_expiry_interval=60)
        client.subscribe("a")
        client.drop()
        harness.connect("p").publish("a", b"x")
        client.reconnect()
        if queue:
            client.expect_message("a", b"x")
        else:
            client.expect_nothing()


def test_a_full_queue_drops_what_comes() -> None:
    with Harness(config={"session": {"queue_messages": 2}}) as harness:
        client = harness.connect("c", session_expiry_interval=60)
        client.subscribe("a", 1)
        client.drop()
        publisher = harness.connect("p")
        for payload in (b"1", b"2", b"3"):
            publisher.publish("a", payload, 1)
        client.reconnect()
        client.expect_message(payload=b"1")
        client.expect_message(payload=b"2")
        client.expect_nothing()


def test_a_message_larger_than_the_client_takes() -> None:
    with Harness() as harness:
        client = harness.connect("c", maximum_packet_size=300)
        client.subscribe("a", 1)
        publisher = harness.connect("p")
        publisher.publish("a", b"x" * 1000, 1, expect=0)
        publisher.publish("a", b"y", 1, expect=0)
        client.expect_message("a", b"y")
        client.expect_nothing()
        assert sum(harness.metrics.dropped.values()) == 1


def test_never_sent_again_within_a_connection() -> None:
    with Harness() as harness:
        client = harness.connect("c", auto_ack=False, keep_alive=0)
        client.subscribe("a", 1)
        harness.connect("p").publish("a", b"x", 1)
        client.expect_message("a")
        harness.advance(3600)
        client.expect_nothing()


def test_aliases_towards_a_client_that_offers_them() -> None:
    with Harness() as harness:
        client = harness.connect("c", topic_alias_maximum=100)
        client.subscribe("a")
        publisher = harness.connect("p")
        seen = []
        for _ in range(3):
            publisher.publish("a", b"x")
            seen.append(client.expect_message("a").properties.topic_alias)
        assert seen[-1] is not None
        assert max(alias or 0 for alias in seen) <= 16


# Wills


def test_authorize_is_asked_twice_about_a_will() -> None:
    rules = HookRecorder("authorize")
    with Harness([rules]) as harness:
        client = harness.connect("c", will=will("gone", b"x", delay=10), session_expiry_interval=60)

        def asked() -> int:
            return len([call for call in rules.calls("authorize") if call.action is Action.WILL])

        assert asked() == 1
        client.drop()
        harness.advance(11)
        assert asked() == 2


def test_a_client_that_comes_back_has_no_will_published() -> None:
    with Harness() as harness:
        watcher = harness.connect("w")
        watcher.subscribe("gone")
        client = harness.connect("c", will=will("gone", b"x", delay=10), session_expiry_interval=60)
        client.drop()
        harness.advance(9)
        client.reconnect()
        harness.advance(100)
        watcher.expect_nothing()


@pytest.mark.parametrize(("reference", "code"), [("", 0x8B), ("other:1883", 0x9C)])
def test_the_broker_stops(reference: str, code: int) -> None:
    recorder = HookRecorder("on_published")
    with Harness([recorder]) as harness:
        client = harness.connect("c", will=will("gone", b"x"))
        harness.wait(lambda done: harness.broker.drain(reference, lambda: done(None)))
        client.expect_disconnect(code)
        assert [call.message.topic for call in recorder.calls("on_published")] == ["gone"]


# Refusals


def test_could_not_decide_is_not_no() -> None:
    rules = HookRecorder("on_connect", "authorize", id="rules")
    with Harness([rules]) as harness:
        harness.fail("rules", "on_connect", RuntimeError("broken"), times=1)
        harness.connect("c", expect=0x88)
        client = harness.connect("c")
        harness.fail("rules", "authorize", RuntimeError("broken"), times=1)
        client.publish("a", b"", 1, expect=0x83)
