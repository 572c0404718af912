"""Move dead letters back to the queues they came from."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from hookmq.mqtt_api import compile_filter
from hookmq.plugin import BrokerHandle, Message, PluginError, StoreError
from hookmq_toolkit.queues import RedriveRequest, RedriveStatus
from hookmq_toolkit.threads import in_thread

from hookmq_queues.dispatch import Dispatcher
from hookmq_queues.outgoing import DEAD, revived
from hookmq_queues.queue import Queue

REASONS: Final = ("delivery-limit", "rejected", "expired")
"""The reasons why a message can be a dead letter."""
BATCH: Final = 64
"""Maximum number of messages moved in one turn, and therefore in one commit."""
WAIT: Final = 0.5
"""Seconds until a full queue is retried."""
SCAN: Final = 1000
"""Maximum number of messages to examine in one turn."""


class Redrive:
    """Moves dead letters out of `queue`. A single commit adds each dead letter to its old queue and removes it from
    this one.
    """

    def __init__(
        self,
        queue: Queue,
        dispatcher: Dispatcher,
        request: RedriveRequest,
        queues: Mapping[str, Queue],
        broker: BrokerHandle,
        plugin: str,
    ) -> None:
        self.status = RedriveStatus("running", total=dispatcher.backlog, started_at=broker.time())
        self._queue = queue
        self._dispatcher = dispatcher
        self._request = request
        self._queues = queues
        self._broker = broker
        self._origin = f"plugin:{plugin}"
        self._matches = compile_filter(request.topic) if request.topic else None
        self._next = -1
        """The offset of the last message that was examined."""
        self._end = queue.log.visible
        """Messages that become dead letters later stay. Otherwise, a failing consumer could keep the redrive running."""
        self._ready_at = broker.now()
        """The time at which the rate allows the next message to be moved."""

    def start(self) -> None:
        """Start the redrive."""
        self._broker.log("info", "queue.redrive_started", queue=self._queue.config.name)
        self._broker.runtime.spawn(self._run(), self._finished)

    def stop(self) -> None:
        """Stop before the next message."""
        self._end_as("stopped")

    def _finished(self, result: object, error: BaseException | None) -> None:
        if error is None:
            self._end_as("done")
        else:
            text = error.message if isinstance(error, PluginError) else str(error)
            self._change(note=text or type(error).__name__)
            self._end_as("failed")

    def _end_as(self, state: str) -> None:
        if self.status.state == "running":
            self._change(state=state, waiting_for="", ended_at=self._broker.time())
            status = self.status
            self._broker.log(
                "info", "queue.redrive_ended",
                queue=self._queue.config.name, state=state, moved=status.moved, skipped=status.skipped,
            )  # fmt: skip

    def _change(self, **fields: object) -> None:
        self.status = replace(self.status, **fields)  # type: ignore[arg-type]

    # the work --------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while self.status.state == "running":
            offsets = self._unsettled()
            if not offsets:
                return
            page = dict(await in_thread(self._broker.runtime, partial(self._read, offsets[0])))
            chosen: list[tuple[int, Message]] = []
            for offset in offsets:
                message = page.get(offset) or self._queue.log.get(offset)
                if message is None:
                    if offset == offsets[0]:
                        self._next = offset  # it was deleted meanwhile
                    break
                self._next = offset
                self._change(examined=self.status.examined + 1)
                if self._wanted(message):
                    chosen.append((offset, message))
            for start in range(0, len(chosen), BATCH):
                await self._move_all(chosen[start : start + BATCH])

    def _unsettled(self) -> list[int]:
        """Return the offsets to examine next, in order."""
        group, after = self._dispatcher.group, self._next
        found = [one for one in group.unsettled if after < one < self._end]
        first = max(group.next, after + 1)
        found += range(first, min(self._end, first + SCAN))
        return found[:SCAN]

    def _read(self, offset: int) -> list[tuple[int, Message]]:
        """Read messages from `offset` on. This runs in a thread."""
        try:
            return self._queue.log.read(offset)
        except LookupError:
            return []
        except (StoreError, ValueError) as error:
            raise PluginError("queues", f"the message {offset} cannot be read: {error}") from None

    def _wanted(self, message: Message) -> bool:
        request, found = self._request, self._told(message)
        if request.queue and found.get("queue") != request.queue:
            return False
        if request.reason and found.get("reason") != request.reason:
            return False
        if self._matches is not None and not self._matches(found.get("topic", message.topic)):
            return False
        if request.older_than:
            return message.received_at + request.older_than <= self._broker.time()
        return True

    def _told(self, message: Message) -> dict[str, str]:
        """Return the properties that describe a dead letter. Return none for any other message, because its properties
        may be forged.
        """
        if message.origin != self._origin:
            return {}
        return {
            name.removeprefix(DEAD): value
            for name, value in message.user_property
            if name.startswith(DEAD)
        }

    async def _move_all(self, chosen: list[tuple[int, Message]]) -> None:
        """Move messages as fast as the rate allows."""
        waiting = list(chosen)
        while waiting and self.status.state == "running":
            limit = self._request.limit
            if limit is not None and self.status.moved >= limit:
                self._end_as("done")
                return
            now, rate = self._broker.now(), self._request.rate
            allowed = 0
            if now >= self._ready_at:
                allowed = min(BATCH, 1 + int((now - self._ready_at) * rate))
            if limit is not None:
                allowed = min(allowed, limit - self.status.moved)
            before, full = self.status.moved, ""
            while waiting and not full and self.status.moved - before < allowed:
                full = self._move(*waiting[0])
                if not full:
                    del waiting[0]
            moved = self.status.moved - before
            if moved:
                self._ready_at = max(self._ready_at, now - BATCH / rate) + moved / rate
                await self._dispatcher.state.committed()
                self._queue.ended()
            self._change(waiting_for=full)
            if waiting:
                await self._sleep(WAIT if full else max(0.0, self._ready_at - self._broker.now()))

    def _move(self, offset: int, message: Message) -> str:
        """Move or skip one message in this turn. If the queue it would move to is full, return that queue's name."""
        told = self._told(message)
        note = ""
        target = self._queues.get(told.get("queue", ""))
        group = told.get("group", "")
        if "topic" not in told or "queue" not in told:
            note = f"the message {offset} is not a dead letter"
        elif target is None:
            note = (
                f"the message {offset} comes from the queue {told['queue']}, which does not exist"
            )
        elif group not in target.dispatchers:
            note = f"the message {offset} comes from the group {group} of {told['queue']}, which does not exist"
        elif target.is_full and target.config.on_full != "drop_oldest":
            return target.config.name
        elif not self._dispatcher.can_take(offset):
            note = f"a consumer has the message {offset}, or it was settled"
        else:
            only = group if len(target.dispatchers) > 1 else ""
            made = revived(message, told["topic"], only, self._broker.time(), self._origin)
            self._broker.append(target.log, made)  # first, because it may fail
            self._dispatcher.take(offset)
            self._queue.count("redriven")
            self._change(moved=self.status.moved + 1)
            return ""
        self._change(skipped=self.status.skipped + 1, note=note)
        return ""

    async def _sleep(self, seconds: float) -> None:
        runtime = self._broker.runtime
        promise = runtime.promise()

        def wake() -> None:
            if not promise.done():
                promise.set_result(None)

        runtime.call_later(seconds, wake)
        await promise
