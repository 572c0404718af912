"""Simulate a fleet of refrigerated trucks that publish their state at QoS 1. One thread runs all of them.

The states have the usual faults: broken payloads, late messages, and messages that are sent again with the same
`message-id`. From time to time, a truck's cooling fails, and its temperature rises immediately.

    python fleet.py --port 1883 --devices 1000

The program prints its ledger as a line of JSON every second, and once more when it ends.
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
from collections import Counter
from itertools import count

from paho.mqtt.client import Client, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

FILES = 4
"""Number of file descriptors to reserve for each client, including a spare one."""
BROKEN = (b"", b"ERR 7", b"\xff\xfe\x00", b'{"celsius": "warm"}', b'{"battery": 0.5}')
LATE = 120.0
"""Age of a late message in seconds."""
COLD = 4.0
"""The temperature, in degrees, that a working cooling system maintains."""
FAILURE = 5
"""Number of states with a raised temperature after the cooling has failed."""
PATIENCE = 30.0
"""Seconds to wait for the last acknowledgements."""


class Ledger:
    """Counts what the fleet has sent and what the broker has acknowledged."""

    def __init__(self) -> None:
        self.online = 0
        self.sent: Counter[str] = Counter()
        self.failures: list[str] = []

    def line(self, acknowledged: int) -> str:
        """Return the ledger as a line of JSON."""
        told = {
            "online": self.online,
            "sent": sum(self.sent.values()),
            "acknowledged": acknowledged,
            **{name: self.sent[name] for name in ("good", "broken", "late", "repeated")},
            "failures": self.failures,
        }
        return json.dumps(told)


class Truck:
    """A truck whose temperature stays near COLD, unless its cooling fails."""

    def __init__(self, number: int, host: str, port: int, seed: int, ledger: Ledger) -> None:
        self.name = f"truck-{number:04}"
        self.rng = random.Random(f"{seed}/{number}")
        self.ledger = ledger
        self.celsius = self.rng.gauss(COLD, 0.5)
        self.speed = self.rng.uniform(0.0, 90.0)
        self.battery = self.rng.uniform(0.3, 1.0)
        self.failed = 0
        self.sent = self.acknowledged = 0
        self.client = Client(CallbackAPIVersion.VERSION2, self.name, protocol=MQTTv5)
        self.client.on_publish = self._published
        self.client.connect(host, port, keepalive=120)

    def _published(self, *_: object) -> None:
        self.acknowledged += 1

    def fail(self) -> None:
        """Make the truck's cooling fail for the next FAILURE states."""
        self.failed = FAILURE
        self.ledger.failures.append(self.name)

    def tell(self) -> None:
        """Publish the truck's state, sometimes with a fault."""
        rng = self.rng
        self.celsius += 0.2 * (COLD - self.celsius) + rng.gauss(0.0, 0.15)
        self.speed = min(120.0, max(0.0, self.speed + rng.gauss(0.0, 5.0)))
        self.battery = self.battery - 0.0001 if self.battery > 0.1 else 1.0
        fate = rng.random()
        celsius = self.celsius
        if self.failed:
            self.failed, fate = self.failed - 1, 0.5  # No fault hides the failure.
            celsius += 9.0 + rng.gauss(0.0, 1.0)
        if 0.01 <= fate < 0.02:
            self._publish(rng.choice(BROKEN), "broken")
            return
        late = fate < 0.01
        at = time.time() - (LATE if late else rng.uniform(0.0, 0.5))
        state = {
            "celsius": round(celsius, 2),
            "battery": round(self.battery, 4),
            "speed": round(self.speed, 1),
            "at": int(at * 1000),
        }
        payload, message_id = json.dumps(state).encode(), f"{self.sent}"
        self._publish(payload, "late" if late else "good", message_id)
        if fate > 0.98:
            self._publish(payload, "repeated", message_id)

    def _publish(self, payload: bytes, kind: str, message_id: str = "") -> None:
        properties = Properties(PacketTypes.PUBLISH)
        if message_id:
            properties.UserProperty = [("message-id", message_id)]
        self.client.publish(f"fleet/{self.name}/state", payload, qos=1, properties=properties)
        self.sent += 1
        self.ledger.sent[kind] += 1


def run(host: str, port: int, trucks: int, interval: float, failures: float, seed: int) -> None:
    """Run the fleet until SIGTERM or SIGINT. Exit with code 1 if the broker has gone away."""
    _more_files(trucks * FILES)
    stopped: list[bool] = []
    for which in (signal.SIGTERM, signal.SIGINT):
        signal.signal(which, lambda *_: stopped.append(True))
    ledger, rng = Ledger(), random.Random(seed)
    selector = selectors.DefaultSelector()
    fleet: list[Truck] = []
    order, now = count(), time.monotonic()
    turns: list[tuple[float, int, Truck]] = []
    told = now
    failure = now + 12 * interval  # The pipeline first has to see usual values.

    def tell_ledger() -> None:
        print(ledger.line(sum(truck.acknowledged for truck in fleet)), flush=True)

    while not stopped:
        if len(fleet) < trucks:
            fleet.append(Truck(len(fleet), host, port, seed, ledger))
            socket = fleet[-1].client.socket()
            assert socket is not None
            selector.register(socket, selectors.EVENT_READ, fleet[-1])
            ledger.online = len(fleet)
            heapq.heappush(turns, (now + rng.uniform(0.0, interval), next(order), fleet[-1]))
        while turns[0][0] <= now:
            due, _, truck = heapq.heappop(turns)
            truck.tell()
            heapq.heappush(turns, (max(now, due + interval), next(order), truck))
        wait = 0.0 if len(fleet) < trucks else max(0.0, min(0.5, turns[0][0] - now))
        _serve(selector, wait)
        now = time.monotonic()
        if now >= failure:
            failure = now + failures
            rng.choice(fleet).fail()
        if now - told >= 1.0:
            told = now
            tell_ledger()
            for truck in fleet:
                truck.client.loop_misc()
    until = time.monotonic() + PATIENCE
    while any(one.acknowledged < one.sent for one in fleet) and time.monotonic() < until:
        _serve(selector, 0.5)
    for truck in fleet:
        truck.client.disconnect()
    tell_ledger()


def _serve(selector: selectors.BaseSelector, timeout: float) -> None:
    for key, _ in selector.select(timeout):
        truck: Truck = key.data
        if truck.client.loop_read() is not MQTTErrorCode.MQTT_ERR_SUCCESS:
            sys.exit(f"{truck.name}: the broker closed the connection")
        while truck.client.want_write():
            truck.client.loop_write()


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
    parser.add_argument("--interval", type=float, default=2.0, help="seconds between states")
    parser.add_argument("--failures", type=float, default=12.0, help="seconds between failures")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    run(
        chosen.host, chosen.port, chosen.devices, chosen.interval, chosen.failures, chosen.seed
    )  # fmt: skip


if __name__ == "__main__":
    main()
