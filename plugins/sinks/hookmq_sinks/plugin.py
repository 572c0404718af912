"""The `sinks` plugin."""

import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from hookmq.plugin import (
    BrokerHandle,
    Context,
    Journal,
    MetricRegistry,
    Plugin,
    StoreError,
    Timer,
    hookimpl,
)
from hookmq_toolkit.sink_control import read_control
from hookmq_toolkit.sinks import SERVICE
from hookmq_toolkit.sources import SERVICE as SOURCES

from hookmq_sinks.config import SinksConfig
from hookmq_sinks.control import SinkControl
from hookmq_sinks.intake import Intake
from hookmq_sinks.metrics import register
from hookmq_sinks.process import SenderProcess
from hookmq_sinks.sink_log import LOG, SinkLog
from hookmq_sinks.source_control import SourceControl
from hookmq_sinks.source_metrics import register_sources
from hookmq_sinks.source_process import SourceProcess

STOP: Final = 5.0
CHECK_EVERY: Final = 5.0


class SinksPlugin(Plugin):
    """A plugin that writes messages to other systems. Each sink stores messages in a log until its target has them."""

    Config = SinksConfig
    config: SinksConfig

    def __init__(self, config: SinksConfig, context: Context) -> None:
        super().__init__(config, context)
        self.sinks: list[SinkLog] = []
        self.processes: list[SenderProcess] = []
        self.intakes: list[Intake] = []
        self.receivers: list[SourceProcess] = []
        self._broker: BrokerHandle | None = None
        self._timer: Timer | None = None
        control = SinkControl(
            lambda: {one.sink.config.name: one for one in self.processes},
            lambda: 0.0 if self._broker is None else self._broker.time(),
        )
        self.offered_services = {SERVICE: control, SOURCES: SourceControl(lambda: self.receivers)}
        self._control = control

    @property
    def notes(self) -> Sequence[str]:
        """Notes about what each sink stores, and what happens when its log is full."""
        return [
            f"{one.name}: {one.driver} gets {', '.join(one.topics)}; stored under {self.config.path / one.name}; "
            + _FULL[one.on_full]
            for one in self.config.sinks
        ] + [
            f"{one.name}: publishes what it gets from {one.driver}, as {one.publisher}"
            for one in self.config.sources
        ]

    @hookimpl
    def provide_journal(self, broker: BrokerHandle) -> tuple[Journal, ...]:
        """Return a journal for each sink. Raises StoreError if a folder contains a sink that is not configured."""
        self._broker = broker
        self._refuse_strange(self.config.path)
        self.sinks = [
            SinkLog(one, self.config.path, broker.runtime, sync=self.config.sync, plugin=self.id)
            for one in self.config.sinks
        ]
        self.intakes = [Intake(one, self.id, broker) for one in self.config.sources]
        marks = [one.journal for one in self.intakes if one.journal is not None]
        return (*self.sinks, *marks)

    def _refuse_strange(self, path: Path) -> None:
        known = {one.name for one in self.config.sinks}
        for folder in sorted(path.iterdir()) if path.is_dir() else ():
            if folder.name not in known and (folder / LOG).is_dir():
                raise StoreError(
                    f"{folder} contains a sink that is not configured: if it was renamed, restore its name; if it is no "
                    "longer needed, move the folder away"
                )

    @hookimpl
    async def on_startup(self, broker: BrokerHandle) -> None:
        """Start a process for each sink."""
        self.processes = [SenderProcess(one, self.config.sync) for one in self.sinks]
        for one in self.processes:
            one.paused = read_control(one.sink.folder).paused
            one.start()
        self.receivers = [
            SourceProcess(one, self.config.path / one.config.name, self.log) for one in self.intakes
        ]
        for receiver in self.receivers:
            receiver.paused = read_control(receiver.folder).paused
        self._look()

    @hookimpl
    async def on_ready(self, broker: BrokerHandle) -> None:
        """Start a process for each source. From now on, the broker can publish their messages."""
        for one in self.receivers:
            one.start()

    def _look(self) -> None:
        """Check the free disk space."""
        assert self._broker is not None
        with suppress(OSError):
            low = shutil.disk_usage(self.config.path).free < self.config.min_free
            for one in self.sinks:
                one.low_disk = low
        self._timer = self._broker.runtime.call_later(CHECK_EVERY, self._look)

    @hookimpl
    async def on_shutdown(self, broker: BrokerHandle, deadline: float) -> None:
        """End the processes and close the logs. By now, all messages have been committed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for receiver in self.receivers:
            await receiver.stop(min(deadline, STOP))
        for process in self.processes:
            await process.stop(min(deadline, STOP))
        for sink in self.sinks:
            sink.close()
        broker.invalidate_routes()

    @hookimpl
    def register_metrics(self, registry: MetricRegistry) -> None:
        """Add the metrics of `hookmq_sinks.metrics`."""
        register(registry, self._control.list_sinks)
        register_sources(registry, lambda: self.receivers)


_FULL: Final = {
    "block": "if its log is full, messages are refused (0x97)",
    "drop_oldest": "if its log is full, the oldest messages are dropped",
    "drop_new": "if its log is full, new messages are dropped",
}
