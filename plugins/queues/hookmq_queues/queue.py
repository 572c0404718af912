"""A queue: its messages, its groups, and what happens when it is full."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from hookmq.plugin import BrokerHandle, DirectDeliveries, Message, StoreError
from hookmq_toolkit.segment_log.fill import Fill

from hookmq_queues.ages import Ages
from hookmq_queues.config import QueueConfig
from hookmq_queues.dispatch import Dispatcher
from hookmq_queues.group import Group
from hookmq_queues.group_state import state_key
from hookmq_queues.group_use import GroupUse
from hookmq_queues.intake import Intake
from hookmq_queues.outgoing import dead_letter
from hookmq_queues.storage import MessageLog, QueueLog

RESULTS = (
    "accepted", "rejected", "dropped_newest", "dropped_oldest", "delivered", "redelivered", "acknowledged", "refused",
    "timed_out", "expired", "dead_lettered", "duplicate", "delayed", "missed", "compacted", "nacked", "discarded",
    "purged", "redriven", "dropped_unused",
)  # fmt: skip
"""The results by which the metrics count messages."""


class SeekError(Exception):
    """A group cannot be moved to a position. The text tells users why."""


class Queue:
    """A queue of the type `classic`. Other types are subclasses; `hookmq_queues.queue_types.make_queue` chooses one.

    Create the queue before the store is loaded, because its log is a journal. Call `open` once the store has been
    loaded.
    """

    stored = True
    """Whether the state of the groups is stored."""

    def __init__(
        self,
        config: QueueConfig,
        path: Path,
        broker: BrokerHandle,
        sync: bool,
        plugin: str,
        dead_letters: Callable[[str], "Queue"],
    ) -> None:
        self.config = config
        self.log = self._make_log(path, broker, sync, plugin)
        self.intake = Intake(config, plugin, broker.time)
        self.log.kept_from = self.intake.kept_from
        self.log.is_full = self._is_refused
        self.log.is_dropped = self._is_dropped
        self.log.on_appended = self._appended
        self.log.on_committed = self._committed
        self.dispatchers: dict[str, Dispatcher] = {}
        self.results: Counter[str] = Counter(dict.fromkeys(RESULTS, 0))
        self._broker = broker
        self._deliveries: DirectDeliveries
        self._plugin = plugin
        self._dead_letters = dead_letters
        self.new_groups: list[str] = []
        """The groups whose state was not stored when the queue was opened."""
        self.group_use = GroupUse(
            lambda: self.config, self.dispatchers, broker, self._load_group, self.ended
        )
        self.closed = False
        self._fill = Fill(self._report_fill)
        self.origin = f"plugin:{plugin}"
        self.paused: frozenset[str] = frozenset()
        """The paused groups. An empty name stands for the queue."""
        self.ages = Ages(self.log, broker)

    def _make_log(
        self, path: Path, broker: BrokerHandle, sync: bool, plugin: str
    ) -> MessageLog:  # fmt: skip
        return QueueLog(self.config, path, broker.runtime, sync, plugin)

    def open(self, deliveries: DirectDeliveries) -> None:
        """Load the groups. Raises StoreError if a group's state is damaged."""
        self._deliveries = deliveries
        for name in (
            *self.config.group_settings,
            *(self.group_use.stored() if self.stored else ()),
        ):
            self._load_group(name)
        self.group_use.watch()
        if self.intake.duplicates is not None:
            self._remember()
        self._enforce()
        self.ended()
        for one in self.dispatchers.values():
            one.schedule()  # a message may have reached its delivery limit

    def _load_group(self, name: str) -> Dispatcher:
        log = self.log
        key = state_key(self.config.name, name)
        stored = self._broker.state.get(key) if self.stored else None
        if stored is None:
            group = Group(self._first_offset(name))
            self.new_groups.append(name)
        else:
            try:
                group = Group.decode(stored, log.earliest, log.end, self._broker.time())
            except ValueError as error:
                raise StoreError(
                    f"queue {self.config.name}, group {name}: {error}; to deliver all stored messages again, delete "
                    f"its state: hookmq storage state FOLDER --delete queues"
                ) from error
        made = self.dispatchers[name] = Dispatcher(
            name,
            self.config,
            log,
            group,
            self._broker,
            self._deliveries,
            self,
            self.stored,
            self.config.settings_of(name),
        )
        made.paused = "" in self.paused or name in self.paused
        return made

    def _first_offset(self, group: str) -> int:
        """Return the offset of the first message that a new group receives."""
        return self.log.earliest

    def close(self) -> None:
        """Begin to close the queue. It stores no more messages. The caller must still store the groups' states and
        close the log.
        """
        self.closed = True
        self.group_use.close()
        self.log.quiet()

    async def seek(self, group: str, position: str) -> int:
        """Move a group to `position`, so that it receives the messages from there on. Return the offset once the new
        state is stored.

        `position` is ``first``, ``last``, ``next``, an offset, an ISO 8601 time with a UTC offset, or ``@`` followed by
        epoch seconds. Raises SeekError if the queue has no such group or position, or is not a stream.
        """
        raise SeekError(
            f"the queue {self.config.name} is not a stream: settled messages are deleted"
        )

    def configure(self, config: QueueConfig) -> None:
        """Apply new settings; `hookmq_queues.making.CHANGEABLE` lists those that can change. Call
        ``broker.invalidate_routes`` afterwards.
        """
        self.config = config
        self.log.configure(config)
        self.log.sure_until = 0
        self.intake.configure(config)
        for one in self.dispatchers.values():
            one.configure(config)
        self._enforce()
        self._look()

    async def start_group(self, group: str, position: str) -> None:
        """Create a group that starts at `position`. Do nothing if the group exists or cannot be created. Raises
        SeekError as `seek` does.
        """
        raise SeekError(
            f"the queue {self.config.name} is not a stream, so a group cannot start at a position"
        )

    def count(self, result: str, number: int = 1) -> None:
        """Count messages with this result."""
        self.results[result] += number

    @property
    def depth(self) -> int:
        """The number of messages that the slowest group has not settled."""
        most = 0
        for one in self.dispatchers.values():  # no generator: this runs for each message
            backlog = one.backlog
            if backlog > most:
                most = backlog
        return most

    @property
    def delayed(self) -> int:
        """The number of messages that are not due yet. They are not part of `depth`."""
        return 0 if self.intake.delays is None else len(self.intake.delays)

    @property
    def floor(self) -> int:
        """The first offset that some group has not settled."""
        return min((one.group.floor for one in self.dispatchers.values()), default=0)

    # limits ----------------------------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Whether the queue has reached a limit."""
        log = self.log
        if log.bytes >= self.config.max_bytes:
            return True
        log.sure_bytes = self.config.max_bytes
        log.sure_until = log.end + self.config.max_messages - self.depth
        return log.end >= log.sure_until

    def _is_refused(self) -> bool:
        if self.config.on_full != "reject" or not self.is_full:
            return False
        self.results["rejected"] += 1
        self._fill.look(1.0)
        return True

    def _is_dropped(self, message: Message) -> bool:
        # Messages at QoS 0 do not wait for a journal, so a full one is not asked about them.
        full = self.config.on_full != "drop_oldest" and self.is_full
        fate = self.intake.take(message, self.log.end, full)
        if fate == "stored":
            return False
        self.results[fate] += 1
        if fate == "dropped_newest":
            self._fill.look(1.0)
        return True

    def _appended(self) -> None:
        self.results["accepted"] += 1

    def _committed(self) -> None:
        self._enforce()
        self._look()
        for one in self.dispatchers.values():
            if one.consumers or one.is_unwatched:
                one.schedule()

    def _enforce(self) -> None:
        """Drop the oldest messages that exceed the limits, if `on_full` says so."""
        if self.config.on_full != "drop_oldest":
            return
        config = self.config
        dropped = 0
        for one in self.dispatchers.values():
            while one.backlog > config.max_messages and one.drop_oldest():
                dropped += 1
            while self._unsettled_bytes(one) > config.max_bytes and one.drop_oldest():
                dropped += 1
            one.schedule()
        if dropped:
            self.results["dropped_oldest"] += dropped
            self.log.settle(self.floor)

    def _unsettled_bytes(self, dispatcher: Dispatcher) -> int:
        """Return the approximate size of the messages that a group has not settled.

        `log.bytes` may be larger. It includes settled messages behind an unsettled one, and messages that only other
        groups have yet to settle.
        """
        log = self.log
        if log.bytes > self.config.max_bytes:
            floor = self.floor
            log.settle(floor)
            if log.end > floor:
                return log.bytes * dispatcher.backlog // (log.end - floor)
        return log.bytes

    @property
    def fill(self) -> float:
        """How full the queue is: the fraction used of its message limit or its byte limit, whichever is larger."""
        used = self.log.bytes / self.config.max_bytes
        return max(used, self.depth / self.config.max_messages)

    def _look(self) -> None:
        self._fill.look(self.fill)

    def _report_fill(self, word: str, share: float) -> None:
        name = self.config.name
        if word == "full":
            fields = {
                "messages": self.depth,
                "bytes": self.log.bytes,
                "on_full": self.config.on_full,
            }
            self._broker.log("warning", "queue.full", queue=name, **fields)
            self._broker.emit("queue.full", None, queue=name, **fields)
        elif word == "has_room":
            self._broker.log("info", "queue.has_room", queue=name)
            self._broker.emit("queue.has_room", None, queue=name)
        else:
            self._broker.log("warning", "queue.filling", queue=name, share=round(share, 2))

    def bury(
        self,
        message: Message,
        group: str,
        offset: int,
        count: int,
        reason: str = "delivery-limit",
        description: str = "",
    ) -> None:
        """Add a message to the dead-letter queue, in this turn's commit."""
        target = self._dead_letters(self.config.dead_letter)
        made = dead_letter(
            message, target.config.name, self.config.name, group, offset, count, reason, self._broker.time(),
            self._plugin, description,
        )  # fmt: skip
        self._broker.append(target.log, made)
        self.count("dead_lettered")
        self._broker.emit(
            "queue.dead_lettered", None,
            queue=self.config.name, group=group, offset=offset, deliveries=count, reason=reason,
        )  # fmt: skip

    def takes_dead_letters(self) -> bool:
        """Return whether the dead-letter queue has room."""
        return self._dead_letters(self.config.dead_letter).accepts()

    def accepts(self) -> bool:
        """Return whether a dead letter can be added. A queue that drops messages when full always accepts them."""
        if self.config.on_full == "drop_oldest" or not self.is_full:
            return True
        self.results["rejected"] += 1
        self._fill.look(1.0)
        return False

    def release(self, message: Message) -> bool:
        """Store a message whose delay is over, in this turn's commit. Return False if the queue is full."""
        if not self.accepts():
            return False
        self.intake.is_releasing = True
        try:
            self._broker.append(self.log, message.replace(received_at=self._broker.time()))
        finally:
            self.intake.is_releasing = False
        return True

    def restored(self, message: Message) -> None:
        """Register a delayed message that was stored before the restart."""
        self.intake.remember(message, self.log.end)

    def _remember(self) -> None:
        """Read the messages that were stored before the restart, to recognize duplicates of them. This call blocks."""
        at = max(self.log.earliest, self.log.end - self.config.dedupe_ids)
        while page := self.log.read(at):
            for offset, message in page:
                if offset >= at:
                    self.intake.remember(message, offset)
            at = page[-1][0] + 1
            if at >= self.log.visible:
                return

    def consumers_changed(self, group: str) -> None:
        """Record that a group has gained or lost a consumer."""
        self.group_use.used(group)

    def settled(self, offset: int) -> None:
        """Record that a group has settled a message. If no group needs the message any more, it leaves memory."""
        if len(self.dispatchers) == 1:
            self.log.forget(offset)
            return
        for one in self.dispatchers.values():
            group = one.group
            if offset >= group.next or offset in group.unsettled:
                return  # another group needs it
        self.log.forget(offset)

    def all_settled(self, offsets: list[int]) -> None:
        """Record that a group has settled messages."""
        if len(self.dispatchers) == 1:
            self.log.forget_all(offsets)
            return
        for offset in offsets:
            self.settled(offset)

    def ended(self) -> None:
        """Free the space of settled messages. Call this after a series of deliveries."""
        self.log.settle(self.floor)
        self._look()
