"""One connection of a simulated network: two FIFO directions, with delays and failures."""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Protocol

from hookmq.broker import PacketReader
from hookmq.mqtt.reason_codes import PacketType

from simulator.clock import Clock


class Endpoint(Protocol):
    """The client's end of a connection."""

    def took(self, link: "Link", data: bytes) -> None:
        """Process received bytes."""

    def ended(self, link: "Link") -> None:
        """Clean up after the connection has closed."""


class Weather:
    """The state of the network. `latency` and `jitter` are in seconds; `split` is the probability of splitting a
    segment.
    """

    __slots__ = ("high_water", "jitter", "latency", "split")

    def __init__(self, latency: float, jitter: float, split: float, high_water: int) -> None:
        self.latency = latency
        self.jitter = jitter
        self.split = split
        self.high_water = high_water


class Link:
    """A connection between a client and a broker. It also implements the broker's `Wire`.

    The client calls `send`, `hang_up` and `cut`; the broker calls the methods of `Wire`. `fed` is called before each
    segment that reaches the broker.
    """

    __slots__ = (
        "_down", "_down_at", "_held", "_random", "_size", "_up", "_up_at", "alive", "broker_ended_at", "client",
        "client_gone", "clock", "closing", "connection", "fed", "number", "paused", "reading", "said_goodbye",
        "stalled", "weather", "written_at",
    )  # fmt: skip

    def __init__(
        self,
        clock: Clock,
        weather: Weather,
        random: Random,
        number: int,
        client: Endpoint,
        fed: Callable[["Link", bytes, PacketType | None], None],
    ) -> None:
        self.clock = clock
        self.weather = weather
        self.number = number
        self.client = client
        self.fed = fed
        self.connection: PacketReader | None = None
        self.alive = True
        """Whether the broker's end exists: False if `accept` failed, the end has closed, or the broker crashed."""
        self.broker_ended_at: float | None = None
        self.said_goodbye = False
        """Whether the broker has processed the client's DISCONNECT."""
        self.client_gone = False
        self.closing = False
        self.reading = True
        self.paused = False
        self.stalled = False
        self.written_at = 0.0
        """When the broker wrote the data that the client is receiving."""
        self._random = random
        self._up: deque[tuple[bytes | None, PacketType | None]] = deque()
        self._down: deque[tuple[float, bytes | None]] = deque()
        self._held: deque[tuple[bytes | None, PacketType | None]] = deque()
        self._up_at = clock.now
        self._down_at = 0.0
        self._size = 0

    # --- the client's end --------------------------------------------------------------------------------------------

    def send(self, data: bytes, kind: PacketType | None = None) -> None:
        """Send bytes. If they are a single packet, pass its type as `kind`, so that the coverage includes it."""
        if self.client_gone:
            return
        weather = self.weather
        if weather.split and len(data) > 1 and self._random.random() < weather.split:
            cut = self._random.randrange(1, len(data))
            self._push_up(data[:cut], None)
            self._push_up(data[cut:], kind)
        else:
            self._push_up(data, kind)

    def hang_up(self) -> None:
        """Close the client's end after all bytes sent have arrived."""
        if not self.client_gone:
            self._push_up(None, None)
            self.client_gone = True

    def cut(self, lost: bool = True) -> None:
        """Cut the network, so that both ends notice. If `lost`, bytes in transit to the broker are lost; otherwise they
        still arrive.
        """
        if lost:
            self._up.clear()
        self.client_gone = True
        self._up.append((None, None))
        self.clock.after(self._random.random() * 0.05, self._arrive_up)

    def go_dark(self, seconds: float) -> None:
        """Close the client's end in such a way that the broker notices only after `seconds`."""
        self._up.clear()
        self.client_gone = True
        self.stalled = True
        self._up.append((None, None))
        self.clock.after(seconds, self._arrive_up)

    def abandon(self, seconds: float) -> None:
        """Stop sending and receiving at the client's end. Bytes in transit still arrive. The broker notices the end
        after `seconds`.
        """
        self.client_gone = True
        self.clock.after(seconds, self._end_up)

    def _end_up(self) -> None:
        self._up.append((None, None))
        self._arrive_up()

    def end_now(self) -> None:
        """Notify the broker now if the client's end is closed."""
        if self.client_gone and self.alive:
            self._up.clear()
            self._held.clear()
            self._end("connection reset")

    def stall(self) -> None:
        """Stop reading at the client's end."""
        self.stalled = True

    def unstall(self) -> None:
        """Continue reading at the client's end."""
        if self.stalled:
            self.stalled = False
            for _ in self._down:
                self._down_at = max(self._down_at, self.clock.now) + self._delay()
                self.clock.at(self._down_at, self._arrive_down)

    def _delay(self) -> float:
        weather = self.weather
        return weather.latency + self._random.random() * weather.jitter

    def _push_up(self, data: bytes | None, kind: PacketType | None) -> None:
        self._up.append((data, kind))
        self._up_at = max(self._up_at, self.clock.now + self._delay())
        self.clock.at(self._up_at, self._arrive_up)

    def _arrive_up(self) -> None:
        if not self._up:
            return
        data, kind = self._up.popleft()
        if self.alive:
            if self.reading and self.connection is not None and not self._held:
                self._feed(data, kind)
            else:
                self._held.append((data, kind))

    def _feed(self, data: bytes | None, kind: PacketType | None) -> None:
        connection = self.connection
        if connection is None or not self.alive:
            return
        if data is None:
            self._end("" if not self._down else "connection reset")
        elif not self.closing or self._random.random() < 0.2:
            self.fed(self, data, kind)
            connection.feed(data)

    # --- the broker's end: Wire -----------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send `data`. Data written after the connection has ended is lost."""
        if self.closing or not self.alive:
            return
        self._down.append((self.clock.now, data))
        self._size += len(data)
        if not self.stalled:
            self._down_at = max(self._down_at, self.clock.now + self._delay())
            self.clock.at(self._down_at, self._arrive_down)
        if self._size > self.weather.high_water and not self.paused and self.connection:
            self.paused = True
            self.connection.pause_writing()

    def close(self) -> None:
        """Close the connection after all written data has been sent."""
        if self.closing:
            return
        self.closing = True
        self.broker_ended_at = self.clock.now
        if not self.alive:
            return
        if self.stalled or self.connection is None:
            # Nobody reads the remaining bytes: the shell's own deadline ends the connection.
            self.clock.after(1.0, self._finish_close)
            return
        self._down.append((self.clock.now, None))
        self._down_at = max(self._down_at, self.clock.now + self._delay())
        self.clock.at(self._down_at, self._arrive_down)

    def abort(self) -> None:
        """Close the connection immediately."""
        self._down.clear()
        self._size = 0
        self.close()

    def pause_reading(self) -> None:
        """Hold back everything that the client sends, including its disconnect."""
        self.reading = False

    def resume_reading(self) -> None:
        """Deliver everything that the client has sent in the meantime."""
        if not self.reading:
            self.reading = True
            self.clock.after(0.0, self._let_through)

    def accepted(self) -> None:
        """Mark the connection as accepted, and deliver what has arrived in the meantime."""
        if not self.closing:
            self._let_through()

    def crash(self) -> None:
        """End the broker's process. The client notices once it has received some of the data in transit."""
        if not self.alive:
            return
        self.alive = False
        if self.broker_ended_at is None:
            self.broker_ended_at = self.clock.now
        kept = self._random.randrange(len(self._down) + 1)
        while len(self._down) > kept:
            self._down.pop()
        self.clock.at(max(self._down_at, self.clock.now + self._delay()), self._lose)

    def _let_through(self) -> None:
        while self._held and self.reading and self.alive:
            self._feed(*self._held.popleft())

    def _arrive_down(self) -> None:
        if self.stalled or not self._down:
            return
        self.written_at, data = self._down.popleft()
        if data is None:
            self._finish_close()
            return
        self._size -= len(data)
        if self.paused and self._size <= self.weather.high_water // 4 and self.alive:
            self.paused = False
            if self.connection is not None and not self.closing:
                self.connection.resume_writing()
        if not self.client_gone:
            self.client.took(self, data)

    def _finish_close(self) -> None:
        if self.alive:
            self._end("")
        self._lose()

    def _lose(self) -> None:
        if not self.client_gone:
            self.client_gone = True
            self.client.ended(self)

    def _end(self, error: str) -> None:
        if not self.alive:
            return
        self.alive = False
        if self.broker_ended_at is None:
            self.broker_ended_at = self.clock.now
        if self.connection is not None:
            self.connection.closed(error)
        self._down.clear()
        self._lose()
