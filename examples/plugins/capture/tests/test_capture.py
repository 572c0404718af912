"""Test the journal: the contract that every journal must fulfill, torn files, and acknowledgements that wait for the
file.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hookmq.plugin import Journal, Message, StoreError
from hookmq.storage_api import CommitId
from hookmq_example_capture import CapturePlugin
from hookmq_example_capture.journal import FileJournal, messages
from hookmq_testing import Harness, VirtualRuntime, make_plugin
from hookmq_testing.contracts import JournalContract, PluginContract

Make = Callable[..., Harness]


class TestJournal(JournalContract):
    runtime: VirtualRuntime

    def open(self) -> Journal:
        self.runtime = VirtualRuntime()
        path = self.folder / "capture.jsonl"
        return FileJournal("capture", path, ("journal/#",), self.runtime.run_blocking)

    def close(self, journal: Journal) -> None:
        assert isinstance(journal, FileJournal)
        journal.close()

    def payloads(self, journal: Journal) -> list[bytes]:
        path = self.folder / "capture.jsonl"
        return [bytes(message.payload) for _, message in messages(path)]

    def settle(self) -> None:
        self.runtime.run_until_idle()

    @pytest.mark.parametrize("torn", [b"{", b'{"store":"s","commit":2', b"\x00" * 100])
    def test_a_torn_last_line_is_dropped(self, torn: bytes) -> None:
        journal = self.opened(CommitId("s", 0))
        self.append(journal, CommitId("s", 1), b"1")
        self.flush(journal, CommitId("s", 1))
        self.close(journal)
        with (self.folder / "capture.jsonl").open("ab") as file:
            file.write(torn)
        journal = self.opened(CommitId("s", 1))
        self.append(journal, CommitId("s", 2), b"2")
        self.flush(journal, CommitId("s", 2))
        assert self.payloads(journal) == [b"1", b"2"]
        self.close(journal)

    def test_a_file_that_is_no_journal_is_left_alone(self) -> None:
        path = self.folder / "capture.jsonl"
        path.write_bytes(b"dear diary\n")
        with pytest.raises(StoreError, match="not a line of this journal"):
            self.opened(CommitId("s", 0))
        assert path.read_bytes() == b"dear diary\n"

    def test_a_failed_write_is_told(self) -> None:
        journal = self.opened(CommitId("s", 0))
        assert isinstance(journal, FileJournal)
        file = journal._file
        journal._file = os.open(self.folder, os.O_RDONLY)  # writing to a folder always fails
        journal.append(CommitId("s", 1), Message("journal/x", b""))
        told: list[object] = []
        journal.flush(CommitId("s", 1), told.append)
        self.settle()
        [failure] = told
        assert "capture.jsonl" in str(failure)
        os.close(file)
        journal.close()


class TestContract(PluginContract):
    kind = CapturePlugin
    use = "example_capture"
    bad_configs = ({}, {"path": "x", "topic": "#"})

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path) -> None:
        path = tmp_path / "capture.jsonl"
        type(self).configs = ({"path": path}, {"path": path, "topics": ("a/#",)})


def test_only_its_topics_are_kept_and_count_as_matched(
    broker_harness: Make, tmp_path: Path
) -> None:
    path = tmp_path / "capture.jsonl"
    harness = broker_harness([make_plugin(CapturePlugin, {"path": path, "topics": ("orders/#",)})])
    client = harness.connect("shop")
    client.publish("orders/1", b"\x00one", 1, expect=0)
    client.publish("orders/2", b"two", 2, expect=0)
    client.publish("other", b"", 1, expect=0x10)
    harness.close()
    assert [(m.topic, m.payload, m.sender) for _, m in messages(path)] == [
        ("orders/1", b"\x00one", "shop"),
        ("orders/2", b"two", "shop"),
    ]


def test_nobody_is_acknowledged_before_the_message_is_safe(
    broker_harness: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "capture.jsonl"
    harness = broker_harness([make_plugin(CapturePlugin, {"path": path})])
    client = harness.connect("shop")
    seen: list[bool] = []
    sync = os.fsync

    def watched(file: int) -> None:
        seen.append(any(type(packet).__name__ == "Puback" for packet in client.received))
        sync(file)

    monkeypatch.setattr(os, "fsync", watched)
    client.publish("orders/1", b"x", 1, expect=0)
    assert seen == [False]


def test_a_full_disk_stops_the_acknowledgements(
    broker_harness: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = broker_harness([make_plugin(CapturePlugin, {"path": tmp_path / "capture.jsonl"})])
    failures: list[str] = []
    harness.broker.on_failure = failures.append
    client = harness.connect("shop")

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    client.publish("orders/1", b"x", 1)
    client.publish("orders/2", b"x", 1)
    client.expect_nothing()
    [reason] = failures
    assert "No space left" in reason
