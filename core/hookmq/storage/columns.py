"""Collect the messages of a commit in columns, with a list for each field.

A journal that stores many messages at once does not need an object for each of them. It offers `MessageColumns`, and
the broker adds the fields of each message to them. See `hookmq.storage.protocols.Columnar`.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from hookmq.model.message import Message
from hookmq.mqtt.properties import EMPTY, Properties

_EMPTY: Final = EMPTY  # compiled code reads a module's own constants directly
CLIENT: Final = "client"
"""The origin of a message that is not in `MessageColumns.origins`."""
NO_LIMIT: Final = 1 << 60


def _extent(properties: Properties) -> int:
    return properties.extent()


class Room:
    """The size of the messages that a journal has collected, and the size at which the journal may be full.

    Each message adds to `used`: `record`, the length of its payload, `text` bytes for each character of its topic and
    client id, and the size of its properties, which `measure` returns. The first message in empty columns also adds
    `batch`.
    """

    __slots__ = ("batch", "limit", "measure", "record", "text", "used")

    def __init__(
        self,
        record: int = 0,
        text: int = 1,
        batch: int = 0,
        measure: Callable[[Properties], int] = _extent,
    ) -> None:
        self.used = 0
        self.limit = NO_LIMIT
        self.record = record
        self.text = text
        self.batch = batch
        self.measure = measure


class MessageColumns:
    """Messages in order, with a list for each field. Fields that few messages have are dictionaries by row number.

    All columns of a journal may share one `room`, which counts their sizes.
    """

    __slots__ = (
        "expires", "origins", "payloads", "properties", "qos", "retained", "room", "senders", "times", "topics",
    )  # fmt: skip

    def __init__(self, room: Room | None = None) -> None:
        self.room = room
        self.topics: list[str] = []
        self.payloads: list[bytes] = []
        self.qos: list[int] = []
        self.senders: list[str | None] = []
        self.times: list[float] = []
        """When each message arrived, in epoch seconds."""
        self.expires: dict[int, float] = {}
        """The expiry times of messages that have one, in epoch seconds."""
        self.retained: dict[int, bool] = {}
        """The rows of messages with RETAIN."""
        self.properties: dict[int, Properties] = {}
        """The properties of messages that have any."""
        self.origins: dict[int, str] = {}
        """The origins of messages whose origin is not `CLIENT`."""

    def __len__(self) -> int:
        return len(self.topics)

    def add(
        self,
        topic: str,
        payload: bytes,
        qos: int,
        properties: Properties,
        sender: str | None,
        received_at: float,
        expires_at: float | None,
    ) -> None:
        """Add a message that a client published without RETAIN. The arguments are the fields of `Message`."""
        topics = self.topics
        room = self.room
        if room is not None:
            text = len(topic)
            if sender is not None:
                text += len(sender)
            room.used += room.record + len(payload) + room.text * text
            if not topics:
                room.used += room.batch
        if properties is not _EMPTY:
            self.properties[len(topics)] = properties
            if room is not None:
                room.used += room.measure(properties)
        if expires_at is not None:
            self.expires[len(topics)] = expires_at
        topics.append(topic)
        self.payloads.append(payload)
        self.qos.append(qos)
        self.senders.append(sender)
        self.times.append(received_at)

    def add_message(self, message: Message) -> None:
        """Add a `Message` of any origin, with or without RETAIN."""
        row = len(self.topics)
        if message.retain:
            self.retained[row] = True
        if message.origin != CLIENT:
            self.origins[row] = message.origin
        self.add(
            message.topic, message.payload, message.qos, message.properties, message.sender, message.received_at,
            message.expires_at,
        )  # fmt: skip

    def microseconds(self) -> tuple[list[int], int, int]:
        """Return when each message arrived, in microseconds since the epoch, and the smallest and largest of these
        numbers. There must be at least one message.
        """
        found: list[int] = []
        last = self.times[0]
        low = high = int(last * 1e6)
        number: Any = low  # as an object, compiled code creates it once for each time
        for time in self.times:
            if time != last:  # messages that arrived together have the same time
                last = time
                micros = int(time * 1e6)
                if micros < low:
                    low = micros
                elif micros > high:
                    high = micros
                number = micros
            found.append(number)
        return found, low, high

    def take(self) -> "MessageColumns":
        """Move all messages to a new object and return that. The room does not change."""
        taken = MessageColumns()
        _move(self, taken)
        _move(MessageColumns(), self)
        return taken

    def part(self, start: int, stop: int) -> "MessageColumns":
        """Return a copy of the rows from `start` to `stop - 1`."""
        found = MessageColumns()
        found.topics = self.topics[start:stop]
        found.payloads = self.payloads[start:stop]
        found.qos = self.qos[start:stop]
        found.senders = self.senders[start:stop]
        found.times = self.times[start:stop]
        found.expires = {k - start: v for k, v in self.expires.items() if start <= k < stop}
        found.retained = {k - start: v for k, v in self.retained.items() if start <= k < stop}
        found.properties = {k - start: v for k, v in self.properties.items() if start <= k < stop}
        found.origins = {k - start: v for k, v in self.origins.items() if start <= k < stop}
        return found


def _move(one: MessageColumns, other: MessageColumns) -> None:
    other.topics = one.topics
    other.payloads = one.payloads
    other.qos = one.qos
    other.senders = one.senders
    other.times = one.times
    other.expires = one.expires
    other.retained = one.retained
    other.properties = one.properties
    other.origins = one.origins


def collect(messages: Iterable[Message]) -> MessageColumns:
    """Return the messages as columns."""
    found = MessageColumns()
    for message in messages:
        found.add_message(message)
    return found
