"""Test chapters 3.15 and 4.12: AUTH packets, challenges before CONNACK and reauthentication."""

from typing import Any

import mqttbytes as m
import pytest
from byteclient import ByteClient
from bytememory import LEVELS, in_memory, join
from hookmq.plugin import Accept, Challenge, Deny, Plugin, ReasonCode, hookimpl
from hookmq_testing import Harness
from statements import edge, statement

METHOD = m.auth_method("QUIZ")
QUESTION = m.auth(0x18, METHOD + m.auth_data(b"question"))


class Quiz(Plugin):
    """A plugin that implements the authentication method QUIZ.

    The data ``ok`` is accepted at once; any other data is answered with a question. The answer ``42`` is accepted, and
    ``again`` repeats the question.
    """

    @hookimpl
    def on_auth(self, client: Any, auth: Any) -> Any:
        given = auth.properties
        if given.authentication_method != "QUIZ":
            return None
        if given.authentication_data in (b"ok", b"42"):
            return Accept(identity="a winner")
        if given.authentication_data == b"wrong":
            return Deny(ReasonCode.NOT_AUTHORIZED)
        return Challenge(b"question")


@pytest.fixture
def quiz(broker_harness: Any) -> Harness:
    harness: Harness = broker_harness([Quiz])
    return harness


def ask(quiz: Harness, client_id: str = "c", **options: Any) -> ByteClient:
    """Return a client that received a question."""
    client = in_memory(quiz).connect(client_id, properties=METHOD, **options)
    client.expect(QUESTION)
    return client


def answer(data: bytes) -> bytes:
    return m.auth(0x18, METHOD + m.auth_data(data))


@statement("MQTT-4.12.0-1", "MQTT-3.2.2-7")
@edge(50)
def test_an_unknown_method(quiz: Harness) -> None:
    in_memory(quiz).connect(properties=m.auth_method("SCRAM")).not_accepted(0x8C)
    assert not quiz.broker.sessions


@statement("MQTT-4.12.0-1")
@edge(50)
def test_no_method_is_known_without_plugins(harness: Harness) -> None:
    in_memory(harness).connect(properties=m.auth_method("SCRAM")).not_accepted(0x8C)


@statement(
    "MQTT-4.12.0-2",
    "MQTT-4.12.0-5",
    "MQTT-3.2.0-1",
    "MQTT-3.2.0-2",
    "MQTT-3.15.2-1",
    "MQTT-3.15.1-1",
)
@edge(50)
def test_challenge_and_answer(quiz: Harness) -> None:
    client = ask(quiz)
    client.send(answer(b"again"))
    client.expect(QUESTION)
    client.send(answer(b"42"))
    assert METHOD in client.accepted()
    client.expect()
    client.send(m.PINGREQ)
    client.expect(m.PINGRESP)


@statement("MQTT-4.12.0-5")
@edge(50)
def test_connack_repeats_the_method(quiz: Harness) -> None:
    client = in_memory(quiz).connect(properties=METHOD + m.auth_data(b"ok"))
    assert [one for one in client.accepted() if one[0] == 0x15] == [METHOD]


@statement("MQTT-4.12.0-4", "MQTT-3.2.2-7", "MQTT-4.13.2-1")
@edge(50)
def test_a_wrong_answer_is_refused(quiz: Harness) -> None:
    client = ask(quiz)
    client.send(answer(b"wrong"), m.connect("d"))
    client.not_accepted(0x87)
    assert not quiz.broker.sessions


@statement("MQTT-4.12.0-3", "MQTT-3.15.2-1")
@pytest.mark.parametrize("code", [0x00, 0x19, 0x01, 0x80, 0xFF])
def test_an_answer_carries_0x18(quiz: Harness, code: int) -> None:
    client = ask(quiz)
    client.send(m.auth(code, METHOD + m.auth_data(b"42"))).not_accepted(0x82)


@statement("MQTT-4.12.0-5", "MQTT-4.12.1-1")
def test_an_answer_by_another_method(quiz: Harness) -> None:
    client = ask(quiz)
    client.send(m.auth(0x18, m.auth_method("quiz") + m.auth_data(b"42"))).not_accepted(0x82, 0x8C)


OTHERS = [
    m.publish("t", b"x"), m.subscribe(1, ("t", 0)), m.unsubscribe(1, "t"), m.PINGREQ, m.puback(1), m.pubrec(1),
    m.pubrel(1), m.pubcomp(1), m.connect("c"),
]  # fmt: skip


@statement("MQTT-3.1.2-30", "MQTT-3.14.0-1")
@edge(50)
@pytest.mark.parametrize("packet", OTHERS)
def test_only_auth_and_disconnect_before_connack(quiz: Harness, packet: bytes) -> None:
    watcher = join(quiz, "watcher")
    watcher.subscribe(("#", 0))
    client = ask(quiz)
    client.send(packet, answer(b"42"))
    client.not_accepted(0x82)
    watcher.expect()


@statement("MQTT-3.1.2-30")
def test_giving_up_before_connack(quiz: Harness) -> None:
    watcher = join(quiz, "watcher")
    watcher.subscribe(("w", 0))
    ask(quiz, will=("w", b"gone")).goodbye()
    ask(quiz, will=("w", b"gone")).close()
    watcher.expect()  # never accepted: no session, no will
    assert list(quiz.broker.sessions) == ["watcher"]


@statement("MQTT-4.12.0-6")
def test_without_a_method_no_auth_is_sent(quiz: Harness) -> None:
    client = in_memory(quiz).connect(username="me", password=b"secret")
    assert not [one for one in client.accepted() if one[0] in (0x15, 0x16)]
    client.expect()


@statement("MQTT-4.12.0-7")
@edge(50)
@pytest.mark.parametrize("code", [0x18, 0x19])
def test_auth_without_a_method_in_connect(quiz: Harness, code: int) -> None:
    join(quiz).send(m.auth(code, METHOD)).refused(0x82)


@edge(50)
def test_authentication_data_without_a_method(quiz: Harness) -> None:
    in_memory(quiz).connect(properties=m.auth_data(b"x")).not_accepted(0x82)


@edge(44, 50)
@pytest.mark.parametrize(
    "packet", [b"\xf0\x00", b"\xf0\x01\x19", b"\xf0\x02\x19\x00", m.auth(0x19, m.auth_data(b"ok"))]
)
def test_auth_must_name_its_method(quiz: Harness, packet: bytes) -> None:
    client = in_memory(quiz).connect(properties=METHOD + m.auth_data(b"ok"))
    client.accepted()
    client.send(packet).refused(0x82)


def winner(quiz: Harness) -> ByteClient:
    client = in_memory(quiz).connect(properties=METHOD + m.auth_data(b"ok"))
    client.accepted()
    return client


@statement("MQTT-4.12.1-1", "MQTT-3.2.0-2", "MQTT-4.12.0-2", "MQTT-3.15.2-1")
@edge(51)
def test_authenticating_again(quiz: Harness) -> None:
    client = winner(quiz)
    client.subscribe(("t", 0))
    client.send(m.auth(0x19, METHOD + m.auth_data(b"ask")))
    client.expect(QUESTION)
    client.publish("t", b"meanwhile")  # other packets are processed meanwhile
    client.expect(m.publish("t", b"meanwhile"))
    client.send(answer(b"42"))
    client.expect(m.auth(0x00, METHOD))  # not a second CONNACK
    client.send(m.auth(0x19, METHOD + m.auth_data(b"ok")))
    client.expect(m.auth(0x00, METHOD))


@statement("MQTT-4.12.1-1")
@edge(51)
def test_authenticating_again_by_another_method(quiz: Harness) -> None:
    winner(quiz).send(m.auth(0x19, m.auth_method("SCRAM"))).refused(0x82, 0x8C)


@statement("MQTT-4.12.1-2", "MQTT-4.13.2-1", "MQTT-3.14.4-2")
@edge(51)
def test_failing_to_authenticate_again(quiz: Harness) -> None:
    winner(quiz).send(m.auth(0x19, METHOD + m.auth_data(b"wrong"))).refused(0x87)
    client = winner(quiz)
    client.send(m.auth(0x19, METHOD))
    client.expect(QUESTION)
    client.send(answer(b"wrong"), m.PINGREQ).refused(0x87)


@statement("MQTT-3.15.2-1", "MQTT-4.12.0-3")
@pytest.mark.parametrize("code", [0x00, 0x18, 0x01, 0x80])
def test_reauthentication_begins_with_0x19(quiz: Harness, code: int) -> None:
    winner(quiz).send(m.auth(code, METHOD + m.auth_data(b"42"))).refused(0x82)


@statement("MQTT-3.15.2-2", "MQTT-3.15.2-3", "MQTT-3.1.2-24")
def test_auth_packets_fit(quiz: Harness) -> None:
    for size in (len(QUESTION), len(QUESTION) - 1):
        client = in_memory(quiz).connect(properties=METHOD + m.packet_size(size))
        if size == len(QUESTION):
            client.expect(QUESTION)
        else:
            client.not_accepted(0x95)


@statement("MQTT-3.1.2-29")
@edge(48)
def test_auth_without_problem_information(quiz: Harness) -> None:
    client = in_memory(quiz).connect(properties=METHOD + m.problem_information(0))
    client.expect(QUESTION)  # AUTH never has a reason string


@edge(51)
@LEVELS
def test_auth_is_of_5_alone(quiz: Harness, level: int) -> None:
    client = join(quiz, "c", level)
    client.send(m.auth(0x19, METHOD)).refused(0x82)
