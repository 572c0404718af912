"""Streams that serve a queue. They store no messages, but tell the reader process which part of the queue it can read."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from hookmq.plugin import BrokerHandle, StoreError
from hookmq_toolkit.queue_streams import SERVICE, QueueStreams, StreamFiles
from hookmq_toolkit.state_folder import make_folder, refuse_foreign

from hookmq_spark_sink import files
from hookmq_spark_sink.ages import Ages
from hookmq_spark_sink.config import StreamConfig
from hookmq_spark_sink.consumers import ConsumerState, states
from hookmq_spark_sink.files import Consumer
from hookmq_spark_sink.queue_groups import QueueGroups
from hookmq_spark_sink.queue_state import (
    KNOWN,
    QueueStateFile,
    check_folder,
    describe_queue,
)

NO_PLUGIN: Final = "no plugin has queues: add the plugin queues to the configuration"


class ServedQueue:
    """A stream that serves a queue from another plugin.

    First call `open`, then `follow`, and then `look` regularly, all on the event loop. Call `close` at the end.
    """

    def __init__(self, config: StreamConfig, path: Path, boot: bytes, plugin: str) -> None:
        self.config = config
        self.folder = path / config.name
        self.found: StreamFiles | str | None = None
        """The readable part, or the reason why nothing can be read. None before `follow`."""
        self._boot = boot
        self._plugin = plugin
        self._broker: BrokerHandle | None = None
        self._state: QueueStateFile | None = None
        self._state_failed = False
        self._end: Callable[[], None] | None = None
        self._groups = QueueGroups(config.queue, config.consumers, self._tell)
        self._looking = False
        self._ages = Ages(1)
        """The times at which messages were committed. Messages committed before the broker started
        have its start time.
        """

    @property
    def missing(self) -> str:
        """The reason why the queue cannot be read, or '' if it can."""
        return self.found if isinstance(self.found, str) else ""

    @property
    def files(self) -> StreamFiles | None:
        """The readable part of the queue, or None."""
        return self.found if isinstance(self.found, StreamFiles) else None

    @property
    def readable(self) -> int:
        """The number of offsets that can be read."""
        return 0 if self.files is None else self.files.latest - self.files.earliest

    def open(self) -> None:
        """Create the folder. This call blocks for a moment. Raises StoreError if the folder cannot be used."""
        try:
            make_folder(self.folder)
            check_folder(self.folder, self.config.name)
            for left in (*self.folder.glob("*.new"),):
                left.unlink()
            names = [one.name for one in self.folder.iterdir()]
            refuse_foreign(self.folder, names, KNOWN.__contains__)
            describe_queue(self.folder, self.config.queue)
            self._state = QueueStateFile(self.folder, self._boot)
        except OSError as error:
            raise StoreError(f"{self.folder}: {error.strerror or error}") from error

    def follow(self, broker: BrokerHandle) -> None:
        """Find the queue, and follow it from now on. Call this after all plugins have started."""
        self._broker = broker
        if self._end is not None or self._state is None:
            return
        found = broker.services(SERVICE).values()
        owner = next((one for one in found if isinstance(one, QueueStreams)), None)
        if owner is None:
            self._changed(NO_PLUGIN)
        else:
            self._end = owner.follow(self.config.queue, self._changed)

    def _changed(self, found: StreamFiles | str) -> None:
        """Report the readable part to readers."""
        before, self.found = self.found, found
        if isinstance(found, StreamFiles):
            if isinstance(before, str):
                self._tell("info", "spark_sink.queue_found")
            known = before if isinstance(before, StreamFiles) else None
            if known is None or known.log_id != found.log_id:
                self._groups.renew()
                self._ages, known = Ages(1), None
            if known is None or known.latest != found.latest:
                self._note_age(found.latest)
        elif found != before:
            self._tell("warning", "spark_sink.queue_missing", reason=found)
        if self._state is None:
            return
        try:
            self._state.write(found)
            self._state_failed = False
        except OSError as error:
            # Readers see fewer messages than they could, but nothing is lost.
            if not self._state_failed:
                self._tell("error", "spark_sink.state_not_written", reason=str(error.strerror))
            self._state_failed = True

    def _note_age(self, latest: int) -> None:
        if self._broker is not None and latest:
            self._ages.note(0, latest, int(self._broker.time() * 1e6))

    def look(self) -> None:
        """Look again for a plugin that was missing, and move the groups of the declared consumers."""
        broker = self._broker
        if broker is None:
            return
        self.follow(broker)
        if self._looking or self.files is None or not self.config.consumers:
            return
        self._looking = True

        def read(result: Any, error: BaseException | None) -> None:
            if error is not None:
                self._looked(None, error)
            elif self.files is None or self._state is None:
                self._looking = False
            else:
                moved = self._groups.move(broker, result, self.files.earliest, self.files.latest)
                broker.runtime.spawn(moved, self._looked)

        broker.runtime.run_blocking(self._read_consumers(self.files.log_id), read)

    def _looked(self, _: object, error: BaseException | None) -> None:
        self._looking = False
        if error is not None and self._state is not None:
            self._tell("error", "spark_sink.upkeep_failed", reason=str(error))

    def _read_consumers(self, log_id: str) -> Callable[[], dict[str, Consumer]]:
        return partial(files.read_consumers, self.folder, log_id)

    def states(self, known: dict[str, Consumer]) -> list[ConsumerState]:
        """Return the declared consumers, and those in `known`, which have committed."""
        if self.files is None:
            return []
        ends = (self.files.earliest,), (self.files.latest,)
        return states(self.config.consumers, known, *ends, self._ages.time)

    def consumers(self) -> list[ConsumerState]:
        """Return the consumers. Reads a small file. Raises StoreError if the file is damaged."""
        if self.files is None:
            return []
        return self.states(files.read_consumers(self.folder, self.files.log_id))

    def _tell(self, level: str, event: str, **fields: object) -> None:
        if self._broker is not None:
            fields = {"stream": self.config.name, "queue": self.config.queue, **fields}
            self._broker.runtime.log(level, event, plugin=self._plugin, **fields)

    def close(self) -> None:
        """Stop reporting to readers."""
        if self._end is not None:
            self._end()
            self._end = None
        if self._state is not None:
            self._state.close()
            self._state = None
