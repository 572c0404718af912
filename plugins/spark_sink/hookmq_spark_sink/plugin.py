"""The `spark_sink` plugin."""

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from hookmq.plugin import (
    BrokerHandle,
    Context,
    Journal,
    MetricRegistry,
    Plugin,
    PluginError,
    StoreError,
    Timer,
    hookimpl,
)
from hookmq.server_api import server_context
from hookmq_toolkit.streams import SERVICE

from hookmq_spark_sink import consumers, files, placement
from hookmq_spark_sink.config import SparkSinkConfig, StreamConfig
from hookmq_spark_sink.process import ReaderProcess
from hookmq_spark_sink.served_queue import ServedQueue
from hookmq_spark_sink.status import SparkStreams
from hookmq_spark_sink.stream import Stream
from hookmq_spark_sink.tier import TierProcess, processes

STOP: Final = 5.0


class SparkSinkPlugin(Plugin):
    """A plugin that stores messages in a log that Apache Spark reads by offset, exactly once."""

    Config = SparkSinkConfig
    config: SparkSinkConfig
    per_node = (
        "each node has its own streams, with what its own clients publish; after a crash, two of them can contain the "
        "same message of QoS 2"
    )

    def __init__(self, config: SparkSinkConfig, context: Context) -> None:
        super().__init__(config, context)
        if config.api is not None and config.api.tls is not None:
            server_context(config.api.tls)  # `hookmq check` loads the files too
        self.streams: list[Stream] = []
        self.queues: list[ServedQueue] = []
        """The streams that serve a queue."""
        self.reader: ReaderProcess | None = None
        self.tiers: list[TierProcess] = []
        self._boot = os.urandom(16)
        self._broker: BrokerHandle | None = None
        self._timer: Timer | None = None
        owner = SparkStreams(lambda: [*self.streams, *self.queues], lambda: self._broker)
        self.offered_services = {SERVICE: owner}

    @property
    def notes(self) -> Sequence[str]:
        """Notes for `hookmq check`: the address for readers, unsuitable partitions, and mismatched consumers.

        Reads two small files per stream.
        """
        found = []
        if (api := self.config.api) is not None:
            found.append(f"readers connect to {'https' if api.tls else 'http'}://{api.bind}")
        for one in self.config.streams:
            if one.queue:
                found.append(
                    f"stream {one.name} serves the queue {one.queue}, which the plugin queues must have"
                )
                continue
            found += self._partition_notes(one)
            found += consumers.notes(one.name, self.config.path / one.name, one.consumers)
        return found

    def _partition_notes(self, stream: StreamConfig) -> list[str]:
        name = stream.placement
        with suppress(StoreError):  # its start reports a damaged file
            described = files.read_description(self.config.path / stream.name)
            name = name if described is None else described.placement
        return placement.notes(stream.name, name, stream.partitions, stream.topics)

    @hookimpl
    def provide_journal(self, broker: BrokerHandle) -> tuple[Journal, ...]:
        """Return a journal for each stream that stores messages. Raises StoreError if a folder contains a stream that
        is not configured.
        """
        self._strange()
        self._broker = broker
        self.streams = [
            Stream(
                one,
                self.config.path,
                broker.runtime,
                sync=self.config.sync,
                min_free=self.config.min_free,
                boot=self._boot,
                plugin=self.id,
            )
            for one in self.config.streams
            if not one.queue
        ]
        return tuple(self.streams)

    def _strange(self) -> None:
        path = self.config.path
        if not path.is_dir():
            return
        known = {one.name for one in self.config.streams}
        for folder in sorted(path.iterdir()):
            if folder.name not in known and (folder / files.STREAM).exists():
                raise StoreError(
                    f"{folder} contains a stream that is not configured: if it was renamed, restore its name; if it is "
                    "no longer needed, move the folder away"
                )

    @hookimpl
    async def on_startup(self, broker: BrokerHandle) -> None:
        """Start the reader process."""
        self._broker = broker
        for one in self.config.streams:
            if one.queue:
                served = ServedQueue(one, self.config.path, self._boot, self.id)
                served.open()
                self.queues.append(served)
        if self.config.api is not None:
            streams: list[Stream | ServedQueue] = [*self.streams, *self.queues]
            self.reader = ReaderProcess(self.config.api, streams, self._boot, self.log)
            try:
                await self.reader.start()
            except (OSError, StoreError) as error:
                raise PluginError(self.id, f"api.bind: {error}") from error
            self.log("info", "spark_sink.serving", port=self.reader.port)
        self.tiers = processes(self.config.path, self.config.streams, self.log)
        for tier in self.tiers:
            tier.start()
        self._timer = broker.runtime.call_later(self.config.check_every, self._look)

    @hookimpl
    async def on_ready(self, broker: BrokerHandle) -> None:
        """Find the queues that streams serve, now that all plugins have started."""
        for one in self.queues:
            one.follow(broker)
            one.look()

    def _look(self) -> None:
        assert self._broker is not None
        for one in self.streams:
            one.upkeep.look()
        for queue in self.queues:
            queue.look()
        self._timer = self._broker.runtime.call_later(self.config.check_every, self._look)

    @hookimpl
    async def on_shutdown(self, broker: BrokerHandle, deadline: float) -> None:
        """End the reader process and close the streams. By now, all messages have been committed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        reader, self.reader = self.reader, None
        if reader is not None:
            await reader.stop(min(deadline, STOP))
        for queue in self.queues:
            queue.close()
        tiers, self.tiers = self.tiers, []
        if tiers:
            await asyncio.gather(*(one.stop(min(deadline, STOP) / 2) for one in tiers))
        for one in self.streams:
            quiet = broker.runtime.promise()
            one.upkeep.quiet(partial(quiet.set_result, None))
            # Plugins that end later may still publish, which must not reach a closed file.
            broker.invalidate_routes()
            await quiet
            one.close()

    @hookimpl
    def register_metrics(self, registry: MetricRegistry) -> None:
        """Add the metrics of `hookmq_spark_sink.metrics`."""
        from hookmq_spark_sink.metrics import register

        register(
            registry,
            lambda: self.streams,
            lambda: self.queues,
            lambda: self.reader,
            self._time,
            lambda: self.tiers,
        )

    def _time(self) -> float:
        return 0.0 if self._broker is None else self._broker.time()
