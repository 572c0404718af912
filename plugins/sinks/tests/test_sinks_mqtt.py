"""Test the `mqtt` driver against mosquitto and HookMQ."""

import asyncio
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from hookmq.config_api import bind_values
from hookmq.plugin import ConfigError
from hookmq_sinks.driver import Driver, DriverContext, Record
from hookmq_sinks.drivers.mqtt import MqttDriver, MqttSettings
from hookmq_sinks.testing import LOG_ID, DriverContract, make_batch, make_record
from mosquitto import Mosquitto
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from serving import serving

class Listener:
    """A durable subscriber at the remote broker that collects everything."""

    def __init__(self, port: int, filter: str = "#", client_id: str = "listener") -> None:
        self.messages: list[paho.MQTTMessage] = []
        self._ready = threading.Event()
        self.client = client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id, protocol=MQTTProtocolVersion.MQTTv5
        )
        client.on_connect = lambda c, *_: c.subscribe(filter, 2)
        client.on_subscribe = lambda *_: self._ready.set()
        client.on_message = lambda _c, _u, message: self.messages.append(message)
        client.reconnect_delay_set(1, 1)
        properties = paho.Properties(1)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = 600
        client.connect("127.0.0.1", port, clean_start=False, properties=properties)
        client.loop_start()
        assert self._ready.wait(30)

    async def wait(self, count: int) -> list[paho.MQTTMessage]:
        """Return the messages once there are `count`."""
        for _ in range(1000):
            if len(self.messages) >= count:
                break
            await asyncio.sleep(0.01)
        return self.messages

    async def settle(self, port: int) -> None:
        """Wait until a message that is sent now has arrived; nothing sent before is on its way then."""
        self.client.publish("settled", b"", 1)
        for _ in range(1000):
            if any(one.topic == "settled" for one in self.messages):
                break
            await asyncio.sleep(0.01)
        self.messages[:] = [one for one in self.messages if one.topic != "settled"]

    def close(self) -> None:
        """Disconnect."""
        self.client.disconnect()
        self.client.loop_stop()


class Contract(DriverContract):
    kind = MqttDriver
    protocol = "5"
    qos = 2
    folder: Path
    port: int

    def target_settings(self) -> Mapping[str, Any]:
        return {
            "addresses": [f"127.0.0.1:{self.port}"], "broker": "here", "protocol": self.protocol,
            "qos": self.qos, "connect_timeout": "5s", "state_topic": "",
        }  # fmt: skip

    def make(self, slot: str = "test") -> Driver:
        context = DriverContext("test", slot, LOG_ID, folder=self.folder)
        return self.kind(bind_values(self.kind.Settings, self.target_settings()), context)

    def record(self, offset: int) -> Record:
        record = make_record(offset)
        record.payload = record.id.encode()
        return record

    def poison(self, offset: int) -> Record:
        record = self.record(offset)
        record.topic = "a" * 70_000
        return record

    async def stored_ids(self) -> list[str]:
        await self.listener.settle(self.port)
        return [one.payload.decode() for one in self.listener.messages]

    listener: Listener


class TestMosquitto(Contract):
    @pytest.fixture(autouse=True)
    def _remote(self, tmp_path: Path) -> Iterator[None]:
        self.folder = tmp_path
        self.mosquitto = Mosquitto(tmp_path / "remote", "max_inflight_messages 100")
        self.port = self.mosquitto.port
        self.listener = Listener(self.port)
        yield
        self.listener.close()
        self.mosquitto.stop()

    async def stop_target(self) -> None:
        await asyncio.to_thread(self.mosquitto.stop)

    async def start_target(self) -> None:
        await asyncio.to_thread(self.mosquitto.start)
        for _ in range(1000):
            if self.listener.client.is_connected():
                break
            await asyncio.sleep(0.01)
