"""Let operators manage queues, through the service `hookmq_toolkit.queues`. The module `making` creates and deletes
queues, and `redrive` moves dead letters back.
"""

import json
from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from hookmq.mqtt_api import validate_filter
from hookmq.plugin import BrokerHandle, Message, PluginError, StoreError
from hookmq_toolkit.queues import (
    MadeBy,
    MessagePage,
    QueueConsumer,
    QueueError,
    QueueGroup,
    QueueMessage,
    QueueStatus,
    RedriveRequest,
    RedriveStatus,
)
from hookmq_toolkit.threads import in_thread

from hookmq_queues.config import plain_settings
from hookmq_queues.dispatch import Dispatcher
from hookmq_queues.making import QueueMaker
from hookmq_queues.queue import Queue, SeekError
from hookmq_queues.redrive import REASONS, Redrive

PAUSED: Final = "paused/"
"""Prefix of the keys that store a queue's paused groups. An empty name means the queue itself."""
MAX_CONSUMERS: Final = 100
"""Maximum number of a group's consumers that a status lists."""


class QueueControl:
    """Implements `hookmq_toolkit.queues.QueueManager` for the queues of `maker`."""

    def __init__(self, maker: QueueMaker, broker: BrokerHandle, plugin: str) -> None:
        self._maker = maker
        self._broker = broker
        self._plugin = plugin
        self._redrives: dict[str, Redrive] = {}

    def restore(self) -> None:
        """Pause the groups that were paused before the restart. Forget the groups of deleted queues."""
        state = self._broker.state
        cursor, more = "", True
        while more:
            page = state.items(PAUSED, cursor, 1000)
            cursor, more = page.cursor, bool(page.cursor)
            for key, value in page.items:
                queue = self._maker.queues.get(key.removeprefix(PAUSED))
                if queue is None:
                    state.delete(key)
                else:
                    _pause(queue, frozenset(json.loads(value)))

    def close(self) -> None:
        """Stop all redrives."""
        for one in self._redrives.values():
            one.stop()

    # looking ---------------------------------------------------------------------------------------------------------

    def list_queues(self) -> Sequence[QueueStatus]:
        """Return all queues, sorted by name."""
        return [self._status(queue, False) for _, queue in sorted(self._maker.queues.items())]

    def show_queue(self, name: str) -> QueueStatus:
        """Return one queue."""
        return self._status(self._maker.find(name), True)

    def _status(self, queue: Queue, full: bool) -> QueueStatus:
        config = queue.config
        stored = self._maker.registry.queues.get(config.name)
        made_by: MadeBy = "configuration" if stored is None else stored.made_by
        groups = tuple(_group(queue, one, full) for one in queue.dispatchers.values())
        ages = [one.oldest for one in groups]
        return QueueStatus(
            config.name,
            config.type,
            made_by,
            queue.depth,
            queue.delayed,
            queue.log.bytes,
            config.max_messages,
            config.max_bytes,
            config.on_full,
            queue.is_full,
            "" in queue.paused,
            queue.log.end,
            None if None in ages else max((one for one in ages if one is not None), default=0.0),
            config.dead_letter,
            dict(queue.results),
            groups,
            plain_settings(config) if full else {},
        )

    async def peek_queue(self, name: str, group: str, after: int | None, limit: int) -> MessagePage:
        """Return a page of unsettled messages, in offset order."""
        queue = self._maker.find(name)
        dispatcher = _first_or(queue, group)
        found = dispatcher.group
        wanted = unsettled_after(dispatcher, queue, -1 if after is None else after, limit + 1)
        messages = await read_messages(queue, wanted[:limit], self._broker)
        items: list[QueueMessage] = []
        for offset in wanted[:limit]:
            if offset not in messages or (offset < found.next and offset not in found.unsettled):
                continue  # it was settled meanwhile
            lease, due = found.leases.get(offset), found.due.get(offset)
            key: Any = None if lease is None else lease.consumer
            items.append(
                QueueMessage(
                    offset,
                    messages[offset],
                    "unacknowledged" if lease else "waiting" if due is None else "delayed",
                    found.attempts(offset) if offset < found.next else 0,
                    None if key is None else key[0],
                    None if due is None else due / 1000,
                )
            )
        return MessagePage(items, wanted[limit - 1] if len(wanted) > limit else None)

    # making ----------------------------------------------------------------------------------------------------------

    async def create_queue(self, name: str, settings: Mapping[str, Any]) -> QueueStatus:
        """Create a queue."""
        return self._status(await self._maker.create(name, settings, "operator"), True)

    async def change_queue(self, name: str, settings: Mapping[str, Any]) -> QueueStatus:
        """Change some settings of a queue."""
        return self._status(await self._maker.change(name, settings), True)

    async def delete_queue(self, name: str, force: bool) -> int:
        """Delete a queue, and return the number of messages it contained."""
        deleted = await self._maker.delete(name, force)
        redrive = self._redrives.pop(name, None)
        if redrive is not None:
            redrive.stop()
        self._broker.state.delete(PAUSED + name)
        return deleted

    # changing --------------------------------------------------------------------------------------------------------

    async def purge_queue(self, name: str, group: str) -> int:
        """Drop all messages that no consumer holds. Return how many were dropped."""
        queue = self._maker.find(name)
        chosen = [_named(queue, group)] if group else list(queue.dispatchers.values())
        purged, stored = 0, []
        for one in chosen:
            purged = max(purged, one.purge())
            stored.append(self._stored(one.state.committed))
        if not group and queue.intake.delays is not None:
            purged += queue.intake.delays.clear()
        queue.count("purged", purged)
        queue.ended()
        self._broker.log("info", "queue.purged", queue=name, group=group or None, messages=purged)
        for awaited in stored:
            await _committed(awaited)
        return purged

    async def pause_queue(self, name: str, group: str, paused: bool) -> None:
        """Pause or resume the deliveries of a queue or group."""
        queue = self._maker.find(name)
        if group:
            _named(queue, group)
        changed = queue.paused | {group} if paused else queue.paused - {group}
        if changed == queue.paused:
            return
        state, key = self._broker.state, PAUSED + name
        value = json.dumps(sorted(changed)).encode()
        stored: Awaitable[Any]
        stored = self._stored(
            partial(state.put, key, value) if changed else partial(state.delete, key)
        )
        _pause(queue, changed)
        if paused:
            self._broker.log("info", "queue.paused", queue=name, group=group or None)
            self._broker.emit("queue.paused", None, queue=name, group=group)
        else:
            self._broker.log("info", "queue.resumed", queue=name, group=group or None)
            self._broker.emit("queue.resumed", None, queue=name, group=group)
        await _committed(stored)

    async def seek_queue(self, name: str, group: str, position: str) -> int:
        """Move one of a stream's groups to a position, and return the offset of that position."""
        queue = self._maker.find(name)
        _named(queue, group)
        try:
            return await queue.seek(group, position)
        except SeekError as error:
            raise QueueError("invalid", str(error), "position") from None

    def _stored(self, store: Any) -> Awaitable[Any]:
        try:
            stored: Awaitable[Any] = store()
        except PluginError as error:
            raise QueueError("failed", error.message) from None
        return stored

    # dead letters ----------------------------------------------------------------------------------------------------

    def start_redrive(self, name: str, request: RedriveRequest) -> RedriveStatus:
        """Start moving dead letters back."""
        queue = self._maker.find(name)
        dispatcher = _first_or(queue, request.group)
        if request.topic:
            try:
                validate_filter(request.topic)
            except Exception as error:
                raise QueueError("invalid", f"not a topic filter: {error}", "topic") from None
        if request.reason and request.reason not in REASONS:
            known = ", ".join(REASONS)
            raise QueueError(
                "invalid", f"expected one of {known}, found {request.reason!r}", "reason"
            )
        running = self._redrives.get(name)
        if running is not None and running.status.state == "running":
            raise QueueError("conflict", f"a redrive of {name} is running: wait for it, or stop it")
        made = Redrive(queue, dispatcher, request, self._maker.queues, self._broker, self._plugin)
        self._redrives[name] = made
        made.start()
        return made.status

    def redrive_status(self, name: str) -> RedriveStatus:
        """Return the state of the running redrive, or of the last one."""
        self._maker.find(name)
        found = self._redrives.get(name)
        return RedriveStatus() if found is None else found.status

    def stop_redrive(self, name: str) -> RedriveStatus:
        """Stop the redrive."""
        self._maker.find(name)
        found = self._redrives.get(name)
        if found is None or found.status.state != "running":
            raise QueueError("conflict", f"no redrive of {name} is running")
        found.stop()
        return found.status


def _named(queue: Queue, group: str) -> Dispatcher:
    """Return the group with this name. Raises QueueError."""
    found = queue.dispatchers.get(group)
    if found is None:
        known = ", ".join(queue.dispatchers)
        text = f"the queue {queue.config.name} has no group {group!r}, only: {known}"
        raise QueueError("missing", text, "group")
    return found


def _first_or(queue: Queue, group: str) -> Dispatcher:
    return _named(queue, group) if group else next(iter(queue.dispatchers.values()))


def _pause(queue: Queue, groups: frozenset[str]) -> None:
    queue.paused = groups
    for one in queue.dispatchers.values():
        one.paused = "" in groups or one.name in groups
        one.schedule()


async def _committed(stored: Awaitable[Any]) -> None:
    try:
        await stored
    except PluginError as error:
        raise QueueError("failed", error.message) from None


def unsettled_after(dispatcher: Dispatcher, queue: Queue, after: int, limit: int) -> list[int]:
    """Return up to `limit` offsets of unsettled messages above `after`, in order."""
    group, found = dispatcher.group, []
    for offset in group.unsettled:
        if offset > after:
            found.append(offset)
            if len(found) == limit:
                return found
    first = max(group.next, after + 1)
    found += range(first, min(queue.log.visible, first + limit - len(found)))
    return found


async def read_messages(
    queue: Queue, offsets: Sequence[int], broker: BrokerHandle
) -> dict[int, Message]:
    """Return messages by offset, from memory or from disk. Settled messages may be missing. Raises QueueError."""
    found: dict[int, Message] = {}
    for offset in offsets:
        message = queue.log.get(offset)
        if message is not None:
            found[offset] = message
        elif offset not in found:
            try:
                page = await in_thread(broker.runtime, partial(queue.log.read, offset))
            except LookupError:
                continue  # it was settled and deleted meanwhile
            except (StoreError, ValueError) as error:
                text = f"the message {offset} of {queue.config.name} cannot be read: {error}"
                raise QueueError("failed", text) from None
            found.update(page)
    return found


def _group(queue: Queue, dispatcher: Dispatcher, full: bool) -> QueueGroup:
    group, stalls = dispatcher.group, dispatcher.stalls
    consumers = [
        QueueConsumer(
            one.client_id,
            one.filter,
            one.held,
            stalls.counts.get(one.key, 0),
            one.key in stalls.stalled,
            dispatcher.consumers.active in (None, one),
        )
        for one in (list(dispatcher.consumers.by_key.values())[:MAX_CONSUMERS] if full else ())
    ]
    return QueueGroup(
        dispatcher.name,
        dispatcher.backlog,
        len(group.leases),
        len(group.due),
        group.next,
        queue.ages.oldest(dispatcher),
        dispatcher.paused,
        dispatcher.stalled,
        len(dispatcher.consumers),
        tuple(consumers),
    )
