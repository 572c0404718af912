"""Messages that a plugin client publishes together, and their reason codes."""

from typing import TYPE_CHECKING, Final

from hookmq.model.runtime import Promise
from hookmq.mqtt.properties import Properties
from hookmq.mqtt.reason_codes import ReasonCode

if TYPE_CHECKING:
    from hookmq.broker.plugin_mailbox import Done

EACH: Final = 64
"""Bytes to count for each waiting packet or message in addition to its content."""


class Run:
    """Consecutive messages of a batch that have the same topic, QoS, RETAIN flag and properties."""

    __slots__ = ("payloads", "properties", "qos", "retain", "topic")

    def __init__(self, topic: str, qos: int, retain: bool, properties: Properties) -> None:
        self.topic = topic
        self.qos = qos
        self.retain = retain
        self.properties = properties
        self.payloads: list[bytes] = []


class Batch:
    """A checked batch. `promise` completes with the reason codes once every message has one. `depth` is the recursion
    depth.

    A code remains UNSPECIFIED_ERROR if the client ends before the message is acknowledged.
    """

    __slots__ = ("at", "codes", "depth", "first", "left", "promise", "run", "runs", "size")

    def __init__(self, promise: Promise, depth: int) -> None:
        self.promise = promise
        self.depth = depth
        self.runs: list[Run] = []
        self.codes: list[ReasonCode] = []
        self.run = 0
        """The index of the current run."""
        self.first = 0
        """The number of messages in the runs before the current one."""
        self.at = 0
        """The number of messages of the current run that have been passed on."""
        self.left = 0
        """The number of messages without a reason code."""
        self.size = 0
        """The number of bytes by which the batch counts against the limit of waiting messages."""

    def __len__(self) -> int:
        return sum([len(one.payloads) for one in self.runs])

    def add(self, topic: str, qos: int, retain: bool, properties: Properties) -> list[bytes]:
        """Begin a run. Return the list that its payloads must be added to."""
        run = Run(topic, qos, retain, properties)
        self.runs.append(run)
        return run.payloads

    def close(self, size: int) -> None:
        """Expect a reason code for each message. Call this once, after the last message has been added."""
        self.size = size
        self.left = len(self)
        self.codes = [ReasonCode.UNSPECIFIED_ERROR] * self.left

    def next(self) -> None:
        """Move to the next run."""
        self.first += len(self.runs[self.run].payloads)
        self.run += 1
        self.at = 0

    def settle(self, first: int, end: int, code: ReasonCode) -> None:
        """Set the code of the messages from index `first` up to, but not including, `end`."""
        number = end - first
        if number == 1:
            self.codes[first] = code
        elif number == len(self.codes):
            self.codes = [code] * number
        else:
            for index in range(first, end):
                self.codes[index] = code
        self.left -= number

    def abandon(self) -> None:
        """Stop expecting codes for the messages that were not passed on, because the client has ended."""
        self.left -= len(self.codes) - self.first - self.at
        self.first, self.at, self.run = len(self.codes), 0, len(self.runs)
        self.finish()

    def finish(self) -> None:
        """Pass the codes to the caller once every message has one."""
        if self.left == 0 and not self.promise.done():
            self.promise.set_result(self.codes)


class Calls:
    """Messages published by consecutive single calls. They have the same topic, QoS and recursion depth, no RETAIN flag
    and no properties.
    """

    __slots__ = (
        "at", "depth", "done", "each", "given_qos", "most", "payloads", "qos", "room", "topic",
    )  # fmt: skip

    def __init__(self, topic: str, qos: int, depth: int, room: int, most: int) -> None:
        self.topic = topic
        self.qos = qos
        self.given_qos: object = qos
        """The QoS as an object, which is faster to compare with an argument."""
        self.depth = depth
        self.room = room
        """The largest payload that is known to fit in a packet."""
        self.most = most
        """The limit of waiting messages, in bytes."""
        self.each = len(topic) + EACH
        """The number of bytes by which a message counts against this limit, in addition to its payload."""
        self.payloads: list[bytes] = []
        self.done: dict[int, Done] = {}
        """The callbacks that get the reason codes, by the index of the message."""
        self.at = 0
        """The number of messages that have been passed on."""

    def add(self, payload: bytes, done: "Done | None") -> None:
        """Add a message. `done` is called with its reason code."""
        if done is not None:
            self.done[len(self.payloads)] = done
        self.payloads.append(payload)

    def take(self) -> "Done | None":
        """Pass on the next message. Return the callback for its reason code, or None."""
        at = self.at
        self.at = at + 1
        return self.done.pop(at, None) if self.done else None


class BatchPart:
    """One message of a batch. Its reason code arrives later."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch = batch
        self._index = index

    def settle(self, code: ReasonCode) -> None:
        """Set the code of the message."""
        self._batch.settle(self._index, self._index + 1, code)
        self._batch.finish()
