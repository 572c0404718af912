"""A simulated plant: machines that publish their temperature at QoS 1."""

import json
import random
import threading
import time
from typing import Any, Final

from paho.mqtt.client import Client, MQTTv5
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode

TICK: Final = 0.05
PATIENCE: Final = 30.0
KINDS: Final = ("press", "mill", "oven", "pump")


class Plant:
    """Publishes `rate` messages per second until `stop` is called. `acknowledged` counts the messages that the broker
    has stored.
    """

    def __init__(self, port: int, machines: int, rate: float) -> None:
        self.sent = self.acknowledged = 0
        self.machines = [f"{KINDS[number % 4]}-{number // 4 + 1:02}" for number in range(machines)]
        self.failure = ""
        self._rate = rate
        self._celsius = [random.uniform(20, 60) for _ in self.machines]
        self._ended = threading.Event()
        self._client = Client(CallbackAPIVersion.VERSION2, "plant", protocol=MQTTv5)
        self._client.max_inflight_messages_set(2000)
        self._client.on_publish = self._on_publish
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _on_publish(self, _client: Any, _data: Any, _id: int, code: Any, _properties: Any) -> None:
        if code.is_failure:
            self.failure = f"the broker refused a message: {code}"
        else:
            self.acknowledged += 1

    def _run(self) -> None:
        began = time.monotonic()
        while not self._ended.wait(TICK):
            while self.sent < (time.monotonic() - began) * self._rate:
                self._send()

    def _send(self) -> None:
        which = self.sent % len(self.machines)
        self._celsius[which] += random.uniform(-0.5, 0.5)
        topic = f"plant/{self.machines[which]}/celsius"
        payload = json.dumps({"celsius": round(self._celsius[which], 2)})
        self.sent += 1
        if self._client.publish(topic, payload, qos=1).rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
            self.failure = "the connection to the broker was lost"

    def stop(self) -> None:
        """Stop publishing, and wait for the last acknowledgements."""
        self._ended.set()
        self._thread.join()
        until = time.monotonic() + PATIENCE
        while self.acknowledged < self.sent and not self.failure and time.monotonic() < until:
            time.sleep(TICK)
        self._client.disconnect()
        self._client.loop_stop()
