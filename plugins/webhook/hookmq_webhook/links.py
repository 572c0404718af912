"""Reach the engine of an instance: in the broker's own process, or in the sending process."""

import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from hookmq.plugin import Runtime, Timer
from hookmq_toolkit.channel import Refused
from hookmq_toolkit.sinks import SinkDelivery

from hookmq_webhook.config import WebhookConfig
from hookmq_webhook.engine import Engine, Host, Opening, new_log_queue
from hookmq_webhook.parcels import Answer, Verdict
from hookmq_webhook.process import SenderProcess, sender_process
from hookmq_webhook.queues import MemoryQueue, Numbered, packed, unpacked
from hookmq_webhook.sender import Sender
from hookmq_webhook.spans import Traced

REPLY: Final = 10.0
"""Seconds that the process may take for an operator's request."""
_BACKLOG: Final = 1 << 16

Place = Callable[[], tuple[Any, ...]]
"""Returns how far events are committed: the arguments of `hookmq_webhook.engine.Engine.wake`."""


class Link(Protocol):
    """The broker's way to an engine. Requests raise `Refused`."""

    @property
    def restarts(self) -> int:
        """Number of processes that were started to replace one that died."""

    def open(self, opening: Callable[[], Opening], place: Place) -> None:
        """Open the engine, and let it begin."""

    def wake(self) -> None:
        """Tell the engine about new events."""

    def pause(self, stopped: bool, forget: bool) -> None:
        """See `Engine.pause`."""

    def use(self, config: WebhookConfig) -> None:
        """Use another configuration from now on."""

    def refresh(self) -> None:
        """Let the engine report now, if that is possible without waiting."""

    async def seek(self, number: int) -> None:
        """See `Engine.seek`."""

    async def drain(self) -> None:
        """See `Engine.drain`."""

    async def send(self, events: Sequence[Numbered]) -> Answer:
        """See `Engine.send`."""

    async def deliveries(self, event: str, limit: int) -> list[SinkDelivery]:
        """See `Engine.deliveries`."""

    async def close(self) -> None:
        """Close the engine."""


class LocalLink:
    """An engine on the broker's event loop."""

    restarts = 0

    def __init__(
        self,
        config: WebhookConfig,
        plugin_id: str,
        make: Callable[[WebhookConfig], Sender],
        runtime: Runtime,
        host: Host,
        memory: MemoryQueue | None,
    ) -> None:
        self.engine: Engine | None = None
        self._config = config
        self._id = plugin_id
        self._make = make
        self._runtime = runtime
        self._host = host
        self._memory = memory
        self._place: Place = tuple
        self._sender = make(config)

    def open(self, opening: Callable[[], Opening], place: Place) -> None:
        given = opening()
        queue: Any = self._memory
        if queue is None:
            queue = new_log_queue(
                given, self._runtime, self._runtime.run_blocking, self._host, self._changed
            )
            queue.load()
        self._place = place
        self.engine = engine = Engine(
            self._config, self._id, given, queue, self._sender, self._runtime, self._host
        )
        if self._memory is None:
            queue.advance(*place())
        engine.begin()

    def _changed(self) -> None:
        if self.engine is not None:
            self.engine.changed()

    def wake(self) -> None:
        if self.engine is not None:
            self.engine.wake(*(() if self._memory is not None else self._place()))

    def pause(self, stopped: bool, forget: bool) -> None:
        if self.engine is not None:
            self.engine.pause(stopped, forget)

    def use(self, config: WebhookConfig) -> None:
        self._config = config
        sender = self._make(config)
        if self.engine is not None:
            self.engine.use(config, sender)
        self._sender = sender

    def refresh(self) -> None:
        if self.engine is not None:
            self.engine.report()

    def _opened(self) -> Engine:
        if self.engine is None:
            raise Refused("the outbox is not open yet")
        return self.engine

    async def seek(self, number: int) -> None:
        await self._opened().seek(number)

    async def drain(self) -> None:
        await self._opened().drain()

    async def send(self, events: Sequence[Numbered]) -> Answer:
        return await self._opened().send(events)

    async def deliveries(self, event: str, limit: int) -> list[SinkDelivery]:
        return await self._opened().deliveries(event, limit)

    async def close(self) -> None:
        if self.engine is not None:
            await self.engine.close()
        else:
            await self._sender.close()


class RemoteLink:
    """An engine in the sending process; implements `hookmq_webhook.process.User`."""

    def __init__(
        self,
        config: WebhookConfig,
        plugin_id: str,
        runtime: Runtime,
        host: Host,
        memory: MemoryQueue | None,
        ended: Callable[[], None],
    ) -> None:
        self.process: SenderProcess = sender_process(runtime)
        self._config = config
        self._id = plugin_id
        self._runtime = runtime
        self._host = host
        self._memory = memory
        self._ended = ended
        self._opening: Callable[[], Opening] | None = None
        self._place: Place = tuple
        self._told: tuple[Any, ...] = ()
        self._told_at = float("-inf")
        self._timer: Timer | None = None
        self._started = runtime.promise()
        """Set once the first process has started."""

    @property
    def restarts(self) -> int:
        return self.process.restarts

    def open(self, opening: Callable[[], Opening], place: Place) -> None:
        self._opening, self._place = opening, place
        self.process.add(self._id, self)

    def _write(self, method: str, *values: Any) -> None:
        self.process.child.write((self._id, method, values))

    async def _ask(self, method: str, *values: Any, seconds: float = REPLY) -> Any:
        return await self.process.child.ask((self._id, method, values), seconds)

    # User ------------------------------------------------------------------------------------------------------------

    def log(self, level: str, event: str, /, **fields: object) -> None:
        self._host.log(level, event, **fields)

    def open_again(self) -> None:
        if self._opening is not None:
            if self._memory is not None:
                self._memory.begin_again()
            # A read-only view cannot be pickled.
            plain = replace(self._config, headers=dict(self._config.headers))
            self._write("open", pickle.dumps(plain), tuple(self._opening()))
            self._told = ()
            self._tell()
            if not self._started.done():
                self._started.set_result(None)

    def note_end(self) -> None:
        self._ended()

    def take_call(self, method: str, values: Any, fields: dict[str, Any]) -> None:
        if method == "note_queue":
            self._note_queue(*values)
        elif method == "add_spans":
            traced, *rest = values
            self._host.add_spans([Traced(*one) for one in traced], *rest)
        elif method in ("log", "disable", "note_failing", "lost", "take_report"):
            getattr(self._host, method)(*values, **fields)

    def _note_queue(self, notes: list[tuple[str, int]]) -> None:
        if self._memory is not None:
            for what, number in notes:
                getattr(self._memory, what)(number)

    async def answer(self, method: str, values: Any) -> Any:
        promise = self._runtime.promise()
        if method == "bury":
            row, reason, attempts = values
            self._host.bury(unpacked(row), reason, attempts, promise.set_result)
        elif method == "page" and self._memory is not None:
            memory = self._memory

            def paged(found: list[Numbered], following: int, _: Exception | None) -> None:
                for one in found:
                    memory.taken(one.number)  # until the engine reports that it has left it
                promise.set_result(([packed(one) for one in found], following))

            after, count, size = values
            memory.page(after, count, size, paged)
        else:
            raise Refused(f"cannot {method}")
        return await promise

    # Link ------------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        if self._timer is None:
            wait = self._told_at + self._config.wake_interval - self._runtime.now()
            if wait <= 0:
                self._tell()
            else:
                self._timer = self._runtime.call_later(wait, self._tell)

    def _tell(self) -> None:
        self._timer = None
        if self.process.child.backlog > _BACKLOG:
            self._told_at = self._runtime.now()
            self.wake()  # the process is not reading: send only the newest place, later
            return
        place = self._place()
        if place != self._told:
            self._told, self._told_at = place, self._runtime.now()
            self._write("wake", *place)

    def pause(self, stopped: bool, forget: bool) -> None:
        self._write("pause", stopped, forget)

    def use(self, config: WebhookConfig) -> None:
        self._config = config
        self._write("use", pickle.dumps(replace(config, headers=dict(config.headers))))

    def refresh(self) -> None:
        """Do nothing: the process reports by itself."""

    async def seek(self, number: int) -> None:
        await self._ask("seek", number)

    async def drain(self) -> None:
        await self._started  # a broker may stop soon after its start
        if self._timer is not None:  # otherwise the process would not know the newest events yet
            self._timer.cancel()
            self._tell()
        await self._ask("drain", seconds=3600.0)

    async def send(self, events: Sequence[Numbered]) -> Answer:
        config = self._config
        longest = (config.redirects + 2) * config.timeout + REPLY
        rows = [packed(one) for one in events]
        try:
            verdict, reason, after = await self._ask("send", rows, seconds=longest)
        except Refused as error:
            return Answer(Verdict.AGAIN, str(error))
        return Answer(Verdict(verdict), reason, after)

    async def deliveries(self, event: str, limit: int) -> list[SinkDelivery]:
        return [SinkDelivery(*one) for one in await self._ask("deliveries", event, limit)]

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        try:
            await self._ask("close")
        except Refused:
            pass  # the process is not running, or is stuck: the next one continues from the files
        self._opening = None
        await self.process.remove(self._id)


__all__ = ["Link", "LocalLink", "Place", "RemoteLink"]
