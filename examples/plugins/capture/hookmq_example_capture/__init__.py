"""Write messages to a file before they are acknowledged: a plugin that provides a journal."""

from dataclasses import dataclass, field
from pathlib import Path

from hookmq.plugin import BrokerHandle, Plugin, hookimpl, setting

from hookmq_example_capture.journal import FileJournal


@dataclass(frozen=True)
class CaptureConfig:
    """Which messages to write, and the path of the file."""

    path: Path = field(metadata={"help": "file to append to; its folder must exist"})
    topics: tuple[str, ...] = setting(("#",), "topic filters of the messages to write")


class CapturePlugin(Plugin):
    """A plugin that delays the acknowledgement of matching QoS 1 and 2 messages until the file is fsynced."""

    Config = CaptureConfig
    config: CaptureConfig

    _journal: FileJournal | None = None

    @hookimpl
    def provide_journal(self, broker: BrokerHandle) -> FileJournal:
        """Return the journal. The broker calls this once, before it starts; `recover` opens the file."""
        self._journal = FileJournal(
            self.id, self.config.path, self.config.topics, broker.runtime.run_blocking
        )
        return self._journal

    @hookimpl
    def on_shutdown(self) -> None:
        """Close the file. The last commit has finished by now."""
        if self._journal is not None:
            self._journal.close()
