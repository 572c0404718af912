"""Test the properties of CONNACK, and which of them are omitted to fit the client's Maximum Packet Size."""

from collections.abc import Callable

import pytest
from hookmq.hooks.verdicts import Deny
from hookmq.mqtt.packets import (
    Puback,
    Pubrec,
)
from hookmq.mqtt.properties import Properties
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq_testing import Harness, HookRecorder, MemoryClient

Make = Callable[..., Harness]


def connack(client: MemoryClient) -> Properties:
    assert client.connack is not None
    return client.connack.properties


def test_connack_announces_the_default_limits(harness: Harness) -> None:
    told = connack(harness.connect("c"))
    assert told == Properties(
        receive_maximum=1024, maximum_packet_size=1048576, topic_alias_maximum=64
    )


def test_connack_tells_every_limit(broker_harness: Make) -> None:
    harness = broker_harness(
        config={
            "broker": {
                "max_qos": 1,
                "retain_available": False,
                "wildcard_available": False,
                "shared_available": False,
                "subscription_identifiers_available": False,
                "receive_maximum": 65535,
                "max_packet_size": 268435460,
                "topic_alias_maximum": 0,
                "server_keep_alive": 30,
                "response_information": "answers/",
            }
        }
    )
    # CONNACK leaves out values that are the protocol's defaults.
    assert connack(harness.connect("c", keep_alive=10)) == Properties(
        maximum_qos=1,
        retain_available=0,
        wildcard_subscription_available=0,
        shared_subscription_available=0,
        subscription_identifier_available=0,
        server_keep_alive=30,
    )


@pytest.mark.parametrize(("wants", "told"), [(1, "answers/"), (0, None), (None, None)])
def test_response_information_is_told_to_who_asks(
    broker_harness: Make, wants: int | None, told: str | None
) -> None:
    # Edge case 49 [MQTT-3.1.2-28]
    harness = broker_harness(config={"broker": {"response_information": "answers/"}})
    client = harness.connect("c", request_response_information=wants)
    assert connack(client).response_information == told


def test_no_response_information_where_there_is_none(harness: Harness) -> None:
    client = harness.connect("c", request_response_information=1)
    assert connack(client).response_information is None


@pytest.mark.parametrize(("wants", "told"), [(1, "why"), (None, "why"), (0, None)])
def test_problem_information(broker_harness: Make, wants: int | None, told: str | None) -> None:
    # Edge case 48 [MQTT-3.1.2-29]: reason strings stay in CONNACK, DISCONNECT and PUBLISH only
    recorder = HookRecorder("authorize", cached=False)
    recorder.answer("authorize", Deny(reason="why"))
    harness = broker_harness([recorder])
    client = harness.connect("c", request_problem_information=wants)
    client.publish("a", qos=1)
    assert client.expect(Puback).properties.reason_string == told
    client.publish("a", qos=2)
    assert client.expect(Pubrec).properties.reason_string == told
    assert client.subscribe("a").properties.reason_string == told
    recorder.answer("authorize", Deny(reason="why", disconnect=True))
    client.publish("a", qos=1)
    packet = client.expect_disconnect(ReasonCode.NOT_AUTHORIZED)
    assert packet is not None
    assert packet.properties.reason_string == "why"


@pytest.mark.parametrize("wants", [1, 0])
def test_a_refusal_may_always_say_why(broker_harness: Make, wants: int) -> None:
    recorder = HookRecorder("on_connect")
    recorder.answer("on_connect", Deny(reason="because"))
    harness = broker_harness([recorder])
    client = harness.connect("c", request_problem_information=wants, expect=0x87)
    assert connack(client).reason_string == "because"


def test_a_refusal_fits_the_clients_packet_size(broker_harness: Make) -> None:
    # [MQTT-3.2.2-19, 3.2.2-20]
    recorder = HookRecorder("on_connect")
    recorder.answer("on_connect", Deny(reason="because" * 10))
    harness = broker_harness([recorder])
    client = harness.connect("c", maximum_packet_size=40, expect=0x87)
    assert client.raw_received == b"\x20\x03\x00\x87\x00"
    client = harness.connect("c", maximum_packet_size=100, expect=0x87)
    assert connack(client).reason_string == "because" * 10


def test_connack_never_exceeds_the_clients_packet_size(harness: Harness) -> None:
    # [MQTT-3.1.2-24]: these properties cannot be left out, so the broker cannot serve such a client
    whole = len(harness.connect("c").raw_received)
    harness.connect("d", maximum_packet_size=whole)
    client = harness.connect("e", maximum_packet_size=whole - 1, expect=0x95)
    client.expect_closed()
    assert "e" not in harness.broker.sessions
    client = harness.connect("f", maximum_packet_size=4, expect=None)
    client.expect_closed()
    assert client.raw_received == b""


@pytest.fixture
def recorder() -> HookRecorder:
    return HookRecorder("on_connect", "on_auth_failed", "on_session", "on_disconnect")
