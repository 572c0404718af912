"""The `sinks` plugin."""

import shutil
from collections.abc import Callable, Sequence
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
from hookmq_toolkit.sinks import SERVICE
from hookmq_toolkit.sources import SERVICE as SOURCES

from hookmq_sinks.config import SinksConfig
from hookmq_sinks.control import SinkControl
from hookmq_sinks.members import Members
from hookmq_sinks.metrics import register
from hookmq_sinks.process import SenderProcess
from hookmq_sinks.sink_log import LOG, SinkLog
from hookmq_sinks.source_control import SourceControl
from hookmq_sinks.source_metrics import register_sources
from hookmq_sinks.source_process import SourceProcess

CHECK_EVERY: Final = 5.0


class SinksPlugin(Plugin):
    """A plugin that writes messages to other systems. Each sink stores messages in a log until its target has them."""

    Config = SinksConfig
    config: SinksConfig

    def __init__(self, config: SinksConfig, context: Context) -> None:
        super().__init__(config, context)
        self.members: Members | None = None
        self._broker: BrokerHandle | None = None
        self._timer: Timer | None = None
        control = SinkControl(
            lambda: {one.sink.config.name: one for one in self.processes},
            lambda: 0.0 if self._broker is None else self._broker.time(),
        )
        self.offered_services = {SERVICE: control, SOURCES: SourceControl(lambda: self.receivers)}
        self._control = control

    @property
    def sinks(self) -> Sequence[SinkLog]:
        """The logs of the sinks."""
        return () if self.members is None else self.members.sinks

    @property
    def processes(self) -> Sequence[SenderProcess]:
        """The processes of the sinks."""
        return () if self.members is None else self.members.processes

    @property
    def receivers(self) -> Sequence[SourceProcess]:
        """The processes of the sources."""
        return () if self.members is None else self.members.receivers

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

    @property
    def per_node(self) -> str:
        """Why the sources cannot be used in a cluster; see `hookmq_toolkit.cluster.PerNode`."""
        # Programs choose the node to which they send messages for the source http.
        names = [one.name for one in self.config.sources if one.driver != "http"]
        if not names:
            return ""
        return f"each node starts the sources ({', '.join(names)}), so that messages can arrive more than once"

    @hookimpl
    def provide_journal(self, broker: BrokerHandle) -> tuple[Journal, ...]:
        """Return a journal for each sink. Raises StoreError if a folder contains a sink that is not configured."""
        self._broker = broker
        self._refuse_strange(self.config.path)
        self.members = Members(self.config, self.id, broker, self.log)
        return self.members.journals

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
        assert self.members is not None
        self.members.start()
        self._look()

    @hookimpl
    async def on_ready(self, broker: BrokerHandle) -> None:
        """Start a process for each source. From now on, the broker can publish their messages."""
        assert self.members is not None
        self.members.start_sources()

    def reconfigure(self, config: SinksConfig) -> Callable[[], None]:
        """Check `config`, and return a function that begins to add, remove and change sinks and sources.

        Unchanged ones keep running. Raises ConfigError if `config` changes a setting that needs a restart.
        """
        members = self.members
        if members is not None:
            members.check(config)

        def apply() -> None:
            self.config = config
            if members is not None:
                members.change(config)

        return apply

    def _look(self) -> None:
        """Check the free disk space."""
        assert self._broker is not None
        assert self.members is not None
        with suppress(OSError):
            low = shutil.disk_usage(self.config.path).free < self.config.min_free
            for one in self.members.sinks:
                one.low_disk = low
        self._timer = self._broker.runtime.call_later(CHECK_EVERY, self._look)

    @hookimpl
    async def on_shutdown(self, broker: BrokerHandle, deadline: float) -> None:
        """End the processes and close the logs. By now, all messages have been committed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.members is not None:
            await self.members.stop(deadline)
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
