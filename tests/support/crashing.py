"""``hookmq serve`` with a store on disk, for tests that kill it, and clients that check its guarantees."""

import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from ports import free_port
from serving import HOOKMQ, WAIT, Served

CONFIG = """\
version: 1
listeners: [{{name: tcp, type: tcp, bind: "127.0.0.1:{port}"}}]
auth: {{default: allow}}
authz: {{default: allow}}
session: {{queue_messages: 1000000, queue_bytes: 1GiB}}
plugins:
  - {{use: storage, config: {{path: "{path}", durability: {durability}}}}}
"""


class Crashing:
    """A broker with a store in ``folder/data``, on the same port after every start.

    `more` lists further plugins, each as a line of YAML.
    """

    def __init__(self, folder: Path, durability: str = "group", more: str = "") -> None:
        self.folder = folder
        self.durability = durability
        self.more = more
        self.port = free_port()
        self.served: Served | None = None
        self._reader: threading.Thread | None = None
        self.clients: list[Client] = []

    @property
    def process(self) -> "subprocess.Popen[str]":
        assert self.served is not None
        return self.served.process

    def start(self) -> None:
        """Start the broker and wait until it listens."""
        self.spawn()
        self.ready()

    def spawn(self) -> None:
        """Start the broker without waiting."""
        config = self.folder / "hookmq.yaml"
        config.write_text(
            CONFIG.format(port=self.port, path=self.folder / "data", durability=self.durability)
            + self.more
        )
        process = subprocess.Popen(
            [*HOOKMQ, "serve", "--log-format", "json", "-c", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.served = Served(process)
        self._reader = threading.Thread(target=self.served.read, daemon=True)
        self._reader.start()

    def ready(self) -> None:
        """Wait until the broker listens."""
        assert self.served is not None
        started = self.served.wait_for("node.started")
        self.port = int(started["listeners"]["tcp"].rpartition(":")[2])

    def writer(self) -> int:
        """Return the pid of the storage writer's process."""
        pid = self.process.pid
        children: set[int] = set()
        for task in Path(f"/proc/{pid}/task").iterdir():
            children.update(map(int, (task / "children").read_text().split()))
        for child in children:
            if b"hookmq_storage.writer" in Path(f"/proc/{child}/cmdline").read_bytes():
                return child
        raise AssertionError(f"no writer among {children}")

    def kill(self) -> None:
        """Send SIGKILL, to simulate a crash."""
        self.process.kill()
        self.ended()

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> int:
        """Wait until the process ends and return its exit code."""
        code = self.process.wait(WAIT)
        assert self._reader is not None
        self._reader.join(WAIT)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


@contextmanager
def crashing(folder: Path, durability: str = "group", more: str = "") -> Iterator[Crashing]:
    """Run a broker. It is ended on exit, even after an error."""
    made = Crashing(folder, durability, more)
    made.start()
    try:
        yield made
    finally:
        for client in made.clients:
            client.close()
        if made.process.poll() is None:
            made.kill()


class Client:
    """A paho client with a persistent session. It reconnects by itself and resends unacknowledged messages."""

    def __init__(self, broker: Crashing, name: str, clean: bool = False) -> None:
        self.name = name
        self.got: list[tuple[str, bytes, bool]] = []
        self.acked: list[int] = []
        """Numbers of what was published, as they were acknowledged."""
        self.present: list[bool] = []
        self.changed = threading.Condition()
        self._numbers: dict[int, int] = {}
        self._early: set[int] = set()
        """Acknowledged before `publish` returned."""
        self.client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=mqtt.MQTTv5)
        self.client.max_inflight_messages_set(40)
        self.client.max_queued_messages_set(0)
        self.client.reconnect_delay_set(0.05, 0.2)  # type: ignore[arg-type]
        # paho prepares its messages for a new connection at every attempt, and from the second on it takes one whose
        # PUBREL it sent for one to publish again [MQTT-4.3.3-6]: so only the first attempt after a connection may.
        self._prepare = self.client._messages_reconnect_reset_out
        self._prepared = False
        setattr(self.client, "_messages_reconnect_reset_out", self._prepare_once)  # noqa: B010
        broker.clients.append(self)
        self.client.on_connect = self._connected
        self.client.on_publish = self._acknowledged
        self.client.on_message = self._message
        properties: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = 0 if clean else 3600
        self.client.connect("127.0.0.1", broker.port, clean_start=clean, properties=properties)
        self.client.loop_start()
        # paho goes on with CONNACK after `on_connect`: what is published meanwhile it sends and counts twice, and may
        # wait for ever for room. An answer to something else says that it is done.
        self.back(0)

    def wait(self, until: Any) -> None:
        """Wait until `until()` is true."""
        with self.changed:
            assert self.changed.wait_for(until, WAIT), f"{until} within {WAIT} s"

    def back(self, times: int) -> None:
        """Wait until the client has connected more than `times` times and has resent its messages in flight.

        Paho sends new messages as soon as it is connected, so a message published earlier would overtake the resent
        ones.
        """
        self.wait(lambda: len(self.present) > times)
        self.subscribe(f"none/{self.name}", 0)

    def subscribe(self, filter: str, qos: int) -> None:
        """Subscribe and wait for the SUBACK."""
        granted = threading.Event()
        self.client.on_subscribe = lambda *_: granted.set()
        self.client.subscribe(filter, qos)
        assert granted.wait(WAIT)

    def publish(self, number: int, topic: str, qos: int, retain: bool = False) -> None:
        """Publish a message whose payload is `number`."""
        # Not within the lock: paho calls `_acknowledged` within one of its own, which publishing takes as well.
        info = self.client.publish(topic, b"%d" % number, qos, retain)
        with self.changed:
            self._numbers[info.mid] = number
            if info.mid in self._early:
                self._early.remove(info.mid)
                self._note(info.mid)

    def close(self) -> None:
        """Disconnect."""
        self.client.disconnect()
        self.client.loop_stop()
        # paho leaves the pair of sockets by which it wakes itself to the garbage collector.
        self.client._reset_sockets()

    def _prepare_once(self) -> None:
        if not self._prepared:
            self._prepared = True
            self._prepare()

    def _connected(self, client: Any, data: Any, flags: Any, code: Any, properties: Any) -> None:
        with self.changed:
            self._prepared = False
            self.present.append(flags.session_present)
            self.changed.notify_all()

    def _acknowledged(self, client: Any, data: Any, mid: int, code: Any, properties: Any) -> None:
        with self.changed:
            if mid in self._numbers:
                self._note(mid)
            else:
                self._early.add(mid)

    def _note(self, mid: int) -> None:
        self.acked.append(self._numbers.pop(mid))
        self.changed.notify_all()

    def _message(self, client: Any, data: Any, message: mqtt.MQTTMessage) -> None:
        with self.changed:
            self.got.append((message.topic, bytes(message.payload), message.retain))
            self.changed.notify_all()


__all__ = ["Client", "Crashing", "crashing", "free_port"]
