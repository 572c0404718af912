"""Messages are safe in a file before their publisher is acknowledged: a plugin that provides a journal."""

from dataclasses import dataclass, field
from pathlib import Path

from hookmq.plugin import BrokerHandle, Plugin, hookimpl, setting

from hookmq_example_capture.journal import FileJournal


@dataclass(frozen=True)
class CaptureConfig:
    """Which messages are kept, and where."""

    path: Path = field(
        metadata={"help": "file that messages are appended to; its folder must exist"}
    )
    topics: tuple[str, ...] = setting(("#",), "topic filters of the messages that are kept")


class CapturePlugin(Plugin):
    """The broker acknowledges a QoS 1 or 2 message that matches `topics` when it is in the file and the disk says so."""

    Config = CaptureConfig
    config: CaptureConfig

    _journal: FileJournal | None = None

    @hookimpl
    def provide_journal(self, broker: BrokerHandle) -> FileJournal:
        """Called once, before the broker starts; the file is opened when it does."""
        self._journal = FileJournal(
            self.id, self.config.path, self.config.topics, broker.runtime.run_blocking
        )
        return self._journal

    @hookimpl
    def on_shutdown(self) -> None:
        """Called after the last commit."""
        if self._journal is not None:
            self._journal.close()
