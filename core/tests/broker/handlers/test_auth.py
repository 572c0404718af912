"""Test enhanced authentication before CONNACK and reauthentication after it."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.hooks.verdicts import Accept, Allow, Challenge, Deny, Limits
from hookmq.mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Publish,
    Subscribe,
    SubscribeRequest,
)
from hookmq.mqtt.properties import Properties
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq_testing import Harness, HookRecorder, MemoryClient

Make = Callable[..., Harness]

CONTINUE = ReasonCode.CONTINUE_AUTHENTICATION
AGAIN = ReasonCode.RE_AUTHENTICATE


@pytest.fixture
def recorder() -> HookRecorder:
    return HookRecorder("on_auth", "on_connect", "on_auth_failed", "authorize", "on_session")


@pytest.fixture
def harness(broker_harness: Make, recorder: HookRecorder) -> Harness:
    return broker_harness([recorder], config={"auth": {"default": "deny"}})


def begin(
    harness: Harness, data: bytes | None = b"hello", expect: int | None = None, **options: Any
) -> MemoryClient:
    return harness.connect(
        "c", authentication_method="m", authentication_data=data, expect=expect, **options
    )


def auth(
    data: bytes | None = None, code: int = CONTINUE, method: str | None = "m", **more: Any
) -> Auth:
    properties = Properties(authentication_method=method, authentication_data=data, **more)
    return Auth(code, properties)


def opened(harness: Harness, recorder: HookRecorder, verdict: Accept | None = None) -> MemoryClient:
    """Return a client whose authentication took a single packet."""
    recorder.answer("on_auth", verdict or Accept("first"))
    client = begin(harness, expect=0)
    recorder.clear()
    return client


# --- before CONNACK -----------------------------------------------------------------------------------------------------


def test_one_step(harness: Harness, recorder: HookRecorder) -> None:
    recorder.answer("on_auth", Accept("somebody", {"a": 1}))
    client = begin(harness, expect=0)
    assert client.connack is not None
    assert client.connack.properties.authentication_method == "m"  # [MQTT-4.12.0-5]
    [call] = recorder.calls("on_auth")
    assert call.auth.properties.authentication_method == "m"
    assert call.auth.properties.authentication_data == b"hello"
    found = harness.broker.sessions["c"].client
    assert (found.identity, found.claims) == ("somebody", {"a": 1})
    assert len(recorder.calls("on_connect")) == 1


def test_several_steps(harness: Harness, recorder: HookRecorder) -> None:
    # [MQTT-4.12.0-2, 4.12.0-3]
    recorder.answer("on_auth", Challenge(b"1?"), Challenge(b""), Accept("x"))
    client = begin(harness)
    first = client.expect(Auth)
    assert first.code == CONTINUE
    assert first.properties == Properties(authentication_method="m", authentication_data=b"1?")
    assert not recorder.calls("on_connect")
    client.send(auth(b"1!"))
    assert client.expect(Auth).properties == Properties(authentication_method="m")
    client.expect_nothing()
    client.send(auth(b"2!"))
    assert client.expect(Connack).code == 0
    steps = [call.auth.properties.authentication_data for call in recorder.calls("on_auth")]
    assert steps == [b"hello", b"1!", b"2!"]
    client.publish("a", qos=1, expect=0x10)


def test_steps_that_take_their_time(harness: Harness, recorder: HookRecorder) -> None:
    first, second = harness.clock.event(), harness.clock.event()
    recorder.answer("on_auth", first, second)
    client = begin(harness)
    client.expect_nothing()
    first.set(Challenge(b"?"))
    client.expect(Auth)
    client.send(auth(b"!"))
    client.expect_nothing()
    harness.advance(4)
    second.set(Accept("x"))
    assert client.expect(Connack).code == 0


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        (None, ReasonCode.BAD_AUTHENTICATION_METHOD),  # [MQTT-4.12.0-1]
        (Deny(), ReasonCode.NOT_AUTHORIZED),  # [MQTT-4.12.0-4]
        (Deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD), ReasonCode.BAD_USER_NAME_OR_PASSWORD),
        (ValueError("broken"), ReasonCode.UNSPECIFIED_ERROR),
        ("nonsense", ReasonCode.UNSPECIFIED_ERROR),
    ],
)
@pytest.mark.parametrize("steps", [0, 1])
def test_refused(
    harness: Harness, recorder: HookRecorder, verdict: Any, code: ReasonCode, steps: int
) -> None:
    recorder.answer("on_auth", *[Challenge(b"?")] * steps, verdict)
    client = begin(harness)
    for _ in range(steps):
        client.expect(Auth)
        client.send(auth(b"!"))
    assert client.expect(Connack).code == code
    client.expect_closed()
    harness.settle()
    assert [call.code for call in recorder.calls("on_auth_failed")] == [code]
    assert not recorder.calls("on_connect")
    assert not harness.broker.sessions


def test_a_method_that_nobody_knows(broker_harness: Make) -> None:
    # Edge case 50, without any plugin
    client = begin(broker_harness(), expect=ReasonCode.BAD_AUTHENTICATION_METHOD)
    client.expect_closed()


def test_no_answer(harness: Harness, recorder: HookRecorder) -> None:
    harness.fail("recorder", "on_auth", "timeout")
    client = begin(harness)
    harness.advance(5.1)
    assert client.expect(Connack).code == ReasonCode.UNSPECIFIED_ERROR
    client.expect_closed()


def test_a_client_that_does_not_answer(harness: Harness, recorder: HookRecorder) -> None:
    recorder.answer("on_auth", Challenge(b"?"))
    client = begin(harness)
    client.expect(Auth)
    harness.advance(60)
    assert client.expect(Connack).code == ReasonCode.SERVER_UNAVAILABLE
    client.expect_closed()


def test_on_connect_may_still_refuse(harness: Harness, recorder: HookRecorder) -> None:
    recorder.answer("on_auth", Accept("x"))
    recorder.answer("on_connect", Deny(ReasonCode.BANNED))
    begin(harness, expect=ReasonCode.BANNED).expect_closed()


def test_both_may_limit(harness: Harness, recorder: HookRecorder) -> None:
    recorder.answer("on_auth", Accept("x", limits=Limits(receive_maximum=5, queue_messages=9)))
    recorder.answer("on_connect", Accept(limits=Limits(receive_maximum=7, queue_messages=3)))
    client = begin(harness, expect=0)
    assert client.connack is not None
    assert client.connack.properties.receive_maximum == 5
    assert harness.broker.sessions["c"].queue_messages == 3


@pytest.mark.parametrize(("first", "second"), [(30, 60), (60, 30), (30, None), (None, 30)])
def test_a_later_plugin_keeps_the_identity_of_enhanced_authentication(
    harness: Harness, recorder: HookRecorder, first: int | None, second: int | None
) -> None:
    """After enhanced authentication, a later plugin may add claims and shorten the validity. It cannot change the
    identity or extend the validity.
    """
    now = harness.clock.time()
    ends = [None if one is None else now + one for one in (first, second)]
    recorder.answer("on_auth", Accept("x", expires_at=ends[0]))
    recorder.answer("on_connect", Accept("y", {"a": 1}, expires_at=ends[1]))
    client = begin(harness, expect=0)
    found = harness.broker.sessions["c"].client
    assert (found.identity, found.claims, found.expires_at) == ("x", {"a": 1}, now + 30)
    harness.advance(30.1)
    client.expect_disconnect(ReasonCode.MAXIMUM_CONNECT_TIME)


def test_one_may_limit(harness: Harness, recorder: HookRecorder) -> None:
    recorder.answer("on_auth", Accept("x", limits=Limits(receive_maximum=5)))
    recorder.answer("on_connect", Accept())
    client = begin(harness, expect=0)
    assert client.connack is not None
    assert client.connack.properties.receive_maximum == 5


def test_a_client_without_a_method_is_refused_if_no_plugin_accepts_it(
    harness: Harness, recorder: HookRecorder
) -> None:
    harness.connect("c", expect=ReasonCode.NOT_AUTHORIZED)
    assert not recorder.calls("on_auth")


@pytest.mark.parametrize(
    "packet",
    [
        auth(method="other"),
        auth(method=None),
        auth(code=AGAIN),
        auth(code=0),
        Pingreq(),
        Publish("a", b"x"),
        Subscribe(1, (SubscribeRequest("a", 0),)),
        Connect("c", 5, True, 0),
    ],
    ids=repr,
)
def test_only_auth_and_disconnect_may_follow_a_challenge(
    harness: Harness, recorder: HookRecorder, packet: Packet
) -> None:
    # [MQTT-3.1.2-30, 4.12.0-5]
    recorder.answer("on_auth", Challenge(b"?"), Accept("x"))
    client = begin(harness)
    client.expect(Auth)
    client.send(packet)
    assert client.expect(Connack).code == ReasonCode.PROTOCOL_ERROR
    client.expect_closed()
    assert len(recorder.calls("on_auth")) == 1
    assert not harness.broker.sessions


def test_a_client_may_give_up(harness: Harness, recorder: HookRecorder) -> None:
    recorder.answer("on_auth", Challenge(b"?"))
    client = begin(harness)
    client.expect(Auth)
    client.send(Disconnect())
    client.expect_closed()
    assert not harness.broker.sessions
    assert harness.metrics.protocol_errors == 0


def test_auth_without_a_method_in_connect(harness: Harness, recorder: HookRecorder) -> None:
    # [MQTT-4.12.0-7]
    recorder.answer("on_connect", Accept("x"))
    client = harness.connect("c")
    client.send(auth(code=AGAIN))
    client.expect_disconnect(ReasonCode.PROTOCOL_ERROR)


@pytest.mark.parametrize("version", [3, 4])
def test_auth_does_not_exist_in_3(harness: Harness, recorder: HookRecorder, version: int) -> None:
    recorder.answer("on_connect", Accept("x"))
    client = harness.connect("c", version)
    client.raw(b"\xf0\x00")
    client.expect_disconnect()


def test_packets_behind_connect_wait_for_authentication(
    harness: Harness, recorder: HookRecorder
) -> None:
    verdict = harness.clock.event()
    recorder.answer("on_auth", verdict)
    client = harness.open()
    client.send(
        Connect("c", 5, True, 0, properties=Properties(authentication_method="m")),
        Publish("a", b"x", 1, packet_id=1),
        Pingreq(),
    )
    client.expect_nothing()
    verdict.set(Accept("x"))
    assert client.expect(Connack).code == 0
    client.expect(Pingresp)
    assert harness.metrics.messages_received == 1


def test_packets_behind_connect_do_not_answer_a_challenge(
    harness: Harness, recorder: HookRecorder
) -> None:
    verdict = harness.clock.event()
    recorder.answer("on_auth", verdict)
    client = harness.open()
    client.send(
        Connect("c", 5, True, 0, properties=Properties(authentication_method="m")),
        Publish("a", b"x"),
    )
    verdict.set(Challenge(b"?"))
    client.expect(Auth)
    assert client.expect(Connack).code == ReasonCode.PROTOCOL_ERROR
    client.expect_closed()
    assert harness.metrics.messages_received == 0


# --- re-authentication --------------------------------------------------------------------------------------------------


def test_again_in_one_step(harness: Harness, recorder: HookRecorder) -> None:
    client = opened(harness, recorder)
    recorder.answer("on_auth", Accept("second", {"b": 2}))
    client.send(auth(b"again", AGAIN))
    answer = client.expect(Auth)
    assert answer.code == 0
    assert answer.properties == Properties(authentication_method="m")
    client.expect_nothing()
    found = harness.broker.sessions["c"].client
    assert (found.identity, found.claims) == ("second", {"b": 2})
    [call] = recorder.calls("on_auth")
    assert (call.auth.code, call.auth.properties.authentication_data) == (AGAIN, b"again")
    assert not recorder.calls("on_connect")


def test_again_and_again(harness: Harness, recorder: HookRecorder) -> None:
    client = opened(harness, recorder)
    for _ in range(3):
        recorder.answer("on_auth", Challenge(b"?"), Accept("x"))
        client.send(auth(code=AGAIN))
        assert client.expect(Auth).code == CONTINUE
        client.send(auth(b"!"))
        assert client.expect(Auth).code == 0
    client.expect_nothing()


def test_again_with_steps_that_take_their_time(harness: Harness, recorder: HookRecorder) -> None:
    client = opened(harness, recorder)
    first, second = harness.clock.event(), harness.clock.event()
    recorder.answer("on_auth", first, second)
    client.send(auth(code=AGAIN))
    first.set(Challenge(b"?"))
    assert client.expect(Auth).code == CONTINUE
    client.send(auth(b"!"))
    client.expect_nothing()
    second.set(Accept("x"))
    assert client.expect(Auth).code == 0


def test_other_traffic_goes_on(harness: Harness, recorder: HookRecorder) -> None:
    # Edge case 51
    client = opened(harness, recorder)
    client.subscribe("a")
    verdict = harness.clock.event()
    recorder.answer("on_auth", verdict)
    client.send(auth(code=AGAIN))
    client.publish("a", b"meanwhile", 1, expect=0)
    client.expect_message("a", b"meanwhile")
    client.ping()
    client.expect_nothing()
    verdict.set(Accept("x"))
    assert client.expect(Auth).code == 0


@pytest.mark.parametrize(
    ("verdict", "code"),
    [
        (None, ReasonCode.NOT_AUTHORIZED),
        (Deny(), ReasonCode.NOT_AUTHORIZED),
        (Deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD), ReasonCode.NOT_AUTHORIZED),
        (ValueError("broken"), ReasonCode.UNSPECIFIED_ERROR),
    ],
)
def test_refused_again(
    harness: Harness, recorder: HookRecorder, verdict: Any, code: ReasonCode
) -> None:
    # [MQTT-4.12.1-2]; a code that DISCONNECT cannot carry is replaced by the nearest legal code
    client = opened(harness, recorder)
    recorder.answer("on_auth", verdict)
    client.send(auth(code=AGAIN))
    client.expect_disconnect(code)
    harness.settle()
    assert len(recorder.calls("on_auth_failed")) == 1


@pytest.mark.parametrize(
    "packet",
    [auth(code=AGAIN, method="other"), auth(code=CONTINUE), auth(code=0)],
    ids=repr,
)
def test_wrong_again(harness: Harness, recorder: HookRecorder, packet: Auth) -> None:
    # [MQTT-4.12.1-1]
    client = opened(harness, recorder)
    client.send(packet)
    client.expect_disconnect(ReasonCode.PROTOCOL_ERROR)
    assert not recorder.calls("on_auth")


@pytest.mark.parametrize("code", [CONTINUE, AGAIN])
def test_one_at_a_time(harness: Harness, recorder: HookRecorder, code: int) -> None:
    client = opened(harness, recorder)
    recorder.answer("on_auth", harness.clock.event())
    client.send(auth(code=AGAIN))
    client.send(auth(code=code))
    client.expect_disconnect(ReasonCode.PROTOCOL_ERROR)
    assert len(recorder.calls("on_auth")) == 1
    harness.settle()
    assert not harness.clock.tasks


def test_again_before_the_first_is_over(harness: Harness, recorder: HookRecorder) -> None:
    client = opened(harness, recorder)
    recorder.answer("on_auth", Challenge(b"?"))
    client.send(auth(code=AGAIN))
    client.expect(Auth)
    client.send(auth(code=AGAIN))
    client.expect_disconnect(ReasonCode.PROTOCOL_ERROR)


def test_a_client_that_leaves_meanwhile(harness: Harness, recorder: HookRecorder) -> None:
    client = opened(harness, recorder)
    verdict = harness.clock.event()
    recorder.answer("on_auth", verdict)
    client.send(auth(code=AGAIN))
    client.drop()
    assert not harness.clock.tasks
    verdict.set(Deny())
    harness.settle()
    assert not recorder.calls("on_auth_failed")


def test_decisions_are_made_anew(harness: Harness, recorder: HookRecorder) -> None:
    client = opened(harness, recorder)
    for _ in range(3):
        client.publish("a", b"x")
    assert len(recorder.calls("authorize")) == 1
    client.send(auth(code=AGAIN))
    client.expect(Auth)
    recorder.answer("authorize", Deny())
    client.publish("a", b"x", 1, expect=ReasonCode.NOT_AUTHORIZED)
    client.publish("a", b"x")
    assert harness.metrics.dropped[("denied", "in")] == 2


def test_a_credential_is_renewed(harness: Harness, recorder: HookRecorder) -> None:
    now = harness.clock.time()
    client = opened(harness, recorder, Accept("x", expires_at=now + 30))
    harness.advance(20)
    recorder.answer("on_auth", Accept("x", expires_at=now + 60))
    client.send(auth(code=AGAIN))
    client.expect(Auth)
    harness.advance(39)
    client.expect_nothing()
    harness.advance(1.1)
    client.expect_disconnect(ReasonCode.MAXIMUM_CONNECT_TIME)


def test_a_credential_ends_with_the_code_of_whoever_gave_it(
    harness: Harness, recorder: HookRecorder
) -> None:
    now = harness.clock.time()
    code = ReasonCode.NOT_AUTHORIZED
    client = opened(harness, recorder, Accept("x", expires_at=now + 30, expiry_code=code))
    harness.advance(30.1)
    client.expect_disconnect(code)


def test_a_credential_does_not_wait_for_its_renewal(
    harness: Harness, recorder: HookRecorder
) -> None:
    now = harness.clock.time()
    client = opened(harness, recorder, Accept("x", expires_at=now + 1))
    recorder.answer("on_auth", harness.clock.event())
    client.send(auth(code=AGAIN))
    harness.advance(1.1)
    client.expect_disconnect(ReasonCode.MAXIMUM_CONNECT_TIME)


def test_passwords_are_forgotten(harness: Harness, recorder: HookRecorder) -> None:
    recorder.answer("on_auth", Accept("x"))
    client = begin(harness, expect=0, username="u", password=b"secret")
    kept = client.connection.connect
    assert isinstance(kept, Connect)
    assert kept.password is None
    assert kept.properties == Properties(authentication_method="m")


def test_the_last_word_of_an_exchange_goes_into_connack(
    harness: Harness, recorder: HookRecorder
) -> None:
    recorder.answer("on_auth", Challenge(b"prove it"), Accept("x", data=b"v=signature"))
    client = begin(harness)
    client.expect(Auth)
    client.send(auth(b"proof"))
    connack = client.expect(Connack)
    assert connack.properties.authentication_data == b"v=signature"


def test_the_last_word_of_a_re_authentication_goes_into_auth(
    harness: Harness, recorder: HookRecorder
) -> None:
    client = opened(harness, recorder)
    recorder.answer("on_auth", Accept("x", data=b"again"))
    client.send(auth(b"proof", AGAIN))
    ended = client.expect(Auth)
    assert ended.code == ReasonCode.SUCCESS
    assert ended.properties.authentication_data == b"again"


def test_re_authentication_authorizes_subscriptions_again(
    harness: Harness, recorder: HookRecorder
) -> None:
    recorder.answer("authorize", Allow())
    client = opened(harness, recorder)
    client.subscribe("a", 1)
    recorder.answer("authorize", Deny())
    recorder.answer("on_auth", Accept("somebody else"))
    client.send(auth(b"proof", AGAIN))
    client.expect(Auth)
    client.expect_disconnect(ReasonCode.NOT_AUTHORIZED)
    assert not harness.broker.sessions
