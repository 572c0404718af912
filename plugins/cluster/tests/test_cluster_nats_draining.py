"""Drain a node of a cluster of real brokers on a real NATS server, while clients of paho publish and subscribe."""

import json
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Event, Lock
from typing import Any

import pytest
from managed_node import ManagedNode, until
from nats_server import NatsServer
from paho.mqtt.client import Client, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

pytestmark = pytest.mark.slow

MOST = 100
"""The largest number of ticks between two acknowledgements. A tick takes 10 ms or more."""


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[ManagedNode, ManagedNode]]:
    """Return two running nodes."""
    nats = NatsServer()
    made: list[ManagedNode] = []
    try:
        made.extend(ManagedNode(tmp_path, name, nats.url) for name in ("a", "b"))
        for node in made:
            until(partial(node.sees, 2))
        yield made[0], made[1]
    finally:
        for node in made:
            node.end(signal.SIGKILL)
        nats.close()


class PahoClient:
    """A client with a durable session. If the broker disconnects it, it connects to the server that the broker names, or
    to `other`."""

    def __init__(self, name: str, port: int, other: int) -> None:
        self.codes: list[int] = []
        """The reasons for which the broker has disconnected it."""
        self.referred: list[str] = []
        self.received: list[str] = []
        self.subscribed = Event()
        self._other = other
        self.client = Client(CallbackAPIVersion.VERSION2, name, protocol=MQTTv5)
        self.client.reconnect_delay_set(1, 1)
        self.client.on_disconnect = self._disconnected
        self.client.on_message = lambda _client, _data, message: self.received.append(
            message.payload.decode()
        )
        self.client.on_subscribe = lambda *_: self.subscribed.set()
        self._place(port)
        self.client.loop_start()

    def _place(self, port: int) -> None:
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = 3600
        self.client.connect_async("127.0.0.1", port, clean_start=False, properties=properties)

    def _disconnected(
        self, _client: Client, _data: Any, flags: Any, code: Any, properties: Properties | None
    ) -> None:
        if not flags.is_disconnect_packet_from_server:
            return
        reference = getattr(properties, "ServerReference", "")
        self.codes.append(code.value)
        self.referred.append(reference)
        self._place(int(reference.rpartition(":")[2] or self._other))
        self._other = 0

    def close(self) -> None:
        """Disconnect."""
        self.client.disconnect()
        self.client.loop_stop()


class Publisher(PahoClient):
    """Publishes numbered messages, each one when the one before is acknowledged."""

    def __init__(self, name: str, port: int, other: int, ticks: "Ticks") -> None:
        super().__init__(name, port, other)
        self.acked: list[str] = []
        self.longest = 0
        """The largest number of ticks between two acknowledgements."""
        self._ticks = ticks
        self._last = 0
        self._lock = Lock()
        self._ended = False
        self._waiting = f"{name} 0"
        self._name = name
        self.client.on_publish = self._published
        self.client.publish("t", self._waiting, 1)

    def _published(self, *_: Any) -> None:
        with self._lock:
            now = self._ticks.count
            if self.acked:
                self.longest = max(self.longest, now - self._last)
            self._last = now
            self.acked.append(self._waiting)
            if self._ended:
                return
            self._waiting = f"{self._name} {len(self.acked)}"
            self.client.publish("t", self._waiting, 1)

    def end(self) -> None:
        """Publish no more."""
        with self._lock:
            self._ended = True


class Ticks:
    """Counts the acknowledgements of a client that has nothing to do with the drain: a clock that runs slower if the
    machine does. It waits 10 ms after each one."""

    def __init__(self, port: int) -> None:
        self.count = 0
        self._ended = Event()
        self.client = Client(CallbackAPIVersion.VERSION2, "ticks", protocol=MQTTv5)
        self.client.on_publish = self._tick
        self.client.connect_async("127.0.0.1", port)
        self.client.loop_start()
        self.client.publish("tick", b"", 1)

    def _tick(self, *_: Any) -> None:
        self.count += 1
        if not self._ended.wait(0.01):
            self.client.publish("tick", b"", 1)

    def close(self) -> None:
        """Stop."""
        self._ended.set()
        self.client.disconnect()
        self.client.loop_stop()


def test_a_drain_under_load_loses_nothing(nodes: tuple[ManagedNode, ManagedNode]) -> None:
    a, b = nodes
    ticks = Ticks(b.port)
    subscriber = PahoClient("s", a.port, b.port)
    until(subscriber.client.is_connected)
    subscriber.client.subscribe("t", 1)
    assert subscriber.subscribed.wait(60)
    moving = Publisher("moving", a.port, b.port, ticks)
    staying = Publisher("staying", b.port, a.port, ticks)
    until(lambda: len(moving.acked) > 100 and len(staying.acked) > 100)

    drained = a.run("drain", "a", "--over", "0s", "--json")
    assert drained.returncode == 0, drained.stderr
    assert json.loads(drained.stdout) == {"node": "a", "state": "drained"}
    assert a.readiness() == (503, "drained")
    assert b.readiness() == (200, "ready")
    before = len(moving.acked), len(staying.acked)
    until(lambda: len(moving.acked) > before[0] + 100 and len(staying.acked) > before[1] + 100)
    assert (subscriber.codes, moving.codes, staying.codes) == ([0x9C], [0x9C], [])
    assert subscriber.referred == moving.referred == [f"127.0.0.1:{b.port}"]
    refused = a.run("drain", "b")
    assert refused.returncode == 1
    assert "ask node 'b' itself" in refused.stderr

    put_back = a.run("undrain", "a")
    assert put_back.returncode == 0, put_back.stderr
    assert a.readiness() == (200, "ready")
    until(lambda: len(subscriber.codes) == len(moving.codes) == 2)
    for publisher in (moving, staying):
        publisher.end()
    until(lambda: set(moving.acked) | set(staying.acked) <= set(subscriber.received))
    for client in (subscriber, moving, staying, ticks):
        client.close()
    print(f"longest pauses: {moving.longest} and {staying.longest} ticks of {ticks.count}")
    assert staying.longest < MOST
    assert a.end(signal.SIGTERM) == 0
