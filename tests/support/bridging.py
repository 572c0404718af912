"""Configurations for bridged brokers, and a client that collects messages."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties


def write(folder: Path, port: int, **sinks: Any) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "hookmq.yaml"
    text = {
        "version": 1,
        "listeners": [{"name": "tcp", "bind": f"127.0.0.1:{port}"}],
        "auth": {"default": "allow"},
        "authz": {"default": "allow"},
        "plugins": [
            {"use": "storage", "config": {"path": str(folder / "data")}},
            {"use": "sinks", "config": {"path": str(folder / "sinks"), **sinks}},
        ],
    }
    path.write_text(json.dumps(text))
    return str(path)


def source(port: int, broker: str = "here", rules: Any = None, **origin: Any) -> dict[str, Any]:
    return {
        "name": "inward",
        "driver": "mqtt",
        "retry_first": "50ms",
        "retry_longest": "500ms",
        "origin": {
            "addresses": [f"127.0.0.1:{port}"],
            "broker": broker,
            "rules": rules or [{"pattern": "t/#", "qos": 2}],
            **origin,
        },
    }


def sink(port: int, broker: str = "here", topics: Any = ("t/#",), **target: Any) -> dict[str, Any]:
    return {
        "name": "outward",
        "driver": "mqtt",
        "topics": list(topics),
        "batch": {"age": "5ms"},
        "retry": {"first": "50ms", "longest": "500ms"},
        "target": {"addresses": [f"127.0.0.1:{port}"], "broker": broker, "qos": 2, **target},
    }


def new_properties(packet: int) -> Any:
    """Return empty properties for a packet. The return type is Any because paho creates the attributes dynamically."""
    return Properties(packet)  # type: ignore[no-untyped-call]


def properties_of(message: paho.MQTTMessage) -> Any:
    """Return the properties of a message."""
    assert message.properties is not None
    return message.properties


class Client:
    """A paho client with a durable session that collects the messages it receives."""

    def __init__(self, port: int, name: str, filter: str = "", qos: int = 2) -> None:
        self.messages: list[paho.MQTTMessage] = []
        self.acknowledged: set[int] = set()
        """The packet ids of acknowledged messages."""
        self._ready = threading.Event()
        self.client = client = paho.Client(
            CallbackAPIVersion.VERSION2, name, protocol=MQTTProtocolVersion.MQTTv5
        )
        client.max_queued_messages_set(0)
        client.on_connect = lambda c, *_: c.subscribe(filter, qos) if filter else self._ready.set()
        client.on_subscribe = lambda *_: self._ready.set()
        client.on_message = lambda _c, _u, message: self.messages.append(message)
        client.on_publish = lambda _c, _u, mid, *_: self.acknowledged.add(mid)
        client.reconnect_delay_set(1, 1)
        properties = new_properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 600
        client.connect("127.0.0.1", port, clean_start=False, properties=properties)
        client.loop_start()
        assert self._ready.wait(30)

    def publish(
        self, topic: str, payload: str, qos: int = 1, retain: bool = False, properties: Any = None
    ) -> None:
        """Publish and wait for the acknowledgement."""
        self.client.publish(topic, payload, qos, retain, properties).wait_for_publish(30)

    def publish_surely(self, topic: str, payload: str, qos: int) -> None:
        """Publish and wait for the acknowledgement, no matter how often the connection is lost."""
        mid = self.client.publish(topic, payload, qos).mid
        until(lambda: mid in self.acknowledged, 60)
        self.acknowledged.discard(mid)

    @property
    def payloads(self) -> list[str]:
        return [one.payload.decode() for one in self.messages]

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def until(true: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not happen in time")


def both_ways(folder: Path, port: int, remote: int, name: str, far: str, **more: Any) -> str:
    """Return the configuration of a broker that is bridged to the broker `far` in both directions."""
    return write(
        folder, port,
        sinks=[sink(remote, name, remote=far, **more)],
        sources=[source(remote, name, remote=far, **more)],
    )  # fmt: skip
