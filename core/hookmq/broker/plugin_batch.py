"""Messages that a plugin client publishes with one call, and their reason codes."""

from hookmq.model.runtime import Promise
from hookmq.mqtt.properties import EMPTY, Properties
from hookmq.mqtt.reason_codes import ReasonCode

Special = tuple[bool, Properties]
"""The RETAIN flag and the properties of a message, if they are not the default ones."""


class Batch:
    """A checked batch. `promise` gets the reason codes once every message has one. `depth` is the depth of recursion.

    The lists have an item for each message. A code remains UNSPECIFIED_ERROR if the client ends before the message is
    acknowledged.
    """

    __slots__ = (
        "at", "codes", "depth", "left", "levels", "payloads", "promise", "special", "topics",
    )  # fmt: skip

    def __init__(self, promise: Promise, depth: int) -> None:
        self.promise = promise
        self.depth = depth
        self.topics: list[str] = []
        self.payloads: list[bytes] = []
        self.levels: list[int] = []
        """The QoS of each message."""
        self.special: dict[int, Special] = {}
        """RETAIN and properties, by index. Most messages have neither."""
        self.codes: list[ReasonCode] = []
        self.at = 0
        """The number of messages that were handed on."""
        self.left = 0
        """The number of messages without a reason code."""

    def close(self) -> None:
        """Expect a reason code for each message. Call this once, after the last message was added."""
        self.left = len(self.topics)
        self.codes = [ReasonCode.UNSPECIFIED_ERROR] * self.left

    def special_of(self, index: int) -> Special:
        """Return the RETAIN flag and the properties of a message."""
        return self.special.get(index, (False, EMPTY))

    def settle(self, first: int, end: int, code: ReasonCode) -> None:
        """Set the code of the messages from index `first` to before `end`."""
        codes = self.codes
        for index in range(first, end):
            codes[index] = code
        self.left -= end - first

    def abandon(self) -> None:
        """Expect no codes for the messages that were not handed on, because the client has ended."""
        self.left -= len(self.topics) - self.at
        self.at = len(self.topics)
        self.finish()

    def finish(self) -> None:
        """Pass the codes to the caller if no message is left."""
        if self.left == 0 and not self.promise.done():
            self.promise.set_result(self.codes)


class BatchPart:
    """One message of a batch, whose reason code comes later."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: Batch, index: int) -> None:
        self._batch = batch
        self._index = index

    def settle(self, code: ReasonCode) -> None:
        """Set the code of the message."""
        self._batch.settle(self._index, self._index + 1, code)
        self._batch.finish()
