"""Test that the log of a sink is a journal, and that the sink learns about readable messages."""

from pathlib import Path
from typing import Any

import pytest
from hookmq.mqtt_api import EMPTY
from hookmq.plugin import Journal
from hookmq.storage_api import CommitId, make_message
from hookmq_sinks.config import SinkConfig
from hookmq_sinks.sink_log import SinkLog
from hookmq_testing.contracts import JournalContract
from hookmq_testing.runtime import VirtualRuntime
from hookmq_toolkit.message_columns import decode_columns
from hookmq_toolkit.segment_log.segment import read


def new_log(folder: Path, runtime: VirtualRuntime) -> SinkLog:
    target = {"path": str(folder / "out")}
    return SinkLog(SinkConfig("s", ("#",), "file", target), folder, runtime, sync=False)


class TestSinkLogIsAJournal(JournalContract):
    """Runs the journal contract."""

    @pytest.fixture(autouse=True)
    def _runtime(self) -> None:
        self.runtime = VirtualRuntime()

    def open(self) -> Journal:
        return new_log(self.folder, self.runtime)

    def close(self, journal: Journal) -> None:
        assert isinstance(journal, SinkLog)
        journal.log.close()

    def settle(self) -> None:
        self.runtime.run_until_idle()

    def payloads(self, journal: Journal) -> list[bytes]:
        assert isinstance(journal, SinkLog)
        segments = [read(path, True) for path in sorted((journal.folder / "log").glob("*.segment"))]
        return [
            message.payload
            for segment in segments
            for _, frame in segment.frames(segment.head)
            for message in decode_columns(frame.payload)
        ]


@pytest.mark.parametrize("sealed", [True, False])
def test_the_sink_learns_about_readable_messages(tmp_path: Path, sealed: bool) -> None:
    runtime = VirtualRuntime()
    log = new_log(tmp_path, runtime)
    log.recover(CommitId("s", 0))
    told: list[int] = []
    log.on_committed = lambda: told.append(log.log.readable)
    log.append(CommitId("s", 1), make_message("t", b"x", 1, False, EMPTY, None, "c", 1.0, None))
    done: list[Any] = []
    if sealed:
        assert log.seal(done.append)
    else:
        log.flush(CommitId("s", 1), done.append)
    runtime.run_until_idle()
    assert done == [None]
    assert told == [1] * sealed
    if not sealed:
        log.committed(CommitId("s", 1))
        assert told == [1]
    log.log.close()
