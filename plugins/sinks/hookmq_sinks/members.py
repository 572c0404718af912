"""The sinks and sources of a running broker, and how a reload adds, removes and changes them."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Final

from hookmq.plugin import BrokerHandle, ConfigError, Journal, PluginError, StoreError
from hookmq_toolkit.durable_files import sync_folder
from hookmq_toolkit.sink_control import read_control

from hookmq_sinks.config import SinkConfig, SinksConfig
from hookmq_sinks.intake import Intake
from hookmq_sinks.process import SenderProcess
from hookmq_sinks.sink_log import LOG, SinkLog
from hookmq_sinks.source_config import SourceConfig
from hookmq_sinks.source_process import SourceProcess

REMOVED: Final = ".removed"
"""The folder for the folders of removed sinks."""
STOP: Final = 5.0
"""Seconds that a process may take to complete its batch."""
_AGAIN: Final = 5.0
"""Seconds after which adding a sink is tried again."""
_FIXED: Final = ("path", "sync")
"""Settings that a reload cannot change."""


class Members:
    """Holds the sinks and sources in the order of `config`. Call all methods on the event loop.

    `sinks` and `intakes` exist from the start of the broker on. Their processes follow in `start` and `start_sources`.
    """

    def __init__(
        self, config: SinksConfig, plugin: str, broker: BrokerHandle, log: Callable[..., None]
    ) -> None:
        self.config = config
        self.processes: list[SenderProcess] = []
        self.receivers: list[SourceProcess] = []
        self._plugin = plugin
        self._broker = broker
        self._log = log
        self._changing = asyncio.Lock()
        self._changes: set[asyncio.Task[None]] = set()
        self.sinks = [self._sink(one) for one in config.sinks]
        self.intakes = [Intake(one, plugin, broker) for one in config.sources]

    def _sink(self, config: SinkConfig) -> SinkLog:
        return SinkLog(
            config,
            self.config.path,
            self._broker.runtime,
            sync=self.config.sync,
            plugin=self._plugin,
        )

    @property
    def journals(self) -> tuple[Journal, ...]:
        """The journals of all sinks and sources."""
        marks = [one.journal for one in self.intakes if one.journal is not None]
        return (*self.sinks, *marks)

    # start and stop --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a process for each sink. Raises StoreError."""
        for sink in self.sinks:
            self._start_sink(sink)
        self.receivers = [self._receiver(one) for one in self.intakes]

    def start_sources(self) -> None:
        """Start a process for each source."""
        for one in self.receivers:
            one.start()

    def _start_sink(self, sink: SinkLog, before: SenderProcess | None = None) -> None:
        process = SenderProcess(sink, self.config.sync, before)
        process.paused = read_control(sink.folder).paused
        self.processes.append(process)
        process.start()

    def _receiver(self, intake: Intake) -> SourceProcess:
        found = SourceProcess(intake, self.config.path / intake.config.name, self._log)
        found.paused = read_control(found.folder).paused
        return found

    async def stop(self, deadline: float) -> None:
        """End all processes and close the logs."""
        for task in self._changes:
            task.cancel()
        if self._changes:
            await asyncio.gather(*self._changes, return_exceptions=True)
        for receiver in self.receivers:
            await receiver.stop(min(deadline, STOP))
        for process in self.processes:
            await process.stop(min(deadline, STOP))
        for sink in self.sinks:
            sink.close()

    # reload ----------------------------------------------------------------------------------------------------------

    def check(self, new: SinksConfig) -> None:
        """Raise ConfigError if a reload cannot change to `new`."""
        old = self.config
        changed = [name for name in _FIXED if getattr(old, name) != getattr(new, name)]
        if changed:
            raise ConfigError(f"{', '.join(changed)}: a change needs a restart")
        known = {one.config.name for one in self.sinks}
        for one in new.sinks:
            folder = old.path / one.name
            if one.name not in known and (folder / LOG).exists():
                raise ConfigError(
                    f"sinks: {folder} contains the log of another sink",
                    hint="if the sink is being removed, reload again; otherwise move the folder away, or restart",
                )

    def change(self, new: SinksConfig) -> None:
        """Begin to change to `new`, which `check` has accepted."""
        self.config = new
        self._begin_change()

    def _begin_change(self) -> None:
        task = asyncio.get_running_loop().create_task(self._change())
        self._changes.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._changes.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log("error", "sinks.not_changed", reason=f"{type(error).__name__}: {error}")

    async def _change(self) -> None:
        """Make the sinks and sources those of the newest configuration. Try again later if one cannot be added."""
        async with self._changing:
            added = [
                *await self._change_sources(self.config.sources),
                *await self._change_sinks(self.config.sinks),
            ]
        if not all(added):
            await asyncio.sleep(_AGAIN)
            self._begin_change()

    async def _change_sinks(self, wanted: Sequence[SinkConfig]) -> list[bool]:
        """Return, for each new sink, whether it was added."""
        new = {one.name: one for one in wanted}
        for sink in [one for one in self.sinks if one.config.name not in new]:
            await self._remove_sink(sink)
        known = {one.config.name: one for one in self.sinks}
        added: list[bool] = []
        for config in wanted:
            sink_log = known.get(config.name)
            if sink_log is None:
                added.append(await self._add_sink(config))
            elif sink_log.config != config:
                await self._change_sink(sink_log, config)
        order = list(new)
        self.sinks.sort(key=lambda one: order.index(one.config.name))
        self.processes.sort(key=lambda one: order.index(one.sink.config.name))
        return added

    async def _add_sink(self, config: SinkConfig) -> bool:
        sink = self._sink(config)
        try:
            await self._broker.add_journal(sink)
        except PluginError as error:
            sink.tell("error", "sinks.not_added", reason=str(error))
            return False
        self.sinks.append(sink)
        self._broker.invalidate_routes()
        self._start_sink(sink)
        sink.tell("info", "sinks.added", driver=config.driver)
        return True

    async def _change_sink(self, sink: SinkLog, config: SinkConfig) -> None:
        process = next(one for one in self.processes if one.sink is sink)
        await process.stop(STOP)
        names = [
            one.name
            for one in fields(config)
            if getattr(sink.config, one.name) != getattr(config, one.name)
        ]
        sink.configure(config)
        self._broker.invalidate_routes()
        self.processes.remove(process)
        self._start_sink(sink, process)
        sink.tell("info", "sinks.changed", settings=names)

    async def _remove_sink(self, sink: SinkLog) -> None:
        process = next((one for one in self.processes if one.sink is sink), None)
        sink.retire()
        self._broker.invalidate_routes()
        await self._broker.remove_journal(sink)
        done = sink.done
        if process is not None:
            await process.stop(STOP)
            done = max(done, int(process.status.get("cursor", 0)))
            self.processes.remove(process)
        left = sink.log.readable - max(done, sink.log.earliest)
        sink.close()
        self.sinks.remove(sink)
        try:
            place = await asyncio.to_thread(_move_away, sink.folder)
        except OSError as error:
            sink.tell("error", "sinks.not_moved", reason=str(error.strerror))
            return
        level = "warning" if left > 0 else "info"
        sink.tell(level, "sinks.removed", messages=max(0, left), folder=str(place))

    async def _change_sources(self, wanted: Sequence[SourceConfig]) -> list[bool]:
        """Return, for each new or changed source, whether it was added."""
        new = {one.name: one for one in wanted}
        old = {one.config.name: one for one in self.intakes}
        for name, intake in old.items():
            if new.get(name) != intake.config:
                await self._remove_source(intake)
                if name not in new:
                    self._log("info", "sources.removed", source=name)
        added = [
            await self._add_source(one, "changed" if one.name in old else "added")
            for one in wanted
            if one.name not in old or old[one.name].config != one
        ]
        order = list(new)
        self.intakes.sort(key=lambda one: order.index(one.config.name))
        self.receivers.sort(key=lambda one: order.index(one.name))
        return added

    async def _add_source(self, config: SourceConfig, word: str) -> bool:
        intake = Intake(config, self._plugin, self._broker)
        try:
            if intake.journal is not None:
                await self._broker.add_journal(intake.journal)
            receiver = self._receiver(intake)
        except (PluginError, StoreError) as error:
            self._log("error", "sources.not_added", source=config.name, reason=str(error))
            if intake.journal is not None:
                with suppress(PluginError):
                    await self._broker.remove_journal(intake.journal)
            return False
        self.intakes.append(intake)
        self.receivers.append(receiver)
        receiver.start()
        if word == "added":
            self._log("info", "sources.added", source=config.name, driver=config.driver)
        else:
            self._log("info", "sources.changed", source=config.name, driver=config.driver)
        return True

    async def _remove_source(self, intake: Intake) -> None:
        receiver = next((one for one in self.receivers if one.intake is intake), None)
        if receiver is not None:
            await receiver.stop(STOP)
            self.receivers.remove(receiver)
        if intake.journal is not None:
            await self._broker.remove_journal(intake.journal)
        self.intakes.remove(intake)


def _move_away(folder: Path) -> Path:
    """Move the folder of a removed sink, so that a sink with the same name can be added. Return its new place."""
    base = folder.parent / REMOVED
    base.mkdir(mode=0o700, exist_ok=True)
    place = base / f"{folder.name}-{time.time_ns()}"
    os.rename(folder, place)
    sync_folder(base)
    sync_folder(folder.parent)
    return place


__all__ = ["REMOVED", "Members"]
