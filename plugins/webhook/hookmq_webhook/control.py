"""Let operators manage a plugin instance, which they see as a sink.

Implements `hookmq_toolkit.sinks.SinkManager` for this one sink.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final, Protocol

from hookmq.plugin import Runtime, StoreError
from hookmq_toolkit.channel import Refused
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
from hookmq_webhook.counts import Totals
from hookmq_webhook.deadletter import Dead, DeadLetters, Replay, replay
from hookmq_webhook.delivery import Delivery
from hookmq_webhook.outbox import Outbox
from hookmq_webhook.queues import MemoryQueue

POSITIONS: Final = "first, next or the number of an event"


class Instance(Protocol):
    """The parts of the plugin that operators manage."""

    config: WebhookConfig
    durable: bool
    queue: Outbox | MemoryQueue | None
    delivery: Delivery | None
    dead: DeadLetters | None

    @property
    def id(self) -> str: ...
    @property
    def folder(self) -> Path: ...
    @property
    def runtime(self) -> Runtime | None: ...
    @property
    def dropped_events(self) -> int: ...
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

    @property
    def failing_since(self) -> float | None:
        """When the service began to fail, in epoch seconds, or None if it works."""
        return self.state.failing_since

    def note_failing(self, since: float | None) -> None:
        """Store the time at which the service began to fail, or None if the service works."""
        self._set(replace(self.state, failing_since=since))

    def _set(
        self,
        state: ControlState,
        done: Callable[[OSError | None], None] | None = None,
        forget: bool = False,
    ) -> None:
        before, self.state = self.stopped, state
        delivery = self._plugin.delivery
        if delivery is not None and (forget or before != self.stopped):
            delivery.link.pause(self.stopped, forget)
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
        config, queue, delivery = plugin.config, plugin.queue, plugin.delivery
        if delivery is not None:
            delivery.link.refresh()
        state, reason = self.present
        totals = delivery.totals if delivery is not None else Totals()
        running = delivery.running if delivery is not None else 0
        counts: dict[str, float] = {
            "written": totals["delivered"], "batches": totals["attempts"] - totals["failed"] - running,
            "write_seconds": totals.durations.sum, "failures": totals["failed"], "dead_letters": totals["given_up"],
        }  # fmt: skip
        restarts = delivery.link.restarts if delivery is not None else 0
        lag = queue.waiting if queue is not None else 0
        age = delivery.oldest_age if lag and delivery is not None else 0.0
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
            {f"status_{status}": count for status, count in totals.statuses.items()},
        )  # fmt: skip

    @property
    def present(self) -> tuple[SinkState, str]:
        """The instance's current state and the reason for it. The reason may be ''."""
        if self.state.disabled:
            return "disabled", self.state.disabled
        delivery = self._plugin.delivery
        reason = delivery.reason if delivery is not None else ""
        if self.state.paused:
            return "paused", reason
        if delivery is None or not delivery.begun:
            return "starting", ""
        if delivery.unreadable:
            return "failed", "the outbox cannot be read"
        return ("retrying", reason) if delivery.failing else ("active", "")

    async def test_sink(self, name: str) -> Sequence[SinkProblem]:
        """Raise SinkError, because only a real request can test a service."""
        self._find(name)
        raise SinkError("conflict", "send a sample with hookmq webhook test -c FILE instead")

    async def pause_sink(self, name: str, paused: bool) -> None:
        """Pause or resume the instance. Resuming also enables an instance that disabled itself."""
        plugin = self._find(name)
        runtime = plugin.runtime
        if runtime is None:
            raise SinkError("conflict", "the broker is starting or stopping")
        state = replace(self.state, paused=True) if paused else ControlState()
        stored = runtime.promise()
        self._set(state, lambda error: stored.set_result(error), forget=not paused)
        error = await stored
        if error is not None:
            raise SinkError("failed", f"cannot be stored: {error.strerror}")

    async def seek_sink(self, name: str, position: str) -> int:
        """Continue with another event, and return its number.

        `next` discards all waiting events. A lower number resends events that are still stored.
        """
        plugin = self._find(name)
        queue, delivery = plugin.queue, plugin.delivery
        if queue is None or delivery is None or not delivery.opened:
            raise SinkError("conflict", "the outbox is not open yet")
        if position not in ("first", "next") and not (position.isascii() and position.isdigit()):
            raise SinkError(
                "invalid", f"{position[:40]!r} is not a position; use {POSITIONS}", "position"
            )
        if isinstance(queue, MemoryQueue):
            if position != "next":
                raise SinkError("conflict", "only next is possible, because events wait in memory")
            number = queue.end
            queue.clear()
            await self._seek(delivery, number)
            return number
        first, end = queue.log.earliest, queue.log.readable
        known = {"first": first, "next": end}
        wanted = known.get(position)
        number = min(max(first, int(position[:20])), end) if wanted is None else wanted
        before = queue.start
        await self._seek(delivery, number)
        plugin.log("info", "webhook.sought", before=before, number=number)
        return number

    async def _seek(self, delivery: Delivery, number: int) -> None:
        try:
            await delivery.link.seek(number)
        except (Refused, OSError) as error:
            raise SinkError("failed", str(error)) from error

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
        dead, delivery = self._dead(self._plugin.id), self._plugin.delivery
        if self.stopped:
            raise SinkError("conflict", "the instance is paused or disabled; resume it first")
        if delivery is None or self._replaying:
            raise SinkError("conflict", "dead letters are already being sent")
        self._replaying = True
        try:
            return await replay(dead, delivery.link.send, wanted)
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

    async def list_deliveries(self, name: str, event: str, limit: int) -> Sequence[SinkDelivery]:
        """Return the latest attempts to send events, newest first."""
        delivery = self._find(name).delivery
        if delivery is None:
            return []
        try:
            return await delivery.link.deliveries(event, limit)
        except Refused as error:
            raise SinkError("failed", str(error)) from error


def _letter(one: Dead) -> SinkDeadLetter:
    event = one.event
    payload = event.payload
    if payload is None:
        payload = json.dumps(dict(event.data), default=str).encode()
    return SinkDeadLetter(
        one.place, one.id, one.number, event.topic or "", payload, event.client, None,
        one.reason, one.time, event.type,
    )  # fmt: skip
