"""Queues of the type `stream`. They keep settled messages, and a group can be moved to any of these."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from hookmq.plugin import BrokerHandle, DirectDeliveries, StoreError, Timer
from hookmq_toolkit.segment_log import Segment
from hookmq_toolkit.segment_log.fill import Fill

from hookmq_queues.compaction import Compactor, key_property, replace_in, topic_key
from hookmq_queues.positions import Position, parse_position
from hookmq_queues.queue import Queue, SeekError
from hookmq_queues.retention import MissedMessages, first_to_keep
from hookmq_queues.storage import MessageLog
from hookmq_queues.stream_log import StreamLog

CHECK: Final = 60.0
"""Maximum seconds between two checks for messages that are too old."""
PARTS: Final = 8
"""The age limit is divided by this number. The result is the time that a segment covers at most, and the time between
two checks.
"""


class StreamQueue(Queue):
    """A stream. Only retention deletes its messages, whether or not groups have settled them."""

    log: StreamLog

    def _make_log(self, path: Path, broker: BrokerHandle, sync: bool, plugin: str) -> MessageLog:
        self._aged = 0
        self._missed: dict[str, MissedMessages] = {}
        self._timer: Timer | None = None
        self._starts: dict[str, int] = {}
        """The offsets at which groups start while they are being created."""
        self._compacting = False
        self._looked = -1
        """The first offset of the last segment at the latest call of `_compact`."""
        self._behind = Fill(self._report_behind)
        self._changed: Callable[[], None] | None = None
        """Called when different messages can be read; see `follow`."""
        log = StreamLog(self.config, path, broker.runtime, sync, plugin)
        keys = {"none": None, "key": key_property, "topic": topic_key}[self.config.compact]
        self._compactor = None if keys is None else Compactor(log.log, keys)
        return log

    def open(self, deliveries: DirectDeliveries) -> None:
        """Load the groups, and apply the retention settings. Raises StoreError if a group's state is damaged."""
        age = self.config.retention.age
        if age:
            self._aged = self.log.find_time(self._broker.time() - age)
            self._watch_age()
        super().open(deliveries)
        for name in self.new_groups:
            self.dispatchers[
                name
            ].state.save()  # or a restart would let the group start somewhere else
        self._compact()

    def _first_offset(self, group: str) -> int:
        if group in self._starts:
            return max(self._starts[group], self.log.earliest)
        settings = self.config.settings_of(group)
        position = parse_position(settings.start or self.config.start)
        try:
            return self._resolve(position, self._broker.time())
        except SeekError as error:
            self._broker.log(
                "warning",
                "queue.start_unavailable",
                queue=self.config.name,
                group=group,
                error=str(error),
            )
            return self.log.visible

    # limits ----------------------------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Always False, because retention makes room for new messages."""
        return False

    def _enforce(self) -> None:
        """Drop the messages that retention does not keep."""
        log = self.log
        first = first_to_keep(self.config.retention, log, self._aged, self.floor)
        if first <= log.first:
            return
        for name, one in self.dispatchers.items():
            missed = one.trim(first)
            if missed:
                self.count("missed", missed)
                self._missed_by(name).add(missed)
        log.keep_from(first)
        self._report_change()

    def _look(self) -> None:
        limit = self.config.retention.wait_for_groups
        if limit:
            behind = self.floor < self.log.visible and self.log.bytes > self.config.retention.bytes
            self._behind.look(self.log.bytes / limit if behind else 0.0)

    def _committed(self) -> None:
        super()._committed()
        self._compact()

    def follow(self, changed: Callable[[], None] | None) -> None:
        """Call `changed` whenever different messages can be read: after each commit, and after messages or files were
        deleted or replaced. Pass None to stop. Without a follower, this costs nothing.
        """
        self._changed = changed
        log = self.log
        if changed is None:
            log.on_committed, log.on_trimmed = self._committed, None
        else:
            log.on_committed = self._committed_and_followed
            log.on_trimmed = self._report_change

    def _committed_and_followed(self) -> None:
        self._report_change()  # first, since the publishers are acknowledged next
        self._committed()

    def _report_change(self) -> None:
        if self._changed is not None:
            self._changed()

    def settled(self, offset: int) -> None:
        """Record that a group has settled a message. The message stays in memory, because other groups may read it."""

    def all_settled(self, offsets: list[int]) -> None:
        """Record that a group has settled messages."""

    def ended(self) -> None:
        """Apply the retention settings, which may have been waiting for a group."""
        self._enforce()
        self._look()

    def _missed_by(self, group: str) -> MissedMessages:
        found = self._missed.get(group)
        if found is None:
            report = partial(self._report_missed, group)
            found = self._missed[group] = MissedMessages(self._broker.runtime, report)
        return found

    def _report_missed(self, group: str, messages: int) -> None:
        fields: dict[str, Any] = {"queue": self.config.name, "group": group, "messages": messages}
        self._broker.log("warning", "queue.missed", **fields)
        self._broker.emit("queue.missed", None, **fields)

    def _report_behind(self, word: str, share: float) -> None:
        if word == "full":
            return  # `queue.missed` tells more
        slowest = min(self.dispatchers.values(), key=lambda one: one.group.floor)
        fields: dict[str, Any] = {"queue": self.config.name, "group": slowest.name}
        if word == "filling":
            fields |= {"messages": slowest.backlog, "share": round(share, 2)}
            self._broker.log("warning", "queue.group_behind", **fields)
            self._broker.emit("queue.group_behind", None, **fields)
        else:
            self._broker.log("info", "queue.group_caught_up", queue=self.config.name)
            self._broker.emit("queue.group_caught_up", None, queue=self.config.name)

    # age -------------------------------------------------------------------------------------------------------------

    def _watch_age(self) -> None:
        wait = min(CHECK, self.config.retention.age / PARTS)
        self._timer = self._broker.runtime.call_later(wait, self._check_age)

    def _check_age(self) -> None:
        now = self._broker.time()
        call = partial(self._find_old, now)
        self._broker.runtime.run_blocking(call, self._found_old)

    def _find_old(self, now: float) -> tuple[int, bool]:
        """Return the offset of the first message that is not too old. Also return whether to start a new segment, so
        that the old one can be deleted. This runs in a thread.
        """
        age = self.config.retention.age
        began = self.log.time_of_last_segment()
        return self.log.find_time(now - age), began < now - age / PARTS

    def _found_old(self, result: Any, error: BaseException | None) -> None:
        if self.closed:
            return
        if error is not None:
            self._broker.log("error", "queue.trim_failed", queue=self.config.name, error=str(error))
        else:
            self._aged, roll = result
            self.log.log.roll = self.log.log.roll or roll
            self._enforce()
        self._watch_age()

    # compaction ------------------------------------------------------------------------------------------------------

    def _compact(self) -> None:
        compactor = self._compactor
        if compactor is None or self._compacting or self.closed:
            return
        newest = self.log.log.segments[-1].base
        if newest == self._looked or not compactor.due():
            self._looked = newest
            return
        self._looked = newest
        self._compacting = True

        def compacted(result: Any, error: BaseException | None) -> None:
            self._compacting = False
            if self.closed:
                return
            if error is not None:
                self._broker.log(
                    "error", "queue.compaction_failed", queue=self.config.name, error=str(error)
                )
                return
            self.count("compacted", result)
            self.log.measure_closed()
            self._report_change()

        self._broker.runtime.run_blocking(partial(compactor.run, self._replace), compacted)

    def _replace(self, segment: Segment, path: Path) -> bool:
        with self.log.replacing:
            return replace_in(self.log.log, segment, path)

    # positions -------------------------------------------------------------------------------------------------------

    async def seek(self, group: str, position: str) -> int:
        """Move a group; see `Queue.seek`. If the message at the position was deleted, the group moves to the first
        remaining message.
        """
        dispatcher = self.dispatchers.get(group)
        if dispatcher is None:
            raise SeekError(f"the queue {self.config.name} has no group {group!r}")
        offset = await self._located(position)
        offset = max(offset, self.log.earliest)  # retention may have gone on meanwhile
        await dispatcher.seek(offset)
        if not self.closed:
            self.ended()  # the retention may have waited for the group
        return offset

    async def start_group(self, group: str, position: str) -> None:
        """Create a group that starts at a position; see `Queue.start_group`."""
        offset = await self._located(position)
        if group not in self.dispatchers and not self.closed:
            self._starts[group] = offset
            self.group_use.use(group)
            del self._starts[group]

    async def _located(self, position: str) -> int:
        """Return the offset that `position` stands for. Raises SeekError."""
        try:
            parsed = parse_position(position)
        except ValueError as error:
            raise SeekError(str(error)) from None
        promise = self._broker.runtime.promise()

        def resolved(result: Any, error: BaseException | None) -> None:
            if error is None:
                promise.set_result(result)
            else:
                promise.set_exception(error)

        call = partial(self._resolve, parsed, self._broker.time())
        self._broker.runtime.run_blocking(call, resolved)
        try:
            offset: int = await promise
        except (StoreError, OSError, ValueError) as error:
            raise SeekError(f"the queue {self.config.name} cannot be read: {error}") from error
        return offset

    def _resolve(self, position: Position, now: float) -> int:
        """Return the offset that `position` stands for. This call may block, and may run in any thread. Raises
        SeekError, StoreError.
        """
        log = self.log
        first, end = log.earliest, log.visible
        if position.kind == "first":
            return first
        if position.kind == "last":
            return max(first, end - 1)
        if position.kind == "next":
            return end
        if position.kind == "offset":
            if position.value > end:
                raise SeekError(
                    f"offset {position.value} is beyond the end of {self.config.name}: the offset of the next "
                    f"message is {end}"
                )
            return max(first, int(position.value))
        if position.value > now:
            raise SeekError(
                "the position is a time in the future; to skip all messages that are stored, use next"
            )
        return log.find_time(position.value)

    def close(self) -> None:
        """Stop the timers."""
        super().close()
        if self._timer is not None:
            self._timer.cancel()
        for one in self._missed.values():
            one.close()
