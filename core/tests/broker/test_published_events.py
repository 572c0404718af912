"""The messages of events that are reported at the end of their turn."""

from hookmq.broker.published_events import arguments, client_message
from hookmq.model.client import ClientInfo, Peer, Scope
from hookmq.mqtt.properties import EMPTY, Properties
from hookmq.routing.route import Route
from hookmq_testing.runtime import EPOCH, VirtualRuntime

CLIENT = ClientInfo("c1", 5, None, Peer("127.0.0.1", 1), Scope("tcp"))


def test_a_message_is_that_of_the_client() -> None:
    runtime = VirtualRuntime()
    message = client_message(runtime, CLIENT, "t", b"x", 1, EMPTY)
    assert (message.topic, message.payload, message.qos, message.retain) == ("t", b"x", 1, False)
    assert (message.sender, message.origin) == ("c1", "client")
    assert (message.received_at, message.expires_at) == (EPOCH, None)
    expiring = client_message(runtime, CLIENT, "t", b"", 0, Properties(message_expiry_interval=7))
    assert expiring.expires_at == EPOCH + 7


def test_a_message_that_exists_is_not_made_again() -> None:
    runtime = VirtualRuntime()
    route = Route("t", (), (), (), 10)
    message = client_message(runtime, CLIENT, "t", b"1", 0, EMPTY)
    first, second = arguments(
        runtime,
        [(CLIENT, route, b"1", 0, EMPTY, message), (CLIENT, route, b"2", 1, EMPTY, None)],
    )
    assert first == (CLIENT, message, 0)
    assert second[0] is CLIENT
    assert (second[1].topic, second[1].payload, second[1].qos, second[2]) == ("t", b"2", 1, 0)
