"""Let operators manage a plugin instance, which they see as a sink.

Implements `hookmq_toolkit.sinks.SinkManager` for this one sink.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final, Protocol

from hookmq.plugin import Runtime, StoreError
from hookmq_toolkit.sink_control import ControlState, read_control, write_control
from hookmq_toolkit.sinks import (
    DeadLetterPage,
    ReplayResult,
    SinkDeadLetter,
    SinkDelivery,
    SinkError,
    SinkProblem,
    SinkState,
    SinkStatus,
)

from hookmq_webhook.config import WebhookConfig
from hookmq_webhook.deadletter import Dead, DeadLetters, Replay, replay
from hookmq_webhook.deliveries import Deliveries
from hookmq_webhook.dispatch import Answer, Dispatcher
from hookmq_webhook.outbox import Outbox
from hookmq_webhook.process import SenderProcess
from hookmq_webhook.queues import MemoryQueue, Numbered
from hookmq_webhook.sender import Sender

POSITIONS: Final = "first, next or the number of an event"


class Instance(Protocol):
    """The parts of the plugin that operators manage."""

    config: WebhookConfig
    durable: bool
    deliveries: Deliveries
    queue: Outbox | MemoryQueue | None
    dispatcher: Dispatcher | None
    sender: Sender | SenderProcess | None
    dead: DeadLetters | None

    @property
    def id(self) -> str: ...
    @property
    def folder(self) -> Path: ...
    @property
    def runtime(self) -> Runtime | None: ...
    @property
    def dropped_events(self) -> int: ...
    def begin_again(self, seek: Callable[[], None]) -> None: ...
    def log(self, level: str, event: str, /, **fields: object) -> None: ...


class Control:
    """Pauses, disables and repositions one instance, and reports its state.

    With `at_least_once`, the outbox folder stores whether the instance is paused or disabled. This state therefore
    survives a restart.
    """

    def __init__(self, plugin: Instance) -> None:
        self.state = ControlState()
        self._plugin = plugin
        self._stored = self.state
        self._storing = False
        self._waiting: list[Callable[[OSError | None], None]] = []
        self._replaying = False

    # state -----------------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the stored state. This call blocks. Raises StoreError."""
        if self._plugin.durable:
            self.state = self._stored = read_control(self._plugin.folder)

    @property
    def stopped(self) -> bool:
        """Whether the instance is paused or disabled, and therefore sends nothing."""
        return self.state.paused or bool(self.state.disabled)

    def disable(self, reason: str) -> None:
        """Stop sending until an operator resumes the instance."""
        if self.state.disabled:
            return
        self._plugin.log("error", "webhook.disabled", reason=reason)
        self._set(replace(self.state, disabled=reason))

    def note_health(self) -> None:
        """Store the time at which the service began to fail, or None if the service works."""
        dispatcher = self._plugin.dispatcher
        if dispatcher is not None:
            self._set(replace(self.state, failing_since=dispatcher.health.failing_since))

    def _set(
        self, state: ControlState, done: Callable[[OSError | None], None] | None = None
    ) -> None:
        self.state = state
        dispatcher = self._plugin.dispatcher
        if dispatcher is not None and dispatcher.paused != self.stopped:
            dispatcher.pause(self.stopped)
        runtime = self._plugin.runtime
        if not self._plugin.durable or runtime is None:
            if done is not None:
                done(None)
            return
        if done is not None:
            self._waiting.append(done)
        self._store(runtime)

    def _store(self, runtime: Runtime) -> None:
        """Write the state to disk. Only one write runs at a time."""
        if self._storing:
            return
        state, waiting = self.state, self._waiting
        self._waiting = []
        self._storing = True

        def stored(_: object, error: BaseException | None) -> None:
            self._storing = False
            if error is None:
                self._stored = state
            else:
                self._plugin.log("error", "webhook.control_not_stored", reason=str(error))
            for call in waiting:
                call(error if isinstance(error, OSError) else None)
            if self._waiting or (error is None and self.state != state):
                self._store(runtime)

        runtime.run_blocking(lambda: write_control(self._plugin.folder, state), stored)

    # hookmq_toolkit.sinks.SinkManager --------------------------------------------------------------------------------

    def _find(self, name: str) -> Instance:
        if name != self._plugin.id:
            raise SinkError("missing", f"there is no sink {name!r}")
        return self._plugin

    def list_sinks(self) -> Sequence[SinkStatus]:
        """Return the instance's state as the only item. Return an empty list if the instance has no queue yet."""
        return [self._status()] if self._plugin.queue is not None else []

    def show_sink(self, name: str) -> SinkStatus:
        """Return the state of the instance."""
        self._find(name)
        return self._status()

    def _status(self) -> SinkStatus:
        plugin = self._plugin
        config, queue, dispatcher = plugin.config, plugin.queue, plugin.dispatcher
        state, reason = self.present
        counts: dict[str, float] = dict.fromkeys(
            ("written", "batches", "write_seconds", "failures", "dead_letters"), 0
        )
        if dispatcher is not None:
            found = dispatcher.counts
            counts = {
                "written": found.delivered, "batches": found.attempts - found.failed - dispatcher.running,
                "write_seconds": found.durations.sum, "failures": found.failed, "dead_letters": found.given_up,
            }  # fmt: skip
        sender = plugin.sender
        restarts = sender.restarts if isinstance(sender, SenderProcess) else 0
        lag = queue.waiting if queue is not None else 0
        age = dispatcher.oldest_age if lag and dispatcher is not None else 0.0
        if isinstance(queue, Outbox):
            place = (queue.start, queue.log.next, queue.disk, config.outbox.max_bytes)
            full, on_full = queue.fill >= 1.0, str(config.outbox.on_full)
        else:
            end = queue.end if queue is not None else 0
            place = (
                max(0, end - lag),
                end,
                queue.size if queue is not None else 0,
                config.queue.max_bytes,
            )
            full, on_full = lag >= config.queue.max_events, f"drop_{config.queue.drop}"
        return SinkStatus(
            plugin.id, "webhook", config.filters.topics or ("#",), state, reason, False, place[0], place[1], lag,
            round(age, 3), place[2], place[3], on_full, full, plugin.dead.waiting if plugin.dead is not None else 0,
            {**counts, "dropped": plugin.dropped_events, "restarts": restarts},
            dict(_answers(sender)),
        )  # fmt: skip

    @property
    def present(self) -> tuple[SinkState, str]:
        """The instance's current state and the reason for it. The reason may be ''."""
        if self.state.disabled:
            return "disabled", self.state.disabled
        dispatcher = self._plugin.dispatcher
        health = dispatcher.health if dispatcher is not None else None
        reason = health.reason if health is not None else ""
        if self.state.paused:
            return "paused", reason
        if dispatcher is None or not dispatcher.begun:
            return "starting", ""
        if dispatcher.unreadable:
            return "failed", "the outbox cannot be read"
        if health is not None and health.failing_since is not None:
            return "retrying", reason
        return "active", ""

    async def test_sink(self, name: str) -> Sequence[SinkProblem]:
        """Raise SinkError, because only a real request can test a service."""
        self._find(name)
        raise SinkError("conflict", "send a sample with hookmq webhook test -c FILE instead")

    async def pause_sink(self, name: str, paused: bool) -> None:
        """Pause or resume the instance. Resuming also enables an instance that disabled itself."""
        plugin = self._find(name)
        dispatcher, runtime = plugin.dispatcher, plugin.runtime
        if runtime is None:
            raise SinkError("conflict", "the broker is starting or stopping")
        if paused:
            state = replace(self.state, paused=True)
        else:
            if dispatcher is not None:
                dispatcher.health.forget()
            state = ControlState()
        stored = runtime.promise()
        self._set(state, lambda error: stored.set_result(error))
        error = await stored
        if error is not None:
            raise SinkError("failed", f"cannot be stored: {error.strerror}")

    async def seek_sink(self, name: str, position: str) -> int:
        """Continue with another event, and return its number.

        `next` discards all waiting events. A lower number resends events that are still stored.
        """
        plugin = self._find(name)
        queue = plugin.queue
        if queue is None or plugin.dispatcher is None or not plugin.dispatcher.begun:
            raise SinkError("conflict", "the outbox is not open yet")
        if position not in ("first", "next") and not (position.isascii() and position.isdigit()):
            raise SinkError(
                "invalid", f"{position[:40]!r} is not a position; use {POSITIONS}", "position"
            )
        if isinstance(queue, MemoryQueue):
            if position != "next":
                raise SinkError("conflict", "only next is possible, because events wait in memory")
            plugin.begin_again(queue.clear)
            return queue.end
        first, end = queue.log.earliest, queue.log.readable
        known = {"first": first, "next": end}
        number = known.get(position)
        if number is None:
            number = min(max(first, int(position[:20])), end)
        before = queue.start
        plugin.begin_again(lambda: queue.seek(number))
        plugin.log("info", "webhook.sought", before=before, number=number)
        return number

    async def list_dead_letters(self, name: str, after: int | None, limit: int) -> DeadLetterPage:
        """Return dead letters, oldest first."""
        dead = self._dead(name)
        start = -1 if after is None else after

        def read() -> list[Dead]:
            return list(islice((one for one in dead.read() if one.place > start), limit + 1))

        try:
            found = await asyncio.to_thread(read)
        except (OSError, StoreError) as error:
            raise SinkError("failed", f"the dead letters cannot be read: {error}") from error
        more = len(found) > limit
        items = [_letter(one) for one in found[:limit]]
        return DeadLetterPage(items, items[-1].number if more else None)

    def _dead(self, name: str) -> DeadLetters:
        dead = self._find(name).dead
        if dead is None:
            raise SinkError("conflict", "this instance has no file of dead letters")
        return dead

    async def replay_dead_letters(self, name: str) -> ReplayResult:
        """Resend all dead letters."""
        self._dead(name)
        done = await self.replay(lambda one: True)
        return ReplayResult(done.arrived, done.failed)

    async def replay(self, wanted: Callable[[Dead], bool]) -> Replay:
        """Resend the dead letters for which `wanted` is true. Raises SinkError."""
        dead, sender = self._dead(self._plugin.id), self._plugin.sender
        if self.stopped:
            raise SinkError("conflict", "the instance is paused or disabled; resume it first")
        if sender is None or self._replaying:
            raise SinkError("conflict", "dead letters are already being sent")
        send: Callable[[list[Numbered]], Awaitable[Answer]] = sender.send
        self._replaying = True
        try:
            return await replay(dead, send, wanted)
        except (OSError, StoreError) as error:
            raise SinkError("failed", f"the dead letters cannot be read: {error}") from error
        finally:
            self._replaying = False

    async def purge_dead_letters(self, name: str) -> int:
        """Delete all dead letters."""
        dead = self._dead(name)
        before = dead.waiting
        try:
            await asyncio.to_thread(dead.purge())
        except OSError as error:
            raise SinkError("failed", f"cannot be stored: {error.strerror}") from error
        return before

    # hookmq_toolkit.sinks.DeliveryLog --------------------------------------------------------------------------------

    def list_deliveries(self, name: str, event: str, limit: int) -> Sequence[SinkDelivery]:
        """Return the latest attempts to send events, newest first."""
        return list(islice(self._find(name).deliveries.latest(event), limit))


def _answers(sender: Sender | SenderProcess | None) -> dict[str, float]:
    """Return the number of responses for each status."""
    statuses = sender.statuses if sender is not None else {}
    return {f"status_{status}": count for status, count in sorted(statuses.items())}


def _letter(one: Dead) -> SinkDeadLetter:
    event = one.event
    payload = event.payload
    if payload is None:
        payload = json.dumps(dict(event.data), default=str).encode()
    return SinkDeadLetter(
        one.place, one.id, one.number, event.topic or "", payload, event.client, None,
        one.reason, one.time, event.type,
    )  # fmt: skip
