"""Receive the alerts with an ordinary MQTT subscriber."""

import json
import threading
import time
from datetime import datetime
from typing import Any, Final

from paho.mqtt.client import Client, MQTTMessage, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion

FILTER: Final = "alerts/#"
KEPT: Final = 60
"""Number of alerts to remember."""
INCIDENT: Final = 60.0
"""Seconds within which a truck's alerts count as one incident."""


class Alerts:
    """Subscribes to the pipeline's alerts. The MQTT client's own thread receives them."""

    def __init__(self, port: int) -> None:
        self.received = 0
        """Number of different alerts."""
        self.devices: set[str] = set()
        self._lock = threading.Lock()
        self._seen: set[str] = set()
        self._newest: list[dict[str, Any]] = []
        self._unshown: list[dict[str, Any]] = []
        self._told: dict[str, float] = {}
        self._client = Client(CallbackAPIVersion.VERSION2, "demo-alerts", protocol=MQTTv5)
        self._client.on_connect = self._on_connect
        self._client.on_message = self._on_message
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()

    def _on_connect(self, *_: object) -> None:
        self._client.subscribe(FILTER, qos=1)

    def _on_message(self, _client: Client, _data: object, message: MQTTMessage) -> None:
        """Store an alert. Spark publishes each alert at least once, so the same message id may arrive again."""
        told = json.loads(message.payload)
        given = dict(getattr(message.properties, "UserProperty", ()))
        alert = {
            "topic": message.topic,
            "device": told["device"],
            "value": told["value"],
            "expected": told["expected"],
            "score": told["score"],
            "at": datetime.fromisoformat(told["event_time"]).timestamp(),
            "received": time.time(),
        }
        key = given.get("message-id", message.topic + told["event_time"])
        with self._lock:
            if key in self._seen:
                return
            self._seen.add(key)
            self.received += 1
            self.devices.add(told["device"])
            self._newest = [*self._newest, alert][-KEPT:]
            self._unshown.append(alert)

    def newest(self) -> list[dict[str, Any]]:
        """Return the latest alerts, newest first."""
        with self._lock:
            return self._newest[::-1]

    def unshown(self) -> list[dict[str, Any]]:
        """Return the alerts that arrived since the last call, but only the first one for each truck and minute."""
        with self._lock:
            found, self._unshown = self._unshown, []
        shown = []
        for alert in found:
            if alert["at"] - self._told.get(alert["device"], 0.0) > INCIDENT:
                self._told[alert["device"]] = alert["at"]
                shown.append(alert)
        return shown

    def close(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()
