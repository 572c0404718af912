"""Run ``hookmq serve`` with a store on disk, for tests that kill the broker, and clients that check its guarantees."""

import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hookmq.mqtt.packets import Connack, Packet, Publish
from hookmq_testing import AsyncioClient, LoopThread
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
    """A broker with a store in ``folder/data``. It uses the same port after every start.

    `more` lists additional plugins, one line of YAML each.
    """

    def __init__(self, folder: Path, durability: str = "group", more: str = "") -> None:
        self.folder = folder
        self.durability = durability
        self.more = more
        self.port = free_port()
        self.served: Served | None = None
        self._reader: threading.Thread | None = None
        self.clients: list[Client] = []
        self._thread: LoopThread | None = None

    @property
    def process(self) -> "subprocess.Popen[str]":
        assert self.served is not None
        return self.served.process

    @property
    def thread(self) -> LoopThread:
        """The clients' event loop. It is started on first use, and runs until `leave`."""
        if self._thread is None:
            self._thread = LoopThread()
        return self._thread

    def leave(self) -> None:
        """Close all clients."""
        for client in self.clients:
            client.close()
        if self._thread is not None:
            self._thread.close()

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
    """Run a broker. It is always killed on exit, even after an error."""
    made = Crashing(folder, durability, more)
    made.start()
    try:
        yield made
    finally:
        made.leave()
        if made.process.poll() is None:
            made.kill()


class Client:
    """A client with a durable session, for tests that block. It reconnects and resends on its own."""

    def __init__(self, broker: Crashing, name: str) -> None:
        self.got: list[tuple[str, bytes, bool]] = []
        self.acked: list[int] = []
        """The numbers of the acknowledged messages, in the order of their acknowledgements."""
        self.present: list[bool] = []
        """The Session Present flag of each connection."""
        self._numbers: dict[int, int] = {}
        self._thread = broker.thread
        self._mqtt = AsyncioClient(
            name,
            clean_start=False,
            session_expiry_interval=3600,
            max_inflight=40,
            on_packet=self._packet,
            on_message=lambda one: self.got.append((one.topic, one.payload, one.retain)),
            on_acknowledged=self._acknowledged,
        )
        self._staying = self._thread.start(self._mqtt.stay_connected(broker.port))
        broker.clients.append(self)
        self.back(0)

    def wait(self, until: Callable[..., object]) -> None:
        """Wait until `until()` is true. `until` is called in the client's thread."""
        done = self._thread.run(self._mqtt.until(lambda: bool(until()), WAIT))
        assert done, f"{until} within {WAIT} s"

    def back(self, times: int) -> None:
        """Wait until the client has connected more than `times` times and has resent its in-flight messages."""
        self.wait(lambda: len(self.present) > times)

    def subscribe(self, filter: str, qos: int) -> None:
        """Subscribe and wait for the SUBACK."""
        assert self._thread.run(self._mqtt.subscribe(filter, qos)).codes == (qos,)

    def publish(self, number: int, topic: str, qos: int, retain: bool = False) -> None:
        """Publish a message whose payload is `number`. At QoS 0, the client must be connected."""

        def publish() -> None:
            packet_id = self._mqtt.send_publish(topic, b"%d" % number, qos, retain)
            if packet_id:
                self._numbers[packet_id] = number

        self._thread.call(publish)

    def close(self) -> None:
        """Disconnect the client."""
        self._staying.cancel()
        self._thread.call(self._mqtt.disconnect)
        self._thread.run(self._mqtt.wait_closed())

    def _packet(self, packet: Packet) -> None:
        if isinstance(packet, Connack) and not packet.code:
            self.present.append(packet.session_present)

    def _acknowledged(self, message: Publish, answer: Packet) -> None:
        self.acked.append(self._numbers.pop(message.packet_id))


__all__ = ["Client", "Crashing", "crashing", "free_port"]
