"""A service for managing queues: one plugin provides it, and another can offer it to operators.

A plugin offers a `QueueManager` in `Plugin.offered_services` under the name `SERVICE`. A queue stores each message until
a consumer in each of the queue's groups has settled it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, runtime_checkable

from hookmq.plugin import Message

SERVICE: Final = "queues"
"""The name of the service in `Plugin.offered_services`."""
MadeBy = Literal["configuration", "operator", "first_use"]
"""Where a queue's settings come from."""
MessageState = Literal["waiting", "delayed", "unacknowledged"]
"""Whether a message can be delivered now, can be delivered later, or is with a consumer."""


class QueueError(Exception):
    """A refused request. The message tells the operator why.

    `reason` is ``invalid`` (the value of `field` is invalid), ``missing`` (there is no such queue or group),
    ``conflict`` (the request conflicts with the current state) or ``failed`` (the disk or the store failed).
    """

    def __init__(
        self,
        reason: Literal["invalid", "missing", "conflict", "failed"],
        text: str,
        field: str = "",
    ) -> None:
        super().__init__(text)
        self.reason = reason
        self.field = field


@dataclass(frozen=True, slots=True)
class QueueConsumer:
    """A consumer in a group.

    - `unacknowledged`: the messages that it has received and not settled.
    - `timed_out`: how many of its messages have timed out since it last settled a message.
    - `stalled`: whether its messages keep timing out, or fill its `prefetch` so that it gets no more messages.
    - `active`: False while it waits for the group's active consumer to leave.
    """

    client_id: str
    filter: str
    unacknowledged: int
    timed_out: int = 0
    stalled: bool = False
    active: bool = True


@dataclass(frozen=True, slots=True)
class QueueGroup:
    """A group of consumers.

    - `unsettled`: the messages that the group has not settled; `unacknowledged` and `delayed` are among them.
    - `next`: the first offset that was never delivered to the group.
    - `oldest`: the age of the group's oldest unsettled message in seconds; 0 if there are none, None if not known yet.
    - `consumer_count`: the number of online consumers; `consumers` lists the first 100 at most.
    """

    name: str
    unsettled: int
    unacknowledged: int
    delayed: int
    next: int
    oldest: float | None
    paused: bool
    stalled: int
    consumer_count: int
    consumers: tuple[QueueConsumer, ...] = ()


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A queue's state.

    - `messages`: the number of messages that the slowest group has not settled; `bytes`: their approximate size.
    - `delayed`: messages that are not due yet, and therefore not among `messages`.
    - `end`: the offset of the next message.
    - `counts`: numbers of messages since the broker started, by outcome.
    - `settings`: the settings as JSON values.
    """

    name: str
    type: str
    made_by: MadeBy
    messages: int
    delayed: int
    bytes: int
    max_messages: int
    max_bytes: int
    on_full: str
    full: bool
    paused: bool
    end: int
    oldest: float | None
    dead_letter: str
    counts: Mapping[str, int]
    groups: tuple[QueueGroup, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueueMessage:
    """A message that a group has not settled.

    - `deliveries`: how often it was delivered to the group.
    - `client_id`: the client that currently holds the message, or None.
    - `due`: when a delayed message can be delivered, in epoch seconds, or None.
    """

    offset: int
    message: Message
    state: MessageState
    deliveries: int
    client_id: str | None = None
    due: float | None = None


@dataclass(frozen=True, slots=True)
class MessagePage:
    """A page of messages. To get the next page, pass `cursor` as `after`; it is None on the last page."""

    items: Sequence[QueueMessage]
    cursor: int | None


@dataclass(frozen=True, slots=True)
class RedriveRequest:
    """Which dead letters to move back to the queues that they came from. Empty values select all.

    - `group`: the group of the dead-letter queue for which they are settled; by default the first group.
    - `queue`: only dead letters from this queue.
    - `topic`: a filter for the topics to which they were published.
    - `reason`: why they are dead letters.
    - `older_than`: the minimum time since they became dead letters, in seconds.
    - `limit`: the maximum number of messages to move; None means all.
    - `rate`: the maximum number of messages to move per second.
    """

    group: str = ""
    queue: str = ""
    topic: str = ""
    reason: str = ""
    older_than: float = 0.0
    limit: int | None = None
    rate: float = 1000.0


@dataclass(frozen=True, slots=True)
class RedriveStatus:
    """The progress of a redrive.

    - `examined`: the number of messages compared with the request so far; `total`: the number that existed when the
      redrive began.
    - `moved`: messages that are back in their original queue. Each left the dead-letter queue in the same commit.
    - `skipped`: messages that match but cannot be moved; `note` says why the last of them could not.
    - `waiting_for`: the full queue that the redrive is waiting for, or empty.
    """

    state: Literal["idle", "running", "done", "stopped", "failed"] = "idle"
    examined: int = 0
    total: int = 0
    moved: int = 0
    skipped: int = 0
    waiting_for: str = ""
    note: str = ""
    started_at: float | None = None
    ended_at: float | None = None


@runtime_checkable
class QueueManager(Protocol):
    """Manages queues. Call the methods only on the event loop. Each of them raises QueueError.

    A change is stored when its awaitable completes. An empty `group` means all of the queue's groups, unless a method's
    description says otherwise.
    """

    def list_queues(self) -> Sequence[QueueStatus]:
        """Return all queues by name, without their consumers and settings."""

    def show_queue(self, name: str) -> QueueStatus:
        """Return one queue."""

    async def create_queue(self, name: str, settings: Mapping[str, Any]) -> QueueStatus:
        """Create a queue. The settings are the same as in the plugin's configuration, as JSON values."""

    async def change_queue(self, name: str, settings: Mapping[str, Any]) -> QueueStatus:
        """Change some of a queue's settings. The queue must not be in the configuration."""

    async def delete_queue(self, name: str, force: bool) -> int:
        """Delete a queue that is not in the configuration, and return the number of messages it held. Without `force`,
        a queue with unsettled messages is not deleted.
        """

    async def peek_queue(self, name: str, group: str, after: int | None, limit: int) -> MessagePage:
        """Return unsettled messages by offset, starting after the offset `after`. They stay in the queue. An empty
        `group` means the first group.
        """

    async def purge_queue(self, name: str, group: str) -> int:
        """Drop all messages that no consumer has, and return their number. Delayed messages are dropped only if `group`
        is empty.
        """

    async def pause_queue(self, name: str, group: str, paused: bool) -> None:
        """Pause or resume deliveries. This lasts until the next such call, even across a restart. A group gets messages
        unless the group or its queue is paused."""

    async def seek_queue(self, name: str, group: str, position: str) -> int:
        """Move a stream's group to a position, and return the offset. `group` must not be empty."""

    def start_redrive(self, name: str, request: RedriveRequest) -> RedriveStatus:
        """Start moving dead letters back. A queue can have only one redrive at a time."""

    def redrive_status(self, name: str) -> RedriveStatus:
        """Return the progress of the running redrive, or of the last one."""

    def stop_redrive(self, name: str) -> RedriveStatus:
        """Stop the redrive. Messages already moved stay where they are."""
