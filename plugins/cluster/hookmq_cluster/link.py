"""Sends packets to one other node, in order and without loss, on top of messages that may be lost.

Packets are numbered. They are kept until the node acknowledges them, and sent again if it does not.
"""

from bisect import insort
from collections import deque
from collections.abc import Callable
from operator import itemgetter
from typing import Final, Protocol

from hookmq.plugin import Runtime, Timer

from hookmq_cluster.wire_messages import ANNOUNCEMENT, FRAME, Ack, Open, Packet

WINDOW: Final = 4 * 1024 * 1024
"""Bytes that a link sends before it waits for an acknowledgement."""
_FEED_AHEAD: Final = 4
"""The largest number of unacknowledged announcements."""
RESEND: Final = 1.0
"""Seconds without progress after which packets are sent again. Doubles up to `_RESEND_MAX`."""
_RESEND_MAX: Final = 8.0


class Feed(Protocol):
    """The announcements for one node."""

    def begin(self) -> None:
        """Begin again: the node has forgotten everything."""

    def suspend(self) -> None:
        """Assume that the node knows nothing, until `begin`."""

    def next(self) -> bytes | None:
        """Return the next announcement, or None if everything is announced."""

    def acked(self) -> None:
        """Note that the node has applied the oldest announcement that it had not applied before."""


class Link:
    """Sends packets to one boot of another node."""

    __slots__ = (
        "_added", "_bytes", "_delay", "_done", "_feed", "_feeding", "_first", "_in_flight", "_limit", "_messages",
        "_progress", "_queue", "_reader", "_reliable", "_runtime", "_sent", "_suspended", "_timer", "_transmit", "_waits",
        "boot", "closed", "full", "node", "resent",
    )  # fmt: skip

    def __init__(
        self,
        runtime: Runtime,
        transmit: Callable[[str, Packet], None],
        node: str,
        boot: str,
        feed: Feed,
        limit: int,
        last_reader: int,
    ) -> None:
        self.node = node
        self.boot = boot
        self.full = False
        """Whether the buffer is full, so that messages with QoS 0 must be dropped."""
        self.closed = False
        self.resent = 0
        """The number of packets that were sent again."""
        self._runtime = runtime
        self._transmit = transmit
        self._feed = feed
        self._limit = limit
        self._reader = last_reader
        """The last reader; at first that of the link before, which must not be used again."""
        self._suspended = True
        self._queue: deque[tuple[bytes, bool]] = deque()
        """Frames that were not sent yet, and whether each is reliable."""
        self._sent: deque[tuple[int, bytes, bool]] = deque()
        """Packets without acknowledgement: kind, content, urgent."""
        self._first = 1
        """The number of the first packet in `_sent`."""
        self._in_flight = 0
        self._feeding = 0
        self._bytes = 0
        self._added = 0
        self._done = 0
        """The numbers of frames that were added and acknowledged."""
        self._reliable = 0
        """The position of the last reliable frame, as a number of added frames."""
        self._messages = 0
        """The position of the last frame with messages."""
        self._waits: deque[tuple[int, Callable[[], None]]] = deque()
        self._timer: Timer | None = None
        self._delay = RESEND
        self._progress = 0

    @property
    def opened(self) -> bool:
        """Whether the node has opened a reader."""
        return not self._suspended

    @property
    def reader(self) -> int:
        """The node's last reader."""
        return self._reader

    def suspend(self) -> None:
        """Send nothing until the node opens another reader."""
        self._suspended = True
        self._feed.suspend()

    def add(self, frame: bytes, reliable: bool, messages: bool = True) -> None:
        """Send a part of a frame. If it is not reliable, `wait` does not wait for it unless `every`. If it has no
        `messages`, nothing waits for it."""
        self._queue.append((frame, reliable))
        self._added += 1
        if messages:
            self._messages = self._added
        if reliable:
            self._reliable = self._added
        self._bytes += len(frame)
        self.full = self._bytes >= self._limit
        self.pump()

    def wait(self, done: Callable[[], None], every: bool = False) -> bool:
        """Return True if the node has all reliable frames, or will never have them. Otherwise return False, and call
        `done` once it has. With `every`, wait for all frames with messages."""
        position = self._messages if every else self._reliable
        if self.closed or position <= self._done:
            return True
        if self._waits and self._waits[-1][0] > position:
            insort(self._waits, (position, done), key=itemgetter(0))
        else:
            self._waits.append((position, done))
        return False

    def pump(self) -> None:
        """Send packets until the window is full. Announcements have priority."""
        if self._suspended:
            return
        while self._in_flight < WINDOW:
            if self._feeding < _FEED_AHEAD and (content := self._feed.next()) is not None:
                self._feeding += 1
                item = (ANNOUNCEMENT, content, True)
            elif self._queue:
                frame, reliable = self._queue.popleft()
                item = (FRAME, frame, reliable)
            else:
                return
            self._in_flight += len(item[1])
            self._sent.append(item)
            self._send(self._first + len(self._sent) - 1, item)
            if self._timer is None:
                self._watch()

    def open(self, message: Open) -> None:
        """Send everything to a new reader."""
        if message.reader <= self._reader:
            if message.reader == self._reader and not self._suspended:
                self._resend()
            return
        ready: list[Callable[[], None]] = []
        self._feed.suspend()  # the node may have forgotten earlier announcements
        if message.previous and message.previous == self._reader:
            ready = self._acknowledge(message.number)
        self._queue.extendleft(
            (content, urgent) for kind, content, urgent in reversed(self._sent) if kind == FRAME
        )
        self._sent.clear()
        self._first = 1
        self._in_flight = self._feeding = 0
        self._reader = message.reader
        self._suspended = False
        self._feed.begin()
        self.pump()
        for done in ready:
            done()

    def acked(self, message: Ack) -> None:
        """Note which packets the reader has."""
        if self._suspended or message.reader != self._reader:
            return
        ready = self._acknowledge(message.number)
        if message.gap:
            self._resend()
        self.pump()
        for done in ready:
            done()

    def _acknowledge(self, number: int) -> list[Callable[[], None]]:
        """Forget the packets up to `number`. Return the calls that waited for them."""
        sent = self._sent
        while sent and self._first <= number:
            kind, content, _ = sent.popleft()
            self._first += 1
            self._in_flight -= len(content)
            if kind == FRAME:
                self._done += 1
                self._bytes -= len(content)
            else:
                self._feeding -= 1
                self._feed.acked()
        self.full = self._bytes >= self._limit
        ready: list[Callable[[], None]] = []
        while self._waits and self._waits[0][0] <= self._done:
            ready.append(self._waits.popleft()[1])
        return ready

    def resume(self) -> None:
        """Send unacknowledged packets again, because messages may have been lost."""
        self._delay = RESEND
        self._resend()

    def close(self) -> None:
        """Forget everything, because the node has left. Calls that wait are made now."""
        self.closed = self._suspended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._queue.clear()
        self._sent.clear()
        self._bytes = 0
        self.full = False
        waits, self._waits = self._waits, deque()
        for _, done in waits:
            done()

    def _send(self, number: int, item: tuple[int, bytes, bool]) -> None:
        kind, content, urgent = item
        self._transmit(self.node, Packet(self.boot, self._reader, number, urgent, kind, content))

    def _resend(self) -> None:
        for number, item in enumerate(self._sent, self._first):
            self._send(number, item)
        self.resent += len(self._sent)

    def _watch(self) -> None:
        self._progress = self._first
        self._timer = self._runtime.call_later(self._delay, self._check)

    def _check(self) -> None:
        """Send packets again if there was no progress since `_watch`."""
        self._timer = None
        if not self._sent:
            self._delay = RESEND
            return
        if self._first == self._progress:
            self._delay = min(2 * self._delay, _RESEND_MAX)
            self._resend()
        else:
            self._delay = RESEND
        self._watch()
