"""Simulate a fleet. Each device is an MQTT 5 client that publishes at QoS 1. All devices share one process and thread.

Devices publish their state every few seconds. Some of it is faulty, as in the field: broken payloads, late messages,
and messages that are sent again with the same `message-id`.

    python fleet.py --port 1883 --devices 1000
"""

import argparse
import heapq
import json
import random
import resource
import selectors
import signal
import sys
import time
from itertools import count

from paho.mqtt.client import Client, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

FILES = 4
"""Number of descriptors for each client, including a spare one."""
BROKEN = (b"", b"ERR 7", b"\xff\xfe\x00", b'{"celsius": "warm"}', b'{"battery": 0.5}')


class Device:
    """A vehicle whose temperature and speed follow a random walk."""

    def __init__(self, number: int, host: str, port: int, rng: random.Random) -> None:
        self.name = f"truck-{number:04}"
        self.rng = rng
        self.celsius = rng.gauss(4.0, 2.0)
        self.speed = rng.uniform(0.0, 90.0)
        self.battery = rng.uniform(0.3, 1.0)
        self.sent = self.acknowledged = 0
        self.client = Client(CallbackAPIVersion.VERSION2, self.name, protocol=MQTTv5)
        self.client.will_set(f"fleet/{self.name}/status", "offline", qos=1, retain=True)
        self.client.on_publish = self._published
        self.client.connect(host, port, keepalive=120)

    def _published(self, *_: object) -> None:
        self.acknowledged += 1

    def online(self) -> None:
        """Publish that the device is online. The device's will publishes that it is offline."""
        self._publish("status", b"online", retain=True)

    def tell(self) -> None:
        """Publish the state, sometimes with a fault."""
        rng = self.rng
        self.celsius += rng.gauss(0.0, 0.2)
        self.speed = min(120.0, max(0.0, self.speed + rng.gauss(0.0, 5.0)))
        self.battery = self.battery - 0.0001 if self.battery > 0.1 else 1.0
        fate = rng.random()
        at = time.time() - (30.0 if fate < 0.01 else rng.uniform(0.0, 0.5))
        state = {
            "celsius": round(self.celsius, 2),
            "battery": round(self.battery, 4),
            "speed": round(self.speed, 1),
            "at": int(at * 1000),
        }
        message_id = f"{self.sent}"
        if 0.01 <= fate < 0.02:
            self._publish("state", rng.choice(BROKEN))
            return
        payload = json.dumps(state).encode()
        for _ in range(2 if fate > 0.98 else 1):
            self._publish("state", payload, message_id)

    def _publish(
        self, what: str, payload: bytes, message_id: str = "", retain: bool = False
    ) -> None:
        properties = Properties(PacketTypes.PUBLISH)
        if message_id:
            properties.UserProperty = [("message-id", message_id)]
        topic = f"fleet/{self.name}/{what}"
        self.client.publish(topic, payload, qos=1, retain=retain, properties=properties)
        self.sent += 1


def run(host: str, port: int, devices: int, interval: float, seed: int) -> None:
    """Run the fleet until SIGTERM or SIGINT. Exit with code 1 if the broker is gone."""
    _more_files(devices * FILES)
    stopped = []
    for which in (signal.SIGTERM, signal.SIGINT):
        signal.signal(which, lambda *_: stopped.append(True))
    selector = selectors.DefaultSelector()
    fleet: list[Device] = []
    turns: list[tuple[float, int, Device]] = []
    order = count()
    for number in range(devices):
        device = Device(number, host, port, random.Random(f"{seed}/{number}"))
        socket = device.client.socket()
        assert socket is not None
        selector.register(socket, selectors.EVENT_READ, device)
        fleet.append(device)
        first = time.monotonic() + device.rng.uniform(0.0, interval)
        heapq.heappush(turns, (first, next(order), device))
        _serve(selector, 0.0)
        if stopped:
            return
    for device in fleet:
        device.online()
    print(f"{devices} devices are online", flush=True)
    looked = time.monotonic()
    while not stopped:
        now = time.monotonic()
        while turns and turns[0][0] <= now:
            due, _, device = heapq.heappop(turns)
            device.tell()
            heapq.heappush(turns, (max(now, due + interval), next(order), device))
        _serve(selector, max(0.0, min(0.5, turns[0][0] - now)))
        if now - looked > 5.0:
            looked = now
            for device in fleet:
                device.client.loop_misc()
    for device in fleet:
        device.client.disconnect()
    sent, acknowledged = sum(d.sent for d in fleet), sum(d.acknowledged for d in fleet)
    print(f"{sent} messages sent, {acknowledged} acknowledged", flush=True)


def _serve(selector: selectors.BaseSelector, timeout: float) -> None:
    for key, _ in selector.select(timeout):
        device: Device = key.data
        if device.client.loop_read() is not MQTTErrorCode.MQTT_ERR_SUCCESS:
            sys.exit(f"{device.name}: the broker closed the connection")
        while device.client.want_write():
            device.client.loop_write()


def _more_files(needed: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            sys.exit(
                f"{needed} open files are needed, {hard} allowed: fewer --devices, or ulimit -n"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=1883)
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--interval", type=float, default=5.0, help="seconds between states")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    run(chosen.host, chosen.port, chosen.devices, chosen.interval, chosen.seed)


if __name__ == "__main__":
    main()
