"""Retained messages: every node keeps all of them, and the log has the last one of each topic.

The entry with the highest sequence wins. This node's own changes are in its memory before they are in the log, so entries
of other nodes wait until the sequence of an own change of the same topic is known.
"""

from collections import deque
from collections.abc import Callable
from math import ceil, inf
from typing import Final, NamedTuple

from hookmq.cluster_api import Node
from hookmq.plugin import ClientRecord, Message, Runtime
from hookmq.storage_api import (
    CommitId,
    DropPublisher,
    DropRetained,
    PutPublisher,
    PutRetained,
)

from hookmq_cluster.engine import TOMBSTONE, Engine, Entry, Stored, Unavailable
from hookmq_cluster.frames import (
    FrameError,
    decode_client,
    decode_message,
    decode_value,
    encode_client,
    encode_message,
    encode_value,
)
from hookmq_cluster.names import Names

VERSION: Final = 1
SLICE: Final = 500
"""Entries to apply in one turn."""
BACKLOG: Final = 20_000
"""Entries that may wait. Reading pauses above it."""
_EARLY: Final = 0.01
"""Seconds by which the broker may expire a message early."""
_RETRY: Final = 1.0
_COMMITS: Final = 3
"""The number of commits during which a change may wait for its own commit."""


class RetainedEntry(NamedTuple):
    """An entry of the log: who wrote it, the topic, its message or None, and the message's publisher or None."""

    node: str
    boot: str
    topic: str
    message: Message | None
    publisher: ClientRecord | None


def encode_retained(entry: RetainedEntry) -> bytes:
    """Return the stored form of an entry."""
    node, boot, topic, message, publisher = entry
    return encode_value(
        (
            VERSION, node, boot, topic,
            None if message is None else encode_message(message),
            None if publisher is None else encode_client(publisher),
        )
    )  # fmt: skip


def decode_retained(data: bytes) -> RetainedEntry:
    """Return the entry in `data`. Raises FrameError if it is damaged or has another version."""
    value = decode_value(data)
    if type(value) is not tuple or not value or value[0] != VERSION:
        raise FrameError("not a retained message of a known version")
    if len(value) != 6 or not all(type(text) is str for text in value[1:4]):
        raise FrameError("expected version, node, boot, topic, message, publisher")
    _, node, boot, topic, fields, client = value
    message = None if fields is None else decode_message(fields)
    if message is not None and message.topic != topic:
        raise FrameError(
            f"the message has the topic {message.topic[:40]!r}, the entry {topic[:40]!r}"
        )
    return RetainedEntry(
        node, boot, topic, message, None if client is None else decode_client(client)
    )


def log_entry(names: Names, now: float, entry: RetainedEntry) -> Entry:
    """Return the entry of the log for `entry`. The log deletes it once the message has expired, or some time after a
    topic was cleared. `now` is in epoch seconds."""
    message = entry.message
    ttl = TOMBSTONE if message is None else 0
    if message is not None and message.expires_at is not None:
        ttl = max(1, ceil(message.expires_at - now))
    return Entry(names.retained(entry.topic), encode_retained(entry), replace=True, ttl=ttl)


class Retained:
    """Keeps the retained messages of this node and of the log the same.

    `ready` is called once everything that was in the log at the start is applied. `invalid` counts entries that cannot be
    read; they are skipped.
    """

    def __init__(
        self,
        engine: Engine,
        names: Names,
        runtime: Runtime,
        node: str,
        boot: str,
        ready: Callable[[], None],
    ) -> None:
        self.invalid = 0
        self.is_ready = False
        self._engine = engine
        self._names = names
        self._runtime = runtime
        self._me = (node, boot)
        self._ready = ready
        self._node: Node | None = None
        self._publishers: dict[int, ClientRecord] = {}
        self._expiring: dict[str, float] = {}
        """When the retained messages expire, for those that do."""
        self._own: dict[str, RetainedEntry] = {}
        """The last own change of each topic in the commit that is under way."""
        self._too_large: set[str] = set()
        """The topics in `_own` whose message does not fit into an entry of the log. It is cleared instead."""
        self._held: dict[str, tuple[int, RetainedEntry]] = {}
        """For topics in `_own`: the last entry of another node, and its sequence."""
        self._verifying: dict[str, object] = {}
        """Topics whose last entry is being read."""
        self._committed: dict[str, int] = {}
        """Own changes that `follow` has not passed yet: the sequence of their commit's last entry."""
        self._in_order: deque[tuple[int, str]] = deque()
        """The same, by sequence."""
        self._recent: deque[set[str]] = deque([set()], maxlen=_COMMITS)
        """Topics that were changed by entries of other nodes, in the time between two commits."""
        self._waiting: deque[Stored] = deque()
        self._scheduled = False
        self._last = 0
        """The last sequence that was read."""
        self._stop: Callable[[], None] | None = None
        self._closed = False

    def attach(self, node: Node) -> None:
        """Keep the messages in `node`."""
        self._node = node

    def start(self) -> None:
        """Read all retained messages, and follow the log."""
        self._read()

    def close(self) -> None:
        """Stop following the log."""
        self._closed = True
        self._waiting.clear()
        if self._stop is not None:
            self._stop()
            self._stop = None

    # --- own changes -------------------------------------------------------------------------------------------------

    def entries(
        self, record: PutRetained | DropRetained | PutPublisher | DropPublisher
    ) -> list[Entry]:
        """Return what must be part of the same commit as `record`. The store calls this for the records of one commit,
        then `committed`, and only then for those of the next one."""
        if isinstance(record, PutPublisher):
            self._publishers[record.id] = record.client
            return []
        if isinstance(record, DropPublisher):
            self._publishers.pop(record.id, None)
            return []
        if isinstance(record, DropRetained):
            if self._expiring.pop(record.topic, inf) <= self._runtime.time() + _EARLY:
                return []  # The message has expired, on all nodes. A newer one must not be cleared.
            entry = RetainedEntry(*self._me, record.topic, None, None)
            return [self._change(entry)]
        message = record.message
        publisher = self._publisher(record)
        self._note_expiry(message)
        made = self._change(RetainedEntry(*self._me, message.topic, message, publisher))
        return [made if len(made.data) <= self._engine.max_entry else self._refuse(message, made)]

    def _refuse(self, message: Message, made: Entry) -> Entry:
        """Clear the topic on all nodes, also on this one, which has retained the message already."""
        self._runtime.log(
            "warning", "cluster.retained_too_large", topic=message.topic, bytes=len(made.data),
            limit=self._engine.max_entry,
        )  # fmt: skip
        self._expiring.pop(message.topic, None)
        made = self._change(RetainedEntry(*self._me, message.topic, None, None))
        self._too_large.add(message.topic)
        return made

    def _publisher(self, record: PutRetained) -> ClientRecord | None:
        if not record.publisher:
            return None
        known = self._publishers.get(record.publisher)
        if known is not None:
            return known
        # Without a publisher, the message would not be authorized again. So name one that nobody has authenticated.
        self._runtime.log(
            "error",
            "cluster.publisher_unknown",
            topic=record.message.topic,
            publisher=record.publisher,
        )
        return ClientRecord(record.message.sender or "", 5)

    def _note_expiry(self, message: Message) -> None:
        if message.expires_at is not None and message.payload:
            self._expiring[message.topic] = message.expires_at
        else:
            self._expiring.pop(message.topic, None)

    def _change(self, entry: RetainedEntry) -> Entry:
        self._own[entry.topic] = entry
        self._too_large.discard(entry.topic)
        self._verifying.pop(entry.topic, None)
        return log_entry(self._names, self._runtime.time(), entry)

    def committed(self, commit: CommitId, last: int) -> None:
        """Note that the own changes since the last call are committed. `last` is the sequence of the commit's last
        entry."""
        own, self._own = self._own, {}
        refused, self._too_large = self._too_large, set()
        recent = set[str]().union(*self._recent)
        self._recent.append(set())
        for topic, entry in own.items():
            held = self._held.pop(topic, None)
            if held is not None and held[0] > last:
                self._apply(held[1])
                continue
            if last > self._last:
                self._committed[topic] = last
                self._in_order.append((last, topic))
            if held is not None:
                self._verify(topic)
            if topic in recent or topic in refused:
                self._apply(entry)

    def _verify(self, topic: str) -> None:
        """Read which entry of a topic is the last one. A large commit has several parts, so `last` does not tell."""
        token = self._verifying[topic] = object()

        def read(stored: Stored | None | Unavailable) -> None:
            if self._closed or self._verifying.get(topic) is not token:
                return
            if isinstance(stored, Unavailable):
                self._runtime.call_later(_RETRY, lambda: self._verify(topic))
                return
            del self._verifying[topic]
            entry = self._decode(stored) if stored is not None else None
            if entry is not None and (entry.node, entry.boot) != self._me:
                self._apply(entry)

        self._engine.last(self._names.retained(topic), read, exact=True)

    # --- changes of other nodes --------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Read the next page at the start."""

        def read(page: list[Stored] | Unavailable) -> None:
            if self._closed:
                return
            if isinstance(page, Unavailable):
                self._runtime.call_later(_RETRY, self._read)
            elif page:
                self._waiting.extend(page)
                self._schedule()
            else:
                self._follow()
                self.is_ready = True
                self._ready()

        self._engine.read([self._names.retained_messages], self._last, read)

    def _follow(self) -> None:
        self._stop = self._engine.follow([self._names.retained_messages], self._last, self._receive)

    def _receive(self, stored: Stored) -> None:
        if self._closed or self._stop is None:
            return
        if len(self._waiting) >= BACKLOG:
            # Read it again later.
            self._stop()
            self._stop = None
            return
        self._waiting.append(stored)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._runtime.call_soon(self._work)

    def _work(self) -> None:
        """Apply a slice of the waiting entries."""
        self._scheduled = False
        for _ in range(min(SLICE, len(self._waiting))):
            self._read_entry(self._waiting.popleft())
        if self._closed:
            return
        if self._waiting:
            self._schedule()
        elif not self.is_ready:
            self._read()
        elif self._stop is None:
            self._follow()

    def _read_entry(self, stored: Stored) -> None:
        sequence = stored.sequence
        if sequence <= self._last:
            return
        self._last = sequence
        while self._in_order and self._in_order[0][0] < sequence:
            last, topic = self._in_order.popleft()
            if self._committed.get(topic) == last:
                del self._committed[topic]
        entry = self._decode(stored)
        if entry is None:
            return
        topic = entry.topic
        if (entry.node, entry.boot) == self._me:
            return
        if topic in self._own:
            self._held[topic] = (sequence, entry)
        elif self._committed.get(topic, 0) < sequence:
            self._verifying.pop(topic, None)
            self._apply(entry)

    def _decode(self, stored: Stored) -> RetainedEntry | None:
        try:
            return decode_retained(stored.data)
        except FrameError as error:
            self.invalid += 1
            self._runtime.log(
                "error", "cluster.retained_invalid", subject=stored.subject, sequence=stored.sequence,
                reason=str(error),
            )  # fmt: skip
            return None

    def _apply(self, entry: RetainedEntry) -> None:
        self._recent[-1].add(entry.topic)
        node = self._node
        if node is None:
            return
        message = entry.message
        if message is None or (message.expires_at or inf) <= self._runtime.time():
            message = Message(entry.topic, b"", retain=True)
        self._note_expiry(message)
        publisher = entry.publisher
        try:
            node.retain(message, None if publisher is None else publisher.client())
        except Exception as error:
            self.invalid += 1
            self._runtime.log("error", "cluster.retain_failed", topic=entry.topic, traceback=error)
