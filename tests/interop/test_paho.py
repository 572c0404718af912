"""Interoperability with paho-mqtt, the most widely used client, in all three protocol versions."""

import socket
import ssl
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from cluster_front import nodes_wanted
from paho.mqtt.enums import MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode
from recording import V5, V31, V311, Client, properties
from serving import Served

VERSIONS = [pytest.param(V31, id="3.1"), pytest.param(V311, id="3.1.1"), pytest.param(V5, id="5")]


def given(properties: Any) -> Any:
    """Return properties, asserting that they exist. Paho defines their names only at run time."""
    assert properties is not None
    return properties


def name() -> str:
    """Return a client id. MQTT 3.1 allows at most 23 characters."""
    return "paho-" + uuid4().hex[:16]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("subscribed", [0, 1, 2])
def test_qos_is_the_lower_of_both(
    broker: Served, topic: str, version: MQTTProtocolVersion, published: int, subscribed: int
) -> None:
    with Client(broker.ports["tcp"], name(), version) as one:
        assert one.subscribe(topic, subscribed) == subscribed
        assert one.publish(topic, b"\x00\xffbytes", published) == 0
        message = one.message()
        assert message.payload == b"\x00\xffbytes"
        assert message.qos == min(published, subscribed)
        assert not message.retain


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("transport", ["tcp", "tls", "ws", "wss"])
def test_a_large_message_over_every_transport(
    broker: Served, trust: ssl.SSLContext, topic: str, version: MQTTProtocolVersion, transport: str
) -> None:
    secure = transport in ("tls", "wss")
    payload = bytes(range(256)) * 3000
    with Client(
        broker.ports[transport], name(), version,
        tls=trust if secure else None, path="/mqtt" if transport.startswith("w") else None,
    ) as one:  # fmt: skip
        one.subscribe(topic, 2)
        assert one.publish(topic, payload, 2) == 0
        assert one.message().payload == payload


def test_a_broker_of_another_authority_is_not_trusted(broker: Served, folder: Path) -> None:
    stranger = ssl.create_default_context(cafile=str(folder / "other-ca.pem"))
    with (
        socket.create_connection(("127.0.0.1", broker.ports["tls"]), 60) as sock,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        stranger.wrap_socket(sock, server_hostname="localhost")


@pytest.mark.parametrize("version", VERSIONS)
def test_five_hundred_messages_keep_their_order(
    broker: Served, topic: str, version: MQTTProtocolVersion
) -> None:
    ports = broker.ports
    with Client(ports["tcp"], name(), version) as one, Client(ports["tcp"], name(), version) as two:
        two.subscribe(f"{topic}/#", 1)
        for number in range(500):
            one.post(f"{topic}/{number % 7}", b"%d" % number, 1)
        assert two.payloads(500) == [b"%d" % number for number in range(500)]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_retained_message_waits_for_its_subscribers_until_it_is_cleared(
    broker: Served, topic: str, version: MQTTProtocolVersion
) -> None:
    with ExitStack() as stack:
        clients = [
            stack.enter_context(Client(broker.ports["tcp"], name(), version)) for _ in range(3)
        ]
        publisher, early, late = clients
        publisher.publish(topic, b"kept", 1, retain=True)
        early.subscribe(topic, 1)
        kept = early.message()
        assert (kept.payload, kept.retain, kept.qos) == (b"kept", True, 1)
        publisher.publish(topic, b"", 1, retain=True)
        assert early.message().payload == b""
        late.subscribe(f"{topic}/#", 1)
        publisher.publish(f"{topic}/marker", b"", 1)
        assert late.until(f"{topic}/marker") == []


@pytest.mark.parametrize("version", VERSIONS)
def test_a_will_is_published_when_the_network_breaks(
    broker: Served, topic: str, version: MQTTProtocolVersion
) -> None:
    with Client(broker.ports["tcp"], name(), version) as watcher:
        watcher.subscribe(topic, 1)
        mortal = Client(broker.ports["tcp"], name(), version, will=(topic, b"gone", 1, False))
        assert mortal.connect() == (0, False)
        mortal.cut()
        message = watcher.message()
        assert (message.payload, message.qos) == (b"gone", 1)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_will_is_not_published_after_a_disconnect(
    broker: Served, topic: str, version: MQTTProtocolVersion
) -> None:
    with Client(broker.ports["tcp"], name(), version) as watcher:
        watcher.subscribe(f"{topic}/#", 1)
        with Client(broker.ports["tcp"], name(), version, will=(topic, b"gone", 1, False)):
            pass
        watcher.publish(f"{topic}/marker", b"", 1)
        assert watcher.until(f"{topic}/marker") == []


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [1, 2])
def test_a_session_keeps_what_was_sent_while_its_client_was_away(
    broker: Served, topic: str, version: MQTTProtocolVersion, qos: int
) -> None:
    me = name()
    with Client(broker.ports["tcp"], me, version, clean=False, expiry=60) as one:
        one.subscribe(topic, qos)
    with Client(broker.ports["tcp"], name(), version) as two:
        for number in range(20):
            assert two.publish(topic, b"%d" % number, qos) == 0
    back = Client(broker.ports["tcp"], me, version, clean=False, expiry=60)
    assert back.connect() == (0, version != V31)  # the CONNACK of 3.1 has no Session Present flag
    assert back.payloads(20) == [b"%d" % number for number in range(20)]
    back.disconnect()
    with Client(broker.ports["tcp"], me, version, clean=True) as ended:
        assert ended.messages.empty()
    again = Client(broker.ports["tcp"], me, version, clean=False)
    assert again.connect() == (0, False)
    again.disconnect()


@pytest.mark.parametrize("version", VERSIONS)
def test_the_second_client_of_one_id_takes_over(
    broker: Served, version: MQTTProtocolVersion
) -> None:
    me = name()
    first = Client(broker.ports["tcp"], me, version)
    first.connect()
    with Client(broker.ports["tcp"], me, version):
        code = first.ends.get(timeout=60)
        if version == V5:
            assert code == 0x8E
    first.paho.loop_stop()


@pytest.mark.parametrize("version", VERSIONS)
def test_wildcards(broker: Served, topic: str, version: MQTTProtocolVersion) -> None:
    with Client(broker.ports["tcp"], name(), version) as one:
        one.subscribe(f"{topic}/+/state", 1)
        one.subscribe(f"{topic}/all/#", 1)
        for end in ("a/state", "a/b/state", "all", "all/x/y", "other"):
            one.publish(f"{topic}/{end}", b"", 1)
        one.publish(f"{topic}/end/state", b"", 1)
        got = [message.topic.removeprefix(topic) for message in one.until(f"{topic}/end/state")]
        assert got == ["/a/state", "/all", "/all/x/y"]


def test_members_of_a_group_share_what_comes(broker: Served, topic: str) -> None:
    with ExitStack() as stack:
        ports = broker.ports
        members = [stack.enter_context(Client(ports["tcp"], name(), V5)) for _ in range(3)]
        for member in members:
            assert member.subscribe(f"$share/workers/{topic}", 1) == 1
            assert member.subscribe(f"{topic}/end", 1) == 1
        with Client(ports["tcp"], name(), V5) as publisher:
            for number in range(30):
                publisher.publish(topic, b"%d" % number, 1)
            publisher.publish(f"{topic}/end", b"", 1)
        shares = [[m.payload for m in member.until(f"{topic}/end")] for member in members]
        if (
            not nodes_wanted()
        ):  # in a cluster, messages stay on the publisher's node if it has members
            assert [len(share) for share in shares] == [10, 10, 10]
        assert sorted(int(p) for share in shares for p in share) == list(range(30))


def test_properties_travel(broker: Served, topic: str) -> None:
    with Client(broker.ports["tcp"], name(), V5) as one:
        one.subscribe(topic, 1)
        one.publish(
            topic, b"{}", 1,
            UserProperty=[("b", "2"), ("a", "1"), ("b", "3")], ContentType="application/json",
            ResponseTopic="answers/here", CorrelationData=b"\x01\x02", PayloadFormatIndicator=1,
            MessageExpiryInterval=600,
        )  # fmt: skip
        got = given(one.message().properties)
        assert got.UserProperty == [("b", "2"), ("a", "1"), ("b", "3")]
        assert got.ContentType == "application/json"
        assert got.ResponseTopic == "answers/here"
        assert got.CorrelationData == b"\x01\x02"
        assert got.PayloadFormatIndicator == 1
        assert 590 <= got.MessageExpiryInterval <= 600


def test_subscription_identifiers_come_back(broker: Served, topic: str) -> None:
    with Client(broker.ports["tcp"], name(), V5) as one:
        identified = properties(PacketTypes.SUBSCRIBE, SubscriptionIdentifier=77)
        one.paho.subscribe(topic, 1, properties=identified)
        assert one.subacks.get(timeout=60) == [1]
        one.publish(topic, b"", 1)
        got = given(one.message().properties)
        assert got.SubscriptionIdentifier == [77]


def test_no_local_and_retain_handling(broker: Served, topic: str) -> None:
    with Client(broker.ports["tcp"], name(), V5) as one:
        one.publish(topic, b"old", 1, retain=True)
        assert one.subscribe(f"{topic}/#", 1, noLocal=True, retainHandling=2) == 1
        assert one.subscribe("end/" + topic, 1) == 1
        one.publish(f"{topic}/mine", b"", 1)
        one.publish("end/" + topic, b"", 1)
        assert one.until("end/" + topic) == []


def test_reason_codes_of_version_5(broker: Served, topic: str) -> None:
    with Client(broker.ports["tcp"], name(), V5) as one:
        assert one.publish(topic, b"nobody", 1) == 0x10
        assert one.unsubscribe(topic) == [0x11]
        one.subscribe(topic)
        assert one.unsubscribe(topic) == [0x00]


def test_connack_announces_the_limits_of_the_broker(broker: Served) -> None:
    one = Client(broker.ports["tcp"], "", V5)
    assert one.connect() == (0, False)
    told = given(one.connack_properties)
    assert told.AssignedClientIdentifier
    assert told.ReceiveMaximum == 1024
    assert told.MaximumPacketSize == 1 << 20
    assert told.TopicAliasMaximum == 64
    one.disconnect()


def test_a_client_of_version_3_may_come_without_an_id(broker: Served) -> None:
    one = Client(broker.ports["tcp"], "", V311, clean=True)
    assert one.connect() == (0, False)
    one.disconnect()


def test_a_will_on_request(broker: Served, topic: str) -> None:
    with Client(broker.ports["tcp"], name(), V5) as watcher:
        watcher.subscribe(topic, 1)
        mortal = Client(broker.ports["tcp"], name(), V5, will=(topic, b"bye", 0, False))
        mortal.connect()
        mortal.paho.disconnect(ReasonCode(PacketTypes.DISCONNECT, identifier=0x04))
        assert watcher.message().payload == b"bye"
        mortal.paho.loop_stop()


def test_the_broker_names_a_topic_once(broker: Served, topic: str) -> None:
    """The broker sends a topic once, then only its alias. This corresponds to test_server_topic_alias in Paho's MQTT 5
    suite.
    """
    with Client(broker.ports["tcp"], name(), V5, aliases=1) as one:
        one.subscribe(topic, 2)
        for qos in range(3):
            one.post(topic, b"x", qos)
        found = [one.message() for _ in range(3)]
        assert sorted(message.qos for message in found) == [0, 1, 2]
        assert [message.topic for message in found] == [topic, "", ""]
        assert {given(message.properties).TopicAlias for message in found} == {1}
