"""Engines on real NATS servers, for the engines' contract."""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any

from hookmq.server.asyncio_runtime import AsyncioRuntime
from hookmq_cluster.nats_connection import NatsOptions
from hookmq_cluster.nats_engine import NatsEngine

STEP = 0.002
"""Seconds for which the event loop runs until a condition is checked again."""


class LoggingRuntime(AsyncioRuntime):
    """A runtime that passes its log on."""

    def __init__(self, logged: Callable[..., None]) -> None:
        super().__init__(threads=1)
        self._logged = logged

    def log(self, level: str, event: str, /, **fields: object) -> None:
        """Pass a log event on."""
        self._logged(level, event, **fields)


class NatsBench:
    """An `EngineBench`: engines of nodes that share a new stream, on one event loop.

    `logged` holds the log events of all engines.
    """

    def __init__(self, urls: tuple[str, ...], cluster: str, replicas: int) -> None:
        self.prefix = f"hmq.{cluster}."
        self.logged: list[tuple[str, str, dict[str, object]]] = []
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(self._failed)
        self.failures: list[dict[str, Any]] = []
        self.engines: list[NatsEngine] = []
        self._urls = urls
        self.stream = f"HOOKMQ_{cluster}"
        self._replicas = replicas

    def new(self, urls: tuple[str, ...] = (), **options: Any) -> NatsEngine:
        """Return an engine that is not open."""

        return NatsEngine(
            NatsOptions(urls or self._urls, **options),
            self.stream,
            self.prefix + ">",
            self.runtime(),
            self._replicas,
        )

    def runtime(self) -> LoggingRuntime:
        """Return the runtime of a new node."""

        async def make() -> LoggingRuntime:
            return LoggingRuntime(self._log)

        return self.loop.run_until_complete(make())

    def engine(self, urls: tuple[str, ...] = ()) -> NatsEngine:
        """Return the engine of a new node, which connects to any of `urls`."""
        engine = self.new(urls)
        self.loop.run_until_complete(engine.open())
        self.engines.append(engine)
        return engine

    def wait(self, until: Callable[[], object], seconds: float = 10.0) -> None:
        """Run the event loop until `until()` is true."""
        end = monotonic() + seconds
        while not until():
            assert monotonic() < end, f"the awaited event does not happen; {self.logged[-20:]}"
            self.pass_time(STEP)

    def pass_time(self, seconds: float) -> None:
        """Run the event loop."""
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def close(self) -> None:
        """Close all engines. Nothing may have failed in the event loop."""
        for engine in self.engines:
            closed: list[bool] = []
            engine.close(lambda closed=closed: closed.append(True))  # type: ignore[misc]
            self.wait(lambda closed=closed: closed, 30.0)  # type: ignore[misc]
        self.pass_time(0.02)
        tasks = asyncio.all_tasks(self.loop)
        self.loop.close()
        assert not tasks
        assert not self.failures, self.failures
        errors = [one for one in self.logged if one[0] == "error"]
        assert not errors, errors

    def _log(self, level: str, event: str, /, **fields: object) -> None:
        self.logged.append((level, event, fields))

    def _failed(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.failures.append(context)
