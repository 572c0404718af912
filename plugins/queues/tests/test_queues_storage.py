"""Test a queue's log: the journal contract, memory, disk reads, and deletion."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hookmq.plugin import Message
from hookmq.storage_api import CommitId, Journal
from hookmq_queues.config import QueueConfig
from hookmq_queues.storage import QueueLog
from hookmq_queues.stream_log import StreamLog
from hookmq_testing.contracts import JournalContract
from hookmq_testing.runtime import VirtualRuntime
from hookmq_toolkit.message_record import decode_block


class TestQueueLog(JournalContract):
    runtime = VirtualRuntime()

    def open(self) -> QueueLog:
        return QueueLog(QueueConfig("jobs", ("#",)), self.folder, self.runtime)

    def close(self, journal: Journal) -> None:
        assert isinstance(journal, QueueLog)
        journal.close()

    def payloads(self, journal: Journal) -> list[bytes]:
        assert isinstance(journal, QueueLog)
        log = journal.log
        frames = log.read(0, 1 << 20) if log.readable else []
        missing = list(journal._batches)
        assert not missing
        return [m.payload for frame in frames for m in decode_block(frame.payload)]

    def settle(self) -> None:
        self.runtime.run_until_idle()

    def flush(self, journal: Journal, commit: CommitId) -> None:
        super().flush(journal, commit)
        assert isinstance(journal, QueueLog)
        journal.committed(commit)


class TestStreamLog(TestQueueLog):
    def open(self) -> QueueLog:
        return StreamLog(QueueConfig("jobs", ("#",), type="stream"), self.folder, self.runtime)


def publish(log: QueueLog, runtime: VirtualRuntime, number: int, *payloads: bytes) -> None:
    commit = CommitId("s", number)
    for payload in payloads:
        log.append(commit, Message("$queue/jobs", payload, 1))
    log.flush(commit, lambda failed: None)
    runtime.run_until_idle()
    log.committed(commit)


def test_messages_beyond_the_memory_are_read_from_disk(tmp_path: Path) -> None:
    runtime = VirtualRuntime()
    config = QueueConfig("jobs", memory=4096)
    log = QueueLog(config, tmp_path, runtime)
    log.recover(CommitId("s", 0))
    for number in range(20):
        publish(log, runtime, number + 1, *(b"%d" % n * 300 for n in range(10)))
    assert log.visible == log.end == 200
    assert log.get(0) is not None
    assert log.get(199) is None
    told: list[str] = []
    log.load(150, told.append)
    runtime.run_until_idle()
    assert told == [""]
    found = log.get(150)
    assert found is not None
    assert found.payload == b"0" * 300
    assert log._cached <= 4096 + 400
    log.load(200, told.append)
    runtime.run_until_idle()
    assert "200 is missing" in told[1]
    log.load(100, told.append)
    log.load(50, told.append)  # while the other read runs: to be tried again
    runtime.run_until_idle()
    assert told[2:] == ["", ""]
    assert log.get(100) is not None
    assert log.get(50) is None
    log.close()


def test_new_messages_stay_on_disk_while_earlier_ones_wait_there(tmp_path: Path) -> None:
    runtime = VirtualRuntime()
    log = QueueLog(QueueConfig("jobs", memory=4096), tmp_path, runtime)
    log.recover(CommitId("s", 0))
    for number in range(40):
        publish(log, runtime, number + 1, *(bytes(300) for _ in range(10)))
    log.forget_all(log.in_memory())
    publish(log, runtime, 41, b"far from the reader")
    assert log.in_memory() == []
    told: list[str] = []
    log.load(390, told.append)
    runtime.run_until_idle()
    publish(log, runtime, 42, b"near the reader")
    assert told == [""]
    assert log.get(401) is not None
    log.close()
    log = QueueLog(QueueConfig("jobs"), tmp_path, runtime)
    log.recover(CommitId("s", 42))
    publish(log, runtime, 43, b"after a restart")
    assert log.in_memory() == []
    log.close()


def test_settled_messages_leave_the_disk_and_the_sum(tmp_path: Path) -> None:
    runtime = VirtualRuntime()
    log = QueueLog(QueueConfig("jobs", max_bytes=1 << 16), tmp_path, runtime)
    log.recover(CommitId("s", 0))
    for number in range(200):
        publish(log, runtime, number + 1, bytes(1000))
    before = log.bytes
    assert before > 200_000
    assert len(log.log.segments) > 2
    log.settle(199)
    runtime.run_until_idle()
    assert len(log.log.segments) == 1
    assert log.bytes <= before
    log.settle(200)
    assert log.bytes == 0
    log.close()
    log = QueueLog(QueueConfig("jobs"), tmp_path, runtime)
    log.recover(CommitId("s", 200))
    assert log.earliest > 100
    assert 0 < log.bytes < 80_000
    log.close()


class Searches(dict[int, Any]):
    """Counts searches for the first key. A search takes longer with every key removed ahead of it."""

    number = 0

    def __iter__(self) -> Iterator[int]:
        self.number += 1
        return super().__iter__()


def test_messages_leave_the_memory_of_a_stream_without_a_search(tmp_path: Path) -> None:
    runtime = VirtualRuntime()
    config = QueueConfig("events", type="stream", memory=100_000)
    log = StreamLog(config, tmp_path, runtime)
    log.recover(CommitId("s", 0))
    log._cache = found = Searches()
    for number in range(1000):
        publish(log, runtime, number + 1, bytes(1000))
    kept = log.in_memory()
    assert kept == list(range(1000 - len(kept), 1000))
    assert 80 < len(kept) < 100
    assert found.number < 20
    log.close()
