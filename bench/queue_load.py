"""The load of bench.queues: producers and consumers in one thread, and a check that every message was consumed."""

from __future__ import annotations

import contextlib
import dataclasses
import selectors
import time
from collections.abc import Callable, Iterator
from typing import Final

from . import launch
from .durable_load import Void
from .queue_client import Consumer, Producer
from .queue_servers import Server

GAP: Final = 60.0
"""Seconds of silence after which missing messages count as lost."""
SETTLE: Final = 0.3
"""How long the server may take to process the last acknowledgement, in seconds."""


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
    """The load. Each producer may have up to `window` unconfirmed messages. Producers pause while more than `backlog`
    messages are waiting in the queue, not counting those that were there before.
    """

    seconds: float = 2.0
    producers: int = 50
    consumers: int = 10
    prefetch: int = 100
    window: int = 100
    backlog: int = 10_000


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """The figures of one run. CPU time is per message, in microseconds. `cores` and `generator` are fractions of a
    core.
    """

    messages: int
    rate: float
    cpu: float
    cores: float
    generator: float
    again: int
    """Messages that were consumed more than once."""
    resident: int
    """The resident memory of the server's processes at the end, in bytes."""


class CpuClock:
    """Measures the CPU time of a server's processes."""

    def __init__(self, broker: launch.Broker) -> None:
        self.pids = broker.pids()
        self._used = self._now()
        self._own = time.process_time()
        self._began = time.perf_counter()

    def _now(self) -> float:
        return sum(launch.cpu_seconds(pid) for pid in self.pids)

    def read(self) -> tuple[float, float, float]:
        """Return the CPU seconds of the server and of this process, and the elapsed seconds, since the clock was
        created."""
        return (
            self._now() - self._used,
            time.process_time() - self._own,
            time.perf_counter() - self._began,
        )


def resident(pids: list[int]) -> int:
    """Return the total resident memory of the processes, in bytes."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/statm") as file:
            total += int(file.read().split()[1]) * 4096
    return total


class Bench:
    """One server's producers and consumers, and the messages that they have published and consumed."""

    def __init__(self, server: Server, port: int, load: Load) -> None:
        self.load = load
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []
        self.sent: list[int] = []
        self.seen: list[bytearray] = []
        self.consumed = 0
        self.again = 0
        self.foreign = False
        """Whether the messages were published before this object was created."""
        self._server = server
        self._port = port
        self._selector = selectors.DefaultSelector()

    def produce(self) -> None:
        """Connect the producers."""
        for number in range(self.load.producers):
            one = self._server.producer(self._port, number)
            self.producers.append(one)
            self.sent.append(0)
            self.seen.append(bytearray())
            self._selector.register(one.socket, selectors.EVENT_READ, (number, None))

    def consume(self) -> None:
        """Connect the consumers and request messages."""
        for number in range(self.load.consumers):
            one = self._server.consumer(self._port, number, self.load.prefetch)
            self.consumers.append(one)
            self._selector.register(one.socket, selectors.EVENT_READ, (number, one))
        for one in self.consumers:
            one.socket.sendall(one.start())

    def close(self) -> None:
        """Close all connections."""
        self._selector.close()
        for connection in [one.socket for one in self.producers] + [
            one.socket for one in self.consumers
        ]:
            connection.close()

    @property
    def published(self) -> int:
        """The number of messages that were sent."""
        return sum(self.sent)

    @property
    def confirmed(self) -> int:
        """The number of messages that the server has acknowledged."""
        return sum(one.confirmed for one in self.producers)

    def turn(self, most: int) -> bool:
        """Read what has arrived and respond to it. Then publish, but no more than `most` messages in total. Return False
        if nothing arrived.
        """
        ready = self._selector.select(0.5)
        for key, _ in ready:
            number, consumer = key.data
            data = key.fileobj.recv(1 << 18)  # type: ignore[union-attr]
            if not data:
                raise Void(f"{'consumer' if consumer else 'producer'} {number} was disconnected")
            if consumer is None:
                self.producers[number].read(data)
                continue
            numbers, answer = consumer.read(data)
            self._note(numbers)
            if answer:
                key.fileobj.sendall(answer)  # type: ignore[union-attr]
        room = most - self.published
        if room > 0 and not self.foreign:
            self.publish(room)
        return bool(ready)

    def publish(self, room: int) -> None:
        """Publish up to `room` messages. Fill each producer's window if at least a quarter of it is free."""
        window = self.load.window
        for number, one in enumerate(self.producers):
            sent = self.sent[number]
            free = min(window - (sent - one.confirmed), room)
            if free > 0 and free >= min(window // 4, room):
                self.sent[number] = sent + free
                self.seen[number] += bytes(free)
                one.socket.sendall(one.messages((number << 32) + sent, free))
                room -= free

    def _note(self, numbers: list[int]) -> None:
        self.consumed += len(numbers)
        if self.foreign:
            return
        seen = self.seen
        try:
            for number in numbers:
                one, at = seen[number >> 32], number & 0xFFFFFFFF
                if one[at]:
                    self.again += 1
                one[at] = 1
        except IndexError:
            raise Void("a message was consumed that nobody published") from None

    def until(self, done: float, backlog: int) -> None:
        """Publish and consume until the clock reaches `done`, with up to `backlog` messages waiting."""
        while time.perf_counter() < done:
            self.turn(self.consumed + backlog)

    def fill(self, count: int) -> None:
        """Publish until `count` messages in total have been confirmed. Raises Void if the server stops."""
        self._wait(lambda: self.confirmed >= count, count, "messages were not acknowledged")

    def collect(self, wanted: int) -> int:
        """Consume at least `wanted` messages that were published earlier. Return how many arrived."""
        self.foreign = True
        self._wait(lambda: self.consumed >= wanted, wanted, "messages are missing")
        return self.consumed

    def drain(self) -> None:
        """Consume everything that was published. Raises Void if a message is missing."""
        total = self.published
        self._wait(
            lambda: self.consumed - self.again >= total and self.confirmed >= total,
            total,
            "messages are missing",
        )
        if any(one.count(0) for one in self.seen):
            raise Void("acknowledged messages were not consumed")

    def _wait(self, done: Callable[[], bool], most: int, what: str) -> None:
        silent = 0.0
        while not done():
            began = time.perf_counter()
            silent = 0.0 if self.turn(most) else silent + time.perf_counter() - began
            if silent > GAP:
                left = max(most - self.confirmed, most - self.consumed + self.again)
                raise Void(f"up to {left} {what}")


@contextlib.contextmanager
def bench(server: Server, broker: launch.Broker, load: Load) -> Iterator[Bench]:
    """Connect the producers, and close all connections at the end."""
    made = Bench(server, broker.port, load)
    try:
        made.produce()
        yield made
    finally:
        made.close()


def measure(server: Server, broker: launch.Broker, load: Load) -> Run:
    """Publish and consume for `load.seconds`, then consume the rest. Raises Void if a message is missing."""
    server.prepare(broker.port, load.prefetch * load.consumers)
    load = dataclasses.replace(load, window=min(load.window, server.window))
    with bench(server, broker, load) as made:
        made.consume()
        made.until(time.perf_counter() + load.seconds / 4, load.backlog)
        made.drain()
        warm = made.consumed
        clock = CpuClock(broker)
        made.until(time.perf_counter() + load.seconds, load.backlog)
        made.drain()
        took = clock.read()[2]
        time.sleep(SETTLE)  # the server does not say when it has processed all acknowledgements
        used, own, _ = clock.read()
        count = made.consumed - warm
        return Run(
            count, count / took, used * 1e6 / count, used / took, own / took, made.again,
            resident(clock.pids),
        )  # fmt: skip
