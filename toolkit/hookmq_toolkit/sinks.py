"""A service for managing sinks: one plugin provides it, and another can offer it to operators.

A plugin offers a `SinkManager` in `Plugin.offered_services` under the name `SERVICE`. A sink stores messages until it has
written them to its target, such as a database.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, runtime_checkable

SERVICE: Final = "sinks"
"""The name of the service in `Plugin.offered_services`."""
SinkState = Literal["starting", "active", "retrying", "failed", "paused", "disabled"]
"""The state of a sink. `retrying` means that the target does not respond, and `failed` that an operator must act.

`paused` means that an operator stopped the sink, and `disabled` that it stopped itself. Both last until it is resumed."""


class SinkError(Exception):
    """A refused request. The message tells the operator why.

    `reason` is ``invalid`` (the value of `field` is invalid), ``missing`` (there is no such sink), ``conflict`` (the
    request conflicts with the current state) or ``failed`` (the disk or the sink's process failed).
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
class SinkLane:
    """The state of one lane of a sink.

    - `waiting`: the number of messages that the lane has read from the log but not finished.
    - `oldest`: the age of the oldest of these messages in seconds, or None if there are none.
    """

    state: str
    reason: str
    waiting: int
    oldest: float | None


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """The state of a sink.

    - `reason`: why the sink is retrying, failed or disabled; empty otherwise.
    - `exactly_once`: whether the target stores the sink's position, so that the target gets each message only once.
    - `cursor`: the offset of the first message that is not done; `end`: the offset of the next message.
    - `lag`: the number of messages that are not done; `lag_seconds`: the age of the oldest one, or None if not known
      yet.
    - `bytes`: the size of the stored messages; `max_bytes`: its limit.
    - `counts`: counters since the broker started: `written`, `batches`, `write_seconds`, `failures`, `dead_letters`,
      `dropped` and `restarts`.
    - `dead_letters`: the number of dead letters on disk.
    - `last_error`: the last `reason` since the broker started; `last_error_at`: when it was last reported, in epoch
      seconds.
    """

    name: str
    driver: str
    topics: tuple[str, ...]
    state: SinkState
    reason: str
    exactly_once: bool
    cursor: int
    end: int
    lag: int
    lag_seconds: float | None
    bytes: int
    max_bytes: int
    on_full: str
    full: bool
    dead_letters: int
    counts: Mapping[str, float]
    driver_counts: Mapping[str, float] = field(default_factory=dict)
    lanes: Sequence[SinkLane] = ()
    last_error: str = ""
    last_error_at: float | None = None


@dataclass(frozen=True, slots=True)
class SinkProblem:
    """A problem that the test of a sink found: the setting of the target, a description, and how to correct it."""

    key: str
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class SinkDeadLetter:
    """A message that the target did not accept.

    - `number`: its position among the dead letters of the sink.
    - `reason`: why the target did not accept it; `at`: when that happened, in epoch seconds.
    - `event`: the type of the event, if the sink sends events; empty for a message. If an event has no message,
      `payload` holds the event's data as JSON, and `topic` is empty.
    """

    number: int
    id: str
    offset: int
    topic: str
    payload: bytes
    client_id: str | None
    key: str | None
    reason: str
    at: float
    event: str = ""


@dataclass(frozen=True, slots=True)
class SinkDelivery:
    """An attempt to send an event.

    - `id`, `event`: the id and the type of the event.
    - `at`: when the attempt ended, in epoch seconds; `seconds`: how long it took.
    - `attempt`: 1 for the first attempt.
    - `result`: ``arrived``, ``again`` (it will be retried), ``refused`` (the target will never accept it) or ``gone``
      (the target no longer accepts anything).
    - `reason`: why the event did not arrive, such as ``status 503``; empty if it arrived.
    """

    id: str
    event: str
    at: float
    seconds: float
    attempt: int
    result: str
    reason: str


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """A page of dead letters. To get the next page, pass `cursor` as `after`; it is None on the last page."""

    items: Sequence[SinkDeadLetter]
    cursor: int | None


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of a replay: how many dead letters were `written` to the target, and how many `failed` again."""

    written: int
    failed: int


@runtime_checkable
class SinkManager(Protocol):
    """Manages sinks. Call the methods only on the event loop. Each of them raises SinkError."""

    def list_sinks(self) -> Sequence[SinkStatus]:
        """Return all sinks in the order of the configuration."""

    def show_sink(self, name: str) -> SinkStatus:
        """Return one sink."""

    async def test_sink(self, name: str) -> Sequence[SinkProblem]:
        """Open a separate connection to the target and check it with the sink's sample, without writing anything.

        Returns all problems that the check found.
        """

    async def pause_sink(self, name: str, paused: bool) -> None:
        """Pause or resume a sink. This lasts until the next such call, even across a restart. A paused sink still
        stores messages."""

    async def seek_sink(self, name: str, position: str) -> int:
        """Move the cursor and return its offset. Messages from that offset on are written, even if the target already
        has them.

        A position is ``first``, ``next``, an offset, or a time. Messages that are done may have been deleted, so the
        cursor may end up after the requested position.
        """

    async def list_dead_letters(self, name: str, after: int | None, limit: int) -> DeadLetterPage:
        """Return dead letters, oldest first, starting after number `after`."""

    async def replay_dead_letters(self, name: str) -> ReplayResult:
        """Write all dead letters to the target again, with the same ids. Messages that the target still does not accept
        remain dead letters.
        """

    async def purge_dead_letters(self, name: str) -> int:
        """Delete all dead letters, and return their number."""


@runtime_checkable
class DeliveryLog(Protocol):
    """The interface of a `SinkManager` that also keeps the latest attempts to send each event."""

    async def list_deliveries(self, name: str, event: str, limit: int) -> Sequence[SinkDelivery]:
        """Return at most `limit` attempts, newest first. If `event` is not empty, return only those for the event with
        that id.

        Raises SinkError."""
