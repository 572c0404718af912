"""Traffic for a broker whose disk is recorded.

The clients are a publisher, a publisher of delayed messages, a client with a will, and several subscribers. The
subscribers stay online, stay offline or start clean sessions. Everything runs in one thread and depends only on the seed
and the broker's answers.
"""

import select
import time
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, Final

import mqttbytes as m
from brokercut.lines import kind, packet_id, reason
from brokercut.memory import Memory, Sent, mark, number_of
from byteclient import ByteClient, over_tcp
from serving import WAIT

WINDOW: Final = 16
IDS: Final = 40
"""Number of packet ids that the publisher cycles through. It is small so that ids are soon reused."""
RETAINED: Final = 4
KEPT: Final = m.session_expiry(100_000)
WILL_DELAY: Final = 60
DELAYED: Final = "$delayed/1000000"
"""The topic prefix of messages that the `delayed` plugin keeps as timers."""
FILTERS: Final = {"reader": ("k/#", 2), "online": ("k/#", 2), "anew": ("k/1", 1)}


class Load:
    """Generates a test's traffic and records each step as a mark.

    `note` receives every mark; `memory` is the state that results from the marks. With `delays`, a client also publishes
    delayed messages; the broker then needs the `delayed` plugin.
    """

    def __init__(self, seed: int, note: Callable[[bytes], None], delays: bool = False) -> None:
        self.delays = delays
        self.random = Random(f"load {seed}")
        self.memory = Memory()
        self.port = 0
        self.farewells: list[int] = []
        """Reason codes of the DISCONNECT packets received, in order."""
        self._note = note
        self._wires: dict[str, ByteClient] = {}
        self._ready: set[str] = set()
        self._numbers: dict[int, int] = {}
        """The publisher's packet ids in flight, in order."""
        self._next_id = 0
        self._delaying = 0
        """The delayed message in flight, or 0."""
        self._recs: list[int] = []
        self._answers: deque[tuple[str, bytes, tuple[Any, ...]]] = deque()
        """Answers that have not been sent yet. Each is a client's name, a packet, and the mark to record, if any."""

    def mark(self, *values: Any) -> None:
        """Record a mark."""
        text = mark(*values)
        self._note(text)
        self.memory.take(text)

    # --- life --------------------------------------------------------------------------------------------------------

    def arrive(self, port: int) -> None:
        """Connect all clients that should be online, so that they resume their sessions."""
        self.port = port
        self.mark("at", time.time())
        first = not self.memory.readers
        self._ready.clear()
        self._answers.clear()
        if first:
            self.subscriber("reader", clean=True)
            self.gone("reader", m.disconnect())
            self.subscriber("anew", clean=True)
            self.gone("anew", m.disconnect())
            self.subscriber("online", clean=True)
        else:
            self.connect("online")
        self.connect(
            "willing",
            clean=first,
            will=("k/will", b"0 will"),
            will_qos=1,
            will_properties=m.will_delay(WILL_DELAY),
        )
        if self.delays:
            self.connect("later", clean=True)
            self._delaying = 0
        self.connect("sender", clean=first)
        if not first:
            self._resend()

    def run(self, messages: int) -> None:
        """Publish another `messages` messages."""
        wanted = len(self.memory.sent) + messages
        end = time.monotonic() + 3 * WAIT + messages / 10
        while len(self.memory.sent) < wanted:
            self.step()
            assert time.monotonic() < end, "the broker is too slow, or answers no more"

    def run_until(self, ended: Callable[[], bool]) -> None:
        """Publish until `ended()` is true, without connecting any further clients."""
        end = time.monotonic() + 6 * WAIT
        while not ended():
            if len(self._numbers) < WINDOW:
                self._publish()
            self._delay()
            self._release()
            self._answer()
            self._poll(0.01)
            assert time.monotonic() < end, "the broker goes on"

    def step(self) -> None:
        """Perform one random action, then process the packets that have arrived."""
        random = self.random
        while len(self._numbers) < WINDOW and random.random() < 0.7:
            self._publish()
        self._delay()
        self._release()
        self._answer()
        dice = random.random()
        if dice < 0.01:
            self.gone("online")
            self.connect("online")
        elif dice < 0.02:
            clean = random.random() < 0.7
            if clean:
                self.subscriber("anew", clean=True)
            else:
                self.connect("anew")
            self.gone("anew", m.disconnect())
        self._poll(0.0 if len(self._numbers) < WINDOW else 0.01)

    def leave(self) -> None:
        """Close all connections without DISCONNECT."""
        for name in list(self._wires):
            self.gone(name)

    def _poll(self, timeout: float) -> None:
        wires = {wire: name for name, wire in self._wires.items() if not wire.closed}
        if not wires:
            return
        ready, _, _ = select.select(list(wires), [], [], timeout)
        for one in ready:
            name = wires[one]
            for frame in self._wires[name].read():
                self._took(name, frame)

    def _wait(self, until: Callable[[], bool]) -> None:
        end = time.monotonic() + WAIT
        while not until():
            self._poll(0.05)
            assert time.monotonic() < end, "the broker does not answer"

    # --- clients -----------------------------------------------------------------------------------------------------

    def connect(self, name: str, clean: bool = False, **options: Any) -> None:
        """Connect a client and wait for CONNACK."""
        self.mark("up", name, clean)
        self._ready.discard(name)
        self._wires[name] = over_tcp(self.port)
        properties = KEPT + (m.receive_maximum(20) if name == "online" else b"")
        self._send(name, m.connect(name, clean=clean, properties=properties, **options))
        self._wait(lambda: name in self._ready)

    def subscriber(self, name: str, clean: bool) -> None:
        """Connect a client and subscribe."""
        self.connect(name, clean)
        self.mark("asks", name)
        filter, qos = FILTERS[name]
        self._ready.discard(name)
        self._send(name, m.subscribe(1, (filter, qos)))
        self._wait(lambda: name in self._ready)

    def gone(self, name: str, *packets: bytes) -> None:
        """Send some packets as a client, then close the client's connection."""
        if name in self._wires:
            self._send(name, *packets)
            self._wires.pop(name).close()
        if name == "online":
            self._answers.clear()

    def _send(self, name: str, *packets: bytes) -> None:
        """Send packets if the connection is still open."""
        wire = self._wires[name]
        if not wire.closed:
            try:
                wire.send(*packets)
            except OSError:
                wire.close()

    def _took(self, name: str, frame: bytes) -> None:
        type = kind(frame)
        if type == 2:
            present, code = m.body(frame)[:2]
            assert code == 0, f"CONNACK 0x{code:02X}"
            reader = self.memory.reader(name)
            assert present or reader.clean, f"the session of {name} is gone"
            self.mark("on", name)
            self._ready.add(name)
        elif type == 9:
            self.mark("subs", name)
            self._ready.add(name)
        elif name == "sender":
            self._acknowledged(type, frame)
        elif name == "later" and type == 4:
            assert reason(frame) == 0, f"a delayed message was refused: {frame.hex(' ')}"
            self.mark("kept", self._delaying)
            self._delaying = 0
        elif type == 3:
            self._delivered(name, frame)
        elif type == 6:
            self.mark("release", name, packet_id(frame))
            self._answers.append((name, m.pubcomp(packet_id(frame)), ()))
        else:
            assert type == 14, f"{name} was told {frame.hex(' ')}"
            self.farewells.append(m.body(frame)[0])

    # --- the publisher -----------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        random = self.random
        while True:
            self._next_id = self._next_id % IDS + 1
            if self._next_id not in self._numbers:
                break
        number = len(self.memory.sent) + 1
        size = random.choice((20, 100, 600, 600, 3000, 9000))
        dice = random.random()
        if dice < 0.4:
            sent = Sent(number, "k/1", 1, self._next_id, size, False)
        elif dice < 0.8:
            sent = Sent(number, "k/2", 2, self._next_id, size, False)
        else:
            # Each topic has one QoS. Otherwise, a repeated QoS 1 message could replace a later QoS 2 message.
            which = random.randrange(RETAINED)
            size = size if random.random() < 0.8 else 0
            sent = Sent(number, f"r/{which}", 1 + which % 2, self._next_id, size, True)
        self._numbers[sent.id] = number
        self.mark("send", *sent)
        self._send("sender", publish(sent))

    def _delay(self) -> None:
        """Publish a delayed message if the previous one has been acknowledged. The new message becomes due long after
        the run ends.
        """
        if self.delays and not self._delaying:
            self._delaying = number = self.memory.delayed + 1
            self.mark("delay", number)
            self._send("later", m.publish(f"{DELAYED}/d", b"%d" % number, 1, 1))

    def _resend(self) -> None:
        """Resend all in-flight messages in their original order."""
        self._recs.clear()
        for id, number in self._numbers.items():
            if number in self.memory.acked:
                self._recs.append(id)
            else:
                self.mark("again", number)
                self._send("sender", publish(self.memory.sent[number], dup=True))

    def _acknowledged(self, type: int, frame: bytes) -> None:
        if type == 14:
            self.farewells.append(m.body(frame)[0])
            return
        id = packet_id(frame)
        number = self._numbers[id]
        if type == 4:
            self.mark("ack", number)
            del self._numbers[id]
        elif type == 5:
            self.mark("rec", number)
            self._recs.append(id)
        else:
            assert type == 7, f"the publisher was told {frame.hex(' ')}"
            self.mark("comp", number)
            del self._numbers[id]

    def _release(self) -> None:
        while self._recs and self.random.random() < 0.5:
            id = self._recs.pop(0)
            self.mark("rel", self._numbers[id])
            self._send("sender", m.pubrel(id))

    # --- the online subscriber ---------------------------------------------------------------------------------------

    def _delivered(self, name: str, frame: bytes) -> None:
        first, _, id, _, payload = m.split_publish(frame)
        qos = first >> 1 & 3
        self.mark("got", name, number_of(payload), qos, id)
        if name != "online":
            return  # this subscriber disconnects at once
        if qos == 1:
            self._answers.append((name, m.puback(id), ("puback", name, id)))
        elif qos == 2:
            self._answers.append((name, m.pubrec(id), ()))

    def _answer(self) -> None:
        while self._answers and self.random.random() < 0.6:
            name, packet, note = self._answers.popleft()
            if name in self._wires:
                if note:
                    self.mark(*note)
                self._send(name, packet)


def publish(sent: Sent, dup: bool = False) -> bytes:
    """Return the PUBLISH packet of a message."""
    return m.publish(sent.topic, sent.payload, sent.qos, sent.id, retain=sent.retain, dup=dup)
