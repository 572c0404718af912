"""Test the command 'hookmq rr'."""

import threading
from typing import Any

import pytest
from hookmq.cli import main
from hookmq.cli.mqtt_client import MqttClient
from hookmq.cli.options import ConnectTarget

Captured = pytest.CaptureFixture[bytes]


@pytest.fixture
def tcp(broker: Any) -> list[str]:
    found: list[str] = broker.tcp
    return found


def target(options: list[str]) -> ConnectTarget:
    return ConnectTarget(options[1], int(options[3]), 5, 60, True)


def test_a_request_gets_its_response(tcp: list[str], capfdbinary: Captured) -> None:
    server = MqttClient(target(tcp))
    server.open()
    server.subscribe(["svc"], 1)
    assert (event := server.next(10)) is not None
    assert event.kind == "subscribed"

    def answer() -> None:
        while (event := server.next(10)) is not None:
            if event.message is not None:
                asked: Any = event.message.properties
                from paho.mqtt.packettypes import PacketTypes
                from paho.mqtt.properties import Properties

                reply = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
                reply.CorrelationData = b"of another"
                server.publish(asked.ResponseTopic, b"not yours", 1, properties=reply)
                reply.CorrelationData = asked.CorrelationData
                server.publish(
                    asked.ResponseTopic, event.message.payload.upper(), 1, properties=reply
                )
                return

    thread = threading.Thread(target=answer)
    thread.start()
    assert main(["rr", *tcp, "-t", "svc", "-m", "hello", "-q", "1", "-W", "10s"]) == 0
    thread.join(10)
    server.close()
    assert capfdbinary.readouterr().out == b"HELLO\n"
    assert main(["rr", *tcp, "-t", "nobody", "-e", "reply", "-n", "-W", "0.2"]) == 27
