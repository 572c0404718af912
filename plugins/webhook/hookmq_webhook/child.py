"""The sending process of a broker: ``python -P -m hookmq_webhook.child FD``. It sends the events of all instances.

`hookmq_webhook.process` starts it. The process reads the outboxes itself. On its channel, it is only told how far events
are committed, and what operators request; see `hookmq_toolkit.channel`.
"""

import asyncio
import fcntl
import os
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from hookmq.plugin import Cancel, Done, Runtime
from hookmq_toolkit.channel import Channel, Refused
from hookmq_toolkit.child_runtime import ChildRuntime, run_child

from hookmq_webhook.config import WebhookConfig
from hookmq_webhook.engine import Engine, Opening, new_log_queue, new_sender
from hookmq_webhook.folder import SENDER_LOCK
from hookmq_webhook.parcels import Buried
from hookmq_webhook.queues import Numbered, Page, packed, unpacked
from hookmq_webhook.spans import Traced

OPEN_AGAIN: Final = 5.0
"""Seconds after which an instance that cannot be opened is tried again."""


class RemoteHost:
    """The broker, at the other end of the channel; implements `hookmq_webhook.engine.Host`."""

    def __init__(self, id: str, channel: Channel) -> None:
        self._id = id
        self._channel = channel

    def log(self, level: str, event: str, /, **fields: object) -> None:
        """Implement `Host.log`."""
        self._channel.write((self._id, "log", (level, event), fields))

    def disable(self, reason: str) -> None:
        """Implement `Host.disable`."""
        self._channel.write((self._id, "disable", (reason,), {}))

    def note_failing(self, since: float | None) -> None:
        """Implement `Host.note_failing`."""
        self._channel.write((self._id, "note_failing", (since,), {}))

    def bury(self, one: Numbered, reason: str, attempts: int, buried: Buried) -> None:
        """Implement `Host.bury`."""

        def answered(future: "asyncio.Future[str]") -> None:
            if not future.cancelled():
                error = future.exception()
                buried(future.result() if error is None else str(error))

        asked = self._channel.ask((self._id, "bury", (packed(one), reason, attempts)))
        asked.add_done_callback(answered)

    def lost(self, first: int, end: int) -> None:
        """Implement `Host.lost`."""
        self._channel.write((self._id, "lost", (first, end), {}))

    def add_spans(
        self, traced: Sequence[Traced], events: int, began: float, ended: float, error: str
    ) -> None:
        """Implement `Host.add_spans`."""
        plain = [tuple(one) for one in traced]
        self._channel.write((self._id, "add_spans", (plain, events, began, ended, error), {}))

    def take_report(self, report: dict[str, Any]) -> None:
        """Implement `Host.take_report`."""
        self._channel.write((self._id, "take_report", (report,), {}))


class RemoteQueue:
    """The queue in the broker's memory; implements `hookmq_webhook.queues.Queue`."""

    start = 0
    bounded = True
    oldest: float | None = None

    def __init__(self, id: str, channel: Channel, runtime: Runtime) -> None:
        self.waiting = 0
        self._id = id
        self._channel = channel
        self._runtime = runtime
        self._notes: list[tuple[str, int]] = []

    def advance(self, waiting: int, end: int) -> None:
        """Record how many events wait in the broker. `end` is the number of the next event."""
        self.waiting = waiting

    def page(self, after: int, count: int, size: int, done: Page) -> None:
        def answered(future: "asyncio.Future[Any]") -> None:
            if not future.cancelled() and future.exception() is None:
                rows, following = future.result()
                done([unpacked(row) for row in rows], following, None)

        self._tell()
        asked = self._channel.ask((self._id, "page", (after, count, size)))
        asked.add_done_callback(answered)

    def taken(self, number: int) -> None:
        self._note("taken", number)

    def left(self, number: int) -> None:
        self._note("left", number)

    def done(self, number: int) -> None:
        self.waiting = max(0, self.waiting - 1)
        self._note("done", number)

    def _note(self, what: str, number: int) -> None:
        self._notes.append((what, number))
        if len(self._notes) == 1:
            self._runtime.call_soon(self._tell)

    def _tell(self) -> None:
        notes, self._notes = self._notes, []
        if notes:
            self._channel.write((self._id, "note_queue", (notes,), {}))

    def clear(self) -> None:
        """Do nothing: the broker has already discarded the events."""


class Instance:
    """One plugin instance, while it is opened and afterwards."""

    def __init__(self, id: str, channel: Channel, config: WebhookConfig, opening: Opening) -> None:
        self.config = config
        self.opened = asyncio.Event()
        self.engine: Engine | None = None
        self.held: dict[str, Any] = {}
        """The latest values that the broker has sent before the engine was open, by method."""
        self._id = id
        self._channel = channel
        self._opening = opening
        self._lock = -1
        self.task = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        host = RemoteHost(self._id, self._channel)
        runtime = ChildRuntime(host.log)
        while self.engine is None:
            try:
                await self._make(host, runtime)
            except OSError as error:
                host.log("error", "webhook.sender_not_started", reason=str(error))
                await asyncio.sleep(OPEN_AGAIN)
        for method, values in self.held.items():
            self.take(method, values)
        self.engine.begin()
        self.opened.set()

    async def _make(self, host: RemoteHost, runtime: ChildRuntime) -> None:
        sender = new_sender(self.config, self._id, runtime)
        queue: Any
        if self._opening.folder is None:
            queue = RemoteQueue(self._id, self._channel, runtime)
        else:
            await self._take_lock(Path(self._opening.folder))
            queue = new_log_queue(self._opening, runtime, _at_once, host, self._changed)
            queue.load()
        self.engine = Engine(self.config, self._id, self._opening, queue, sender, runtime, host)

    async def _take_lock(self, folder: Path) -> None:
        if self._lock < 0:
            path = folder / SENDER_LOCK
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # The process of a killed broker may still hold the lock for a moment.
        await asyncio.to_thread(fcntl.flock, self._lock, fcntl.LOCK_EX)

    def _changed(self) -> None:
        if self.engine is not None:
            self.engine.changed()

    def take(self, method: str, values: Any) -> None:
        """Carry out the broker's requests."""
        engine = self.engine
        if method == "use":
            self.config = config = pickle.loads(values[0])
            if engine is None:
                return
            try:
                sender = new_sender(config, self._id, engine.runtime)
            except OSError as error:
                RemoteHost(self._id, self._channel).log(
                    "error", "webhook.sender_not_started", reason=str(error)
                )
                return
            engine.use(config, sender)
        elif engine is None:
            self.held[method] = values
        elif method == "wake":
            engine.wake(*values)
        elif method == "pause":
            engine.pause(*values)

    async def close(self) -> None:
        """End the instance. Its events remain in the outbox."""
        self.task.cancel()
        if self.engine is not None:
            await self.engine.close()
        if self._lock >= 0:
            os.close(self._lock)


class Child:
    """Serves the broker's end of the channel."""

    def __init__(self) -> None:
        self._instances: dict[str, Instance] = {}
        self.channel = Channel(self._take, self._answer)

    def _take(self, value: Any) -> None:
        id, method, values = value
        if method == "open":
            data, opening = values
            config = pickle.loads(data)
            self._instances[id] = Instance(id, self.channel, config, Opening(*opening))
        elif id in self._instances:
            self._instances[id].take(method, values)

    async def _answer(self, request: Any) -> Any:
        if request is None:
            return None
        id, method, values = request
        instance = self._instances.get(id)
        if instance is None:
            raise Refused("the instance is closed")
        if method == "close":
            del self._instances[id]
            await instance.close()
            return None
        await instance.opened.wait()
        engine = instance.engine
        assert engine is not None
        if method == "seek":
            await engine.seek(*values)
        elif method == "drain":
            await engine.drain()
        elif method == "send":
            answer = await engine.send([unpacked(row) for row in values[0]])
            return answer.verdict.value, answer.reason, answer.after
        elif method == "deliveries":
            return [
                (one.id, one.event, one.at, one.seconds, one.attempt, one.result, one.reason)
                for one in await engine.deliveries(*values)
            ]
        return None


def _at_once(call: Callable[[], Any], done: Done) -> Cancel:
    """Run `call` now. Reading the outbox may block this process, which only delays requests."""
    try:
        result = call()
    except Exception as error:
        done(None, error)
    else:
        done(result, None)
    return lambda: None


if __name__ == "__main__":
    run_child(lambda: Child().channel)
