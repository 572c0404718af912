"""Publish a day of data from three kinds of devices, for docs/tutorials/lakehouse.md.

    python pipelines/examples/lakehouse.py --port 1883

The data is generated, but has the shapes and distributions of public data sets: hourly observations of weather stations
as nested JSON, a bottling line that speaks Sparkplug B, and households whose meters send a day of half-hourly readings
as CSV. The seed makes the data reproducible. Some messages are faulty, and some are sent twice.
"""

import argparse
import json
import math
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from mqtt_pipelines.transforms.tahu import TYPES, messages
from paho.mqtt.client import Client, MQTTMessageInfo, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

DAY = datetime(2026, 6, 1, tzinfo=UTC)
STATIONS = (
    ("bergen", 60.39, 5.32, 12, 13.0), ("zurich", 47.38, 8.54, 408, 18.0), ("sevilla", 37.39, -5.99, 7, 27.0),
    ("reykjavik", 64.15, -21.94, 52, 9.0),
)  # fmt: skip
"""Name, latitude, longitude, elevation in meters, and mean temperature in June in degrees."""
HOUSEHOLDS = 12
FILLS = 60
"""Number of data messages from the bottling line."""


class Message(NamedTuple):
    """A message, and whether to send it twice."""

    topic: str
    payload: bytes
    twice: bool = False


def weather(rng: random.Random) -> Iterator[Message]:
    """Yield hourly observations: temperature follows the sun, humidity falls with it, and rain is rare."""
    for name, latitude, longitude, elevation, mean in STATIONS:
        drift = 0.0
        for hour in range(24):
            drift = 0.8 * drift + rng.gauss(0.0, 0.5)
            warmth = 5.0 * math.sin((hour - 9) / 24 * 2 * math.pi) + drift
            readings = [
                {"quantity": "temperature", "unit": "C", "value": round(mean + warmth, 1)},
                {"quantity": "humidity", "unit": "%", "value": round(min(100, max(15, 68 - 4 * warmth)), 0)},
                {"quantity": "wind", "unit": "m/s", "value": round(rng.weibullvariate(4.5, 2.0), 1)},
            ]  # fmt: skip
            if rng.random() < 0.12:
                rain = round(rng.gammavariate(0.8, 1.5), 1)
                readings.append({"quantity": "rain", "unit": "mm", "value": rain})
            observation = {
                "observed": (DAY + timedelta(hours=hour)).isoformat(),
                "position": {"latitude": latitude, "longitude": longitude, "elevation": elevation},
                "readings": readings,
            }
            payload = json.dumps(observation)
            if rng.random() < 0.03:  # Some stations write M for a missing value.
                payload = payload.replace('"value": ', '"value": "M", "was": ', 1)
            yield Message(f"weather/{name}/hourly", payload.encode(), rng.random() < 0.05)


def meters(rng: random.Random) -> Iterator[Message]:
    """Yield one CSV message for each household: half-hourly readings with a peak in the morning and another in the
    evening.
    """
    for number in range(HOUSEHOLDS):
        size = rng.lognormvariate(0.0, 0.4)
        lines = ["start,kwh"]
        for half in range(48):
            hour = half / 2
            peaks = math.exp(-(((hour - 7.5) / 1.5) ** 2)) + 1.6 * math.exp(
                -(((hour - 19) / 2.2) ** 2)
            )
            kwh = size * (0.08 + 0.3 * peaks) * rng.lognormvariate(0.0, 0.35)
            lines.append(f"{(DAY + timedelta(minutes=30 * half)).isoformat()},{kwh:.3f}")
        if number == 3:
            lines[20] = lines[20].partition(",")[0]  # a line that the modem cut off
        yield Message(f"meters/home-{number:02}/day", "\n".join(lines).encode(), number % 5 == 0)


def line(rng: random.Random) -> Iterator[Message]:
    """Yield a filling machine's birth message, followed by its data. Aliases stand for the names of the metrics."""
    kind = {name: number for number, name in enumerate(TYPES)}
    at = int(DAY.timestamp() * 1000)

    def made(what: str, *metrics: dict[str, object], after: int) -> Message:
        payload = messages()["Payload"](timestamp=at + after)
        for metric in metrics:
            payload.metrics.add(**metric)
        device = "" if what == "NBIRTH" else "/filler"
        return Message(f"spBv1.0/brewery/{what}/line1{device}", payload.SerializeToString())

    yield made("NBIRTH", {"name": "bdSeq", "datatype": kind["UInt64"], "long_value": 0}, after=0)
    yield made(
        "DBIRTH",
        {"name": "fill/ml", "alias": 1, "datatype": kind["Double"], "double_value": 500.0},
        {"name": "bottles", "alias": 2, "datatype": kind["Int64"], "long_value": 0},
        {"name": "jammed", "alias": 3, "datatype": kind["Boolean"], "boolean_value": False},
        after=1,
    )
    bottles = 0
    for minute in range(1, FILLS + 1):
        bottles += round(rng.gauss(200, 6))
        jammed = rng.random() < 0.05
        changed: list[dict[str, object]] = [
            {"alias": 1, "double_value": round(rng.gauss(501.5, 1.2), 2)},
            {"alias": 2, "long_value": bottles},
        ]
        if jammed:
            changed.append({"alias": 3, "boolean_value": True})
        yield made("DDATA", *changed, after=60_000 * minute)
    yield made("DDATA", {"alias": 9, "double_value": 1.0}, after=60_000 * (FILLS + 1))  # never born


def publish(host: str, port: int, seed: int) -> int:
    """Publish everything at QoS 1. Once everything has been acknowledged, return the number of messages."""
    client = Client(CallbackAPIVersion.VERSION2, "lakehouse", protocol=MQTTv5)
    client.connect(host, port)
    client.loop_start()
    sent: list[MQTTMessageInfo] = []
    for source in (weather, meters, line):
        for number, message in enumerate(source(random.Random(f"{seed}/{source.__name__}"))):
            properties = Properties(PacketTypes.PUBLISH)
            properties.UserProperty = [("message-id", f"{source.__name__}-{number}")]
            sent += [
                client.publish(message.topic, message.payload, 1, properties=properties)
                for _ in range(1 + message.twice)
            ]
    for one in sent:
        one.wait_for_publish(60)
    client.disconnect()
    client.loop_stop()
    return len(sent)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=1883)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    print(f"{publish(chosen.host, chosen.port, chosen.seed)} messages are published")


if __name__ == "__main__":
    main()
