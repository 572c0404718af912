"""Play a script against a real broker with raw clients over TCP, and record what they receive in each step.

A step ends once the broker has nothing more to send. To detect that, first the acting client and then all clients send
PINGREQ and wait for the answer.
"""

import select
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

import mqttbytes as m
from byteclient import ByteClient, SocketTransport
from differential.telling import Teller, arranged

PATIENCE = 60.0
"""How long a broker may take to respond, in seconds. Only failures take this long."""
Step = dict[str, list[str]]
Script = Callable[["Play"], None]


class Client(ByteClient):
    """A connection whose received packets are recorded as text."""

    def __init__(self, port: int, teller: Teller) -> None:
        super().__init__(SocketTransport(port), teller.level)
        self.teller = teller
        self.lines: list[str] = []
        self.pings = 0
        """Number of PINGREQs that have not been answered yet."""
        self.asked = 0
        """How many of these PINGREQs the script itself sent. The others are from barriers."""
        self.let_in = False

    def send(self, *packets: bytes) -> Self:
        """Send packets. The client notices only on reading that the connection was closed."""
        with suppress(OSError):
            super().send(*packets)
        return self

    def until(self, done: Callable[[], bool], patience: float = PATIENCE) -> bool:
        """Receive until `done()` is true or the connection ends. Return False on a timeout."""
        limit = time.monotonic() + patience
        while not (self.closed or done()):
            left = limit - time.monotonic()
            if left <= 0 or not select.select([self], [], [], left)[0]:
                return False
            for frame in self.read():
                self._took(frame)
            if self.closed:
                self.lines.append("closed")
        return True

    def ask(self) -> None:
        """Send PINGREQ if the broker has accepted the client."""
        if self.let_in and not self.closed:
            self.send(m.PINGREQ)
            self.pings += 1

    def barrier(self) -> None:
        """Wait until the broker has answered all packets."""
        self.ask()
        self.answer()

    def answer(self) -> None:
        """Wait for the answer to PINGREQ or, before the client is accepted, to CONNECT."""
        if self.closed:
            return
        if self.let_in:
            if not self.until(lambda: self.pings == 0):
                self.lines.append("silence")
                self.close()
        else:
            assert self.until(lambda: self.let_in), f"neither accepted nor refused: {self.lines}"

    def _took(self, frame: bytes) -> None:
        if frame == m.PINGRESP:
            self.pings -= 1
            if self.pings < self.asked:
                self.asked -= 1
                self.lines.append("PINGRESP")
            return
        if frame[0] == 0x20 and frame[3] == 0:
            self.let_in = True
        self.lines.append(self.teller.tell(frame))


class Play:
    """A script being played against one broker. `steps` contains what each client received in each step."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.steps: list[Step] = []
        self.clients: dict[str, Client] = {}
        self.ids: dict[str, list[int]] = {}
        self.client_ids: set[m.Field] = set()
        self.limits = False
        """Whether to compare the CONNACK properties that state the broker's limits."""
        self.ordered = False
        """Whether to compare the order of all packets that a client receives in a step."""
        self.pooled: tuple[str, ...] = ()
        """Clients among which the broker may choose for each message. Their packets are recorded together."""

    def open(self, name: str, level: int = 5) -> None:
        """Open a connection without sending CONNECT."""
        if name in self.clients:
            self.clients[name].close()
        teller = Teller(level, self.ids.setdefault(name, []), self.limits)
        self.clients[name] = Client(self.port, teller)

    def connect(
        self, name: str, level: int = 5, client_id: m.Field | None = None, /, **options: Any
    ) -> None:
        """Play one step: open a connection and send CONNECT. By default, the client id is `name`."""
        self.open(name, level)
        options.setdefault("keep_alive", 60)
        given = name if client_id is None else client_id
        self.client_ids.add(given)
        self.send(name, m.connect(given, level=level, **options))

    def send(self, name: str, *packets: bytes) -> None:
        """Play one step: send a client's packets in one segment."""
        client = self.clients[name]
        asked = sum(data[0] >> 4 == 12 for data in packets)
        client.pings += asked
        client.asked += asked
        client.send(b"".join(packets))
        client.barrier()
        self._collect(client.closed)

    def subscribe(self, name: str, *filters: tuple[m.Field, int], properties: bytes = b"") -> None:
        """Play one step: send SUBSCRIBE with packet id 9."""
        level = self.clients[name].teller.level
        self.send(name, m.subscribe(9, *filters, level=level, properties=properties))

    def publish(
        self, name: str, topic: m.Field, payload: bytes = b"", *args: int, **options: Any
    ) -> None:
        """Play one step: send PUBLISH."""
        level = self.clients[name].teller.level
        self.send(name, m.publish(topic, payload, *args, level=level, **options))

    def publish_2(self, name: str, topic: m.Field, payload: bytes = b"", number: int = 1) -> None:
        """Play one step: send PUBLISH with QoS 2 and its PUBREL together. This way, it does not matter which of the two
        triggers the delivery.
        """
        level = self.clients[name].teller.level
        data = m.publish(topic, payload, 2, number, level=level)
        self.send(name, data, m.pubrel(number))

    def drop(self, name: str) -> None:
        """Play one step: close a client's connection without DISCONNECT."""
        self.clients[name].close()
        self._collect(True)

    def got(self, name: str, text: str) -> None:
        """Play one step: wait for a delayed packet whose description contains `text`."""
        client = self.clients[name]
        client.until(lambda: any(text in line for line in client.lines))
        self._collect(False)

    def until_gone(self, name: str, text: str, *packets: bytes) -> None:
        """Play one step: repeat packets until the response no longer contains `text`. Only the last
        response is recorded.
        """
        client = self.clients[name]
        limit = time.monotonic() + PATIENCE
        while time.monotonic() < limit:
            client.lines = []
            client.send(b"".join(packets))
            client.barrier()
            if not any(text in line for line in client.lines):
                break
            client.until(lambda: False, 0.1)
        self._collect(False)

    def number(self, name: str, ordinal: int) -> int:
        """Return the packet id of delivery number `ordinal` to a session, counted from 1.

        Return an id that was never used if there were fewer deliveries.
        """
        ids = self.ids[name]
        return ids[ordinal - 1] if len(ids) >= ordinal else 60000 + ordinal

    def _collect(self, twice: bool) -> None:
        # The end of a connection takes effect a little after its last byte.
        for _ in range(2 if twice else 1):
            there = [client for client in self.clients.values() if client.let_in]
            for client in there:
                client.ask()
            for client in there:
                client.answer()
        step: Step = {}
        for name, client in self.clients.items():
            where = "+".join(self.pooled) if name in self.pooled else name
            step.setdefault(where, []).extend(client.lines)
            client.lines = []
        for where, lines in step.items():
            if where != "+".join(self.pooled):
                step[where] = lines if self.ordered else arranged(lines)
            else:
                step[where] = sorted(line.rpartition(" #")[0] or line for line in lines)
        self.steps.append(step)


def play(script: Script, port: int) -> list[Step]:
    """Play a script. Then remove all connections, sessions and retained messages that it left."""
    playing = Play(port)
    try:
        script(playing)
    finally:
        for client in playing.clients.values():
            client.close()
        _clean(port, playing.client_ids)
    return playing.steps


def _clean(port: int, client_ids: set[m.Field]) -> None:
    """End the sessions of these client ids, which publishes the clients' wills. Then clear all retained messages."""
    for client_id in sorted(map(m.raw, client_ids)):
        one = Client(port, Teller(5, [], False))
        one.send(m.connect(client_id) + m.disconnect())
        one.until(lambda: False)
    cleaner = Client(port, Teller(5, [], False))
    cleaner.send(m.connect("cleaner"))
    cleaner.barrier()
    topics: list[str] = []
    cleaner.teller.tell = lambda frame: _retained(frame, topics)  # type: ignore[method-assign]
    cleaner.send(m.subscribe(1, ("#", 0)))
    cleaner.barrier()
    cleaner.send(m.unsubscribe(2, "#"))
    for topic in topics:
        cleaner.send(m.publish(topic, b"", retain=True))
    cleaner.barrier()
    cleaner.close()


def _retained(frame: bytes, topics: list[str]) -> str:
    if frame[0] >> 4 == 3:
        topics.append(m.split_publish(frame)[1].decode())
    return ""
