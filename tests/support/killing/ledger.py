"""What was sent, what was acknowledged and what arrived; from these, what a broker lost.

A publisher counts the messages of each topic from 1. A message's number and topic say what its payload must be, so that
one that arrives tells by itself which it is and whether it is whole.
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
    """What a run came to. What is below `lost` is a broken promise, and 0 for a broker that keeps its word."""

    kills: int = 0
    early: int = 0
    """Kills besides, of a broker that had not yet said that it is ready."""
    published: int = 0
    acknowledged: int = 0
    """PUBACK or PUBCOMP came."""
    due: int = 0
    """Acknowledged messages, once for each session that had to get them."""
    repeated: int = 0
    """Delivered more than once at QoS 1, which may be."""
    returns: int = 0
    """Times that a client came back to a session that it had."""
    retained_checks: int = 0
    wills: int = 0
    """Wills that had to come, once for each session that had to get them."""
    lost: int = 0
    """Of `due`, what never came."""
    duplicated: int = 0
    """Delivered more than once at QoS 2."""
    reordered: int = 0
    """Came for the first time after a later one of the same publisher and topic."""
    corrupt: int = 0
    """Arrived with another payload, or was never sent."""
    sessions_lost: int = 0
    """Of `returns`, those that found no session."""
    retained_wrong: int = 0
    """Of `retained_checks`, those that found something older than what was acknowledged, or what was never sent."""
    wills_lost: int = 0
    wills_wrong: int = 0
    """Came twice at QoS 2, or although the client had come back without one."""
    refused: int = 0
    """PUBLISH, SUBSCRIBE or CONNECT answered with an error, or DISCONNECT from the broker."""

    def broken(self) -> dict[str, int]:
        """The promises that were not kept."""
        return {name: count for name, count in asdict(self).items() if name in BROKEN and count}


_NAMES = [field.name for field in fields(Counts)]
BROKEN = frozenset(_NAMES[_NAMES.index("lost") :])


class Stream:
    """The messages of one publisher on one topic."""

    def __init__(self, topic: str, qos: int, retained: bool = False, cleared: bool = False) -> None:
        self.topic = topic
        self.qos = qos
        self.retained = retained
        self.sent = 0
        self.last = 0
        """The newest that was acknowledged."""
        self.acked = bytearray(1)
        """By number: 1 when it was acknowledged."""
        self._cleared = cleared

    def clears(self, number: int) -> bool:
        """Whether this one takes the retained message away."""
        return self._cleared and number % 7 == 3

    def body(self, number: int) -> bytes:
        """The payload of a message."""
        if self.clears(number):
            return b""
        size = _LARGE if number % 97 == 0 else number * 7919 % 700
        start = number % 256
        return b"%d %s " % (number, self.topic.encode()) + _PATTERN[start : start + size]

    def next(self) -> int:
        """The number of a message that is about to be sent."""
        self.sent += 1
        self.acked.append(0)
        return self.sent

    def acknowledge(self, number: int) -> None:
        """It was acknowledged."""
        self.acked[number] = 1
        self.last = max(self.last, number)


class Seen:
    """What one session was given of a stream: all that is sent from now on is due."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.first = stream.sent
        self.times = bytearray(stream.sent + 1)
        """By number: how often it was delivered."""
        self.newest = 0
        self.reordered = 0
        self._whole = stream.sent
        """Everything up to here was delivered: not looked at again, or long runs would take for ever."""

    def take(self, number: int) -> None:
        """It was delivered."""
        times = self.times
        if number >= len(times):
            times.extend(bytes(number + 1 - len(times)))
        if not times[number]:
            if number < self.newest:
                self.reordered += 1
            self.newest = max(self.newest, number)
        times[number] = min(255, times[number] + 1)

    def due(self, after: int | None = None) -> Iterator[int]:
        """What must have been delivered."""
        acked, stream = self.stream.acked, self.stream
        first = self.first if after is None else after
        return (number for number in range(first + 1, stream.sent + 1) if acked[number])

    def lost(self) -> int:
        """How many of these were not."""
        times = self.times
        size = len(times)
        whole = self._whole
        while whole + 1 < size and times[whole + 1]:
            whole += 1
        self._whole = whole
        return sum(1 for number in self.due(whole) if number >= size or not times[number])

    def again(self) -> int:
        """Deliveries beyond the first."""
        return sum(times - 1 for times in self.times if times > 1)


class Ledger:
    """What all clients of a run were told."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.streams: dict[str, Stream] = {}
        self.wills: dict[str, bool] = {}
        """By topic, whether a will must come (True) or must not (False); of others either is right."""
        self.refusals: list[str] = []
        """The first of them."""
        self.dying = False
        """Whether the broker is being killed: one whose writer went first may still say that it is not available."""
        self._waiting: list[asyncio.Future[None]] = []

    def stream(self, topic: str, qos: int, retained: bool = False, cleared: bool = False) -> Stream:
        """A new stream."""
        made = self.streams[topic] = Stream(topic, qos, retained, cleared)
        return made

    def changed(self) -> None:
        """Something happened that `until` may wait for."""
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)

    async def until(self, true: Callable[[], bool], seconds: float) -> bool:
        """Wait until something is true; False when it is not after `seconds`."""
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
        """The counts by name."""
        return asdict(self.counts)
