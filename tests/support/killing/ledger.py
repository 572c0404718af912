"""Records of messages sent, acknowledged and delivered, used to compute a broker's losses.

A publisher numbers its messages on each topic from 1. The topic and number determine the payload, so that a receiver can
identify each message and detect corruption.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

_PATTERN = bytes(range(256)) * 80
_LARGE = 20_000


@dataclass
class Counts:
    """The results of a run. Each count from `lost` on says how often a guarantee was broken. For a correct broker, all
    of these are 0.
    """

    kills: int = 0
    early: int = 0
    """Additional kills of a broker that was not ready yet."""
    published: int = 0
    acknowledged: int = 0
    """Messages acknowledged by PUBACK or PUBCOMP."""
    due: int = 0
    """Acknowledged messages, counted once for each session that should have received them."""
    repeated: int = 0
    """QoS 1 messages delivered more than once, which is allowed."""
    returns: int = 0
    """How often a client reconnected expecting its session."""
    retained_checks: int = 0
    wills: int = 0
    """Wills that should have been delivered, counted once for each session."""
    lost: int = 0
    """Due messages that never arrived."""
    duplicated: int = 0
    """QoS 2 messages delivered more than once."""
    reordered: int = 0
    """Messages that first arrived after a later message of the same publisher and topic."""
    corrupt: int = 0
    """Messages with the wrong payload, and messages that were never sent."""
    sessions_lost: int = 0
    """Reconnections (`returns`) that found no session."""
    retained_wrong: int = 0
    """Checks (`retained_checks`) that found a message older than the last acknowledged one, or one that was never sent.
    """
    wills_lost: int = 0
    wills_wrong: int = 0
    """Wills delivered twice at QoS 2, or after their client had reconnected without a will."""
    refused: int = 0
    """PUBLISH, SUBSCRIBE or CONNECT packets refused with an error, and DISCONNECT packets from the broker."""

    def broken(self) -> dict[str, int]:
        """Return the broken guarantees, and how often each was broken."""
        return {name: count for name, count in asdict(self).items() if name in BROKEN and count}


_NAMES = [field.name for field in fields(Counts)]
BROKEN = frozenset(_NAMES[_NAMES.index("lost") :])


class Stream:
    """The messages of one publisher on one topic."""

    def __init__(
        self, topic: str, qos: int, retained: bool = False, cleared: bool = False, delay: int = 0
    ) -> None:
        self.topic = topic
        self.target = f"$delayed/{delay}/{topic}" if delay else topic
        """The topic of PUBLISH. The plugin `delayed` publishes to `topic` after `delay` seconds."""
        self.ordered = not delay
        """Whether the messages must arrive in order. Those that are due in the same second need not."""
        self.qos = qos
        self.retained = retained
        self.sent = 0
        self.last = 0
        """The number of the newest acknowledged message."""
        self.acked = bytearray(1)
        """For each message number, 1 if the message was acknowledged, else 0."""
        self._cleared = cleared

    def clears(self, number: int) -> bool:
        """Return whether this message clears the retained message."""
        return self._cleared and number % 7 == 3

    def body(self, number: int) -> bytes:
        """Return the payload of a message."""
        if self.clears(number):
            return b""
        size = _LARGE if number % 97 == 0 else number * 7919 % 700
        start = number % 256
        return b"%d %s " % (number, self.topic.encode()) + _PATTERN[start : start + size]

    def next(self) -> int:
        """Return the number of the next message to send."""
        self.sent += 1
        self.acked.append(0)
        return self.sent

    def acknowledge(self, number: int) -> None:
        """Record that a message was acknowledged."""
        self.acked[number] = 1
        self.last = max(self.last, number)


class Seen:
    """The messages of a stream that one session received. Every message sent after its creation must arrive."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.first = stream.sent
        self.times = bytearray(stream.sent + 1)
        """For each message number, how often the message was delivered."""
        self.newest = 0
        self.reordered = 0
        self._whole = stream.sent
        """No due message up to this number is missing. `lost` skips these messages, so that long runs stay fast."""

    def take(self, number: int) -> None:
        """Record that a message was delivered."""
        times = self.times
        if number >= len(times):
            times.extend(bytes(number + 1 - len(times)))
        if not times[number]:
            if number < self.newest and self.stream.ordered:
                self.reordered += 1
            self.newest = max(self.newest, number)
        times[number] = min(255, times[number] + 1)

    def due(self, after: int | None = None) -> Iterator[int]:
        """Yield the numbers of the messages that must have been delivered."""
        acked, stream = self.stream.acked, self.stream
        first = self.first if after is None else after
        return (number for number in range(first + 1, stream.sent + 1) if acked[number])

    def lost(self) -> int:
        """Return how many due messages were not delivered."""
        times = self.times
        size = len(times)
        whole = self._whole
        while whole + 1 < size and times[whole + 1]:
            whole += 1
        self._whole = whole
        return sum(1 for number in self.due(whole) if number >= size or not times[number])

    def again(self) -> int:
        """Return the number of repeated deliveries."""
        return sum(times - 1 for times in self.times if times > 1)


class Ledger:
    """What all clients observed in a run."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.streams: dict[str, Stream] = {}
        self.wills: dict[str, bool] = {}
        """For each topic, True if the will must arrive and False if it must not. For other topics, either outcome is
        correct."""
        self.refusals: list[str] = []
        """Descriptions of the first refusals that `Counts.refused` counts."""
        self.dying = False
        """Whether the broker is being killed. If its writer was killed first, it may still refuse clients as
        unavailable.
        """
        self._waiting: list[asyncio.Future[None]] = []

    def stream(
        self, topic: str, qos: int, retained: bool = False, cleared: bool = False, delay: int = 0
    ) -> Stream:
        """Create a stream."""
        made = self.streams[topic] = Stream(topic, qos, retained, cleared, delay)
        return made

    def changed(self) -> None:
        """Wake all callers of `until`, because a condition may have changed."""
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)

    async def until(self, true: Callable[[], bool], seconds: float) -> bool:
        """Wait until `true()` returns True. Return False after `seconds`."""
        loop = asyncio.get_running_loop()
        end = time.monotonic() + seconds
        while not true():
            left = end - time.monotonic()
            if left <= 0:
                return False
            waiter = loop.create_future()
            self._waiting.append(waiter)
            await asyncio.wait([waiter], timeout=min(left, 3600))
        return True

    def to_json(self) -> dict[str, Any]:
        """Return the counts by name."""
        return asdict(self.counts)
