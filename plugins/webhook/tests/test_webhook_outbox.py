"""Test the outbox and the queue that reads it: the journal contract, delivered events, a full outbox, and the contents of
its folder.
"""

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hookmq.plugin import Journal, Message, StoreError
from hookmq.storage_api import CommitId, StoreFailed
from hookmq_testing import JournalContract
from hookmq_testing.runtime import VirtualRuntime
from hookmq_toolkit.durable_files import write_atomically
from hookmq_webhook import folder
from hookmq_webhook.events import Event, pack, unpack
from hookmq_webhook.folder import CURSOR, DONE, default_folder
from hookmq_webhook.log_queue import LogQueue
from hookmq_webhook.outbox import Bounds, OnFull, Outbox
from hookmq_webhook.queues import MemoryQueue, Numbered
from hypothesis import example, given
from hypothesis import strategies as st

START = CommitId("s", 0)


def event_of(message: Message) -> list[Event]:
    return [Event("message.published", 1.0, "c", message.topic, payload=message.payload)]


class Box:
    """An outbox on a virtual clock. Its folder outlives the outbox."""

    def __init__(
        self,
        folder: Path,
        max_bytes: int = 1 << 20,
        max_events: int = 1000,
        on_full: OnFull = "reject",
        spill: Any = None,
    ) -> None:
        self.lost: list[tuple[int, int]] = []
        self.runtime = VirtualRuntime()
        self.ready = 0
        self.outbox = Outbox(
            "box", folder, self.runtime, lambda topic: topic != "other", event_of, self._ready,
            Bounds(max_bytes, max_events, on_full), spill,
        )  # fmt: skip
        self.queue: LogQueue | None = None
        self.commit = 0

    def _ready(self) -> None:
        self.ready += 1
        if self.queue is not None:
            self.queue.advance(*self.outbox.place)

    def _changed(self) -> None:
        if self.queue is not None:
            self.outbox.take_position(self.queue.position())

    def open(self, last: CommitId = START) -> "Box":
        self.outbox.recover(last)
        self.commit = last.number
        return self.read()

    def read(self) -> "Box":
        """Let a queue read the outbox, as the sending process does."""
        queue = LogQueue(
            self.outbox.folder, self.outbox.log.id, self.runtime, self.runtime.run_blocking, self.runtime.log,
            lambda first, end: self.lost.append((first, end)), self._changed,
        )  # fmt: skip
        queue.load()
        self.queue = queue
        queue.advance(*self.outbox.place)
        return self

    @property
    def sent(self) -> LogQueue:
        assert self.queue is not None
        return self.queue

    def done(self, *numbers: int) -> None:
        for number in numbers:
            self.sent.done(number)

    def take(self, *payloads: bytes) -> None:
        """Append messages in one commit and complete it."""
        self.commit += 1
        commit = CommitId("s", self.commit)
        for payload in payloads:
            self.outbox.append(commit, Message("t", payload))
        assert self.flush(commit) is None
        self.outbox.committed(commit)

    def flush(self, commit: CommitId) -> StoreFailed | None:
        told: list[StoreFailed | None] = []
        self.outbox.flush(commit, told.append)
        self.runtime.run_until_idle()
        [result] = told
        return result

    def page(
        self, after: int, count: int = 1000, size: int = 1 << 20
    ) -> tuple[list[Numbered], int]:
        told: list[tuple[list[Numbered], int, Exception | None]] = []
        self.sent.page(after, count, size, lambda *page: told.append(page))
        self.runtime.run_until_idle()
        [(found, following, error)] = told
        assert error is None
        return found, following

    def close(self) -> None:
        told: list[bool] = []
        self.sent.close(lambda: self.outbox.close(lambda: told.append(True)))
        self.runtime.run_until_idle()
        assert told == [True]

    def crash(self) -> None:
        """Kill the broker and the sending process."""
        self.runtime.run_until_idle()
        self.outbox.log.close()


def payloads(found: list[Numbered]) -> list[bytes]:
    return [one.event.payload or b"" for one in found]


class TestContract(JournalContract):
    def open(self) -> Journal:
        self.runtime = VirtualRuntime()
        return Outbox(
            "box", self.folder / "box", self.runtime, lambda topic: True, event_of, lambda: None,
            Bounds(1 << 20, 1000),
        )  # fmt: skip

    def close(self, journal: Journal) -> None:
        assert isinstance(journal, Outbox)
        journal.log.close()

    def payloads(self, journal: Journal) -> list[bytes]:
        assert isinstance(journal, Outbox)
        log = journal.log
        log.readable = log.flushed  # the contract requires a flush; readers wait for commits
        return [unpack(frame.payload).payload or b"" for frame in log.read(log.earliest, 1 << 20)]

    def settle(self) -> None:
        self.runtime.advance(0.01)


def test_it_says_when_it_is_nearly_full_full_and_has_room(tmp_path: Path) -> None:
    box = Box(tmp_path, max_bytes=65536, max_events=0).open()

    def said() -> list[str]:
        return [event for _, event, _ in box.runtime.logged]

    for _ in range(49):
        box.take(bytes(1000))
    assert said() == ["webhook.outbox_filling"]
    assert 0.8 <= box.outbox.fill < 0.9
    while not box.outbox.full:
        box.take(bytes(1000))
    for _ in range(5):
        assert box.outbox.full
    assert said() == ["webhook.outbox_filling", "webhook.outbox_full"]
    found, _ = box.page(0)
    for one in found[:10]:
        box.done(one.number)
    box.runtime.advance(5)
    assert not box.outbox.full
    assert said() == ["webhook.outbox_filling", "webhook.outbox_full"]  # not yet below 70 %
    for one in found[10:40]:
        box.done(one.number)
    box.runtime.advance(5)
    assert said() == ["webhook.outbox_filling", "webhook.outbox_full", "webhook.outbox_has_room"]
    fields = box.runtime.logged[1][2]
    assert (fields["plugin"], fields["max_bytes"]) == ("box", 65536)


def test_readers_see_what_was_committed(tmp_path: Path) -> None:
    box = Box(tmp_path).open()
    commit = CommitId("s", 1)
    box.outbox.append(commit, Message("t", b"1"))
    assert box.flush(commit) is None
    assert box.page(0) == ([], 0)
    ready = box.ready
    box.outbox.committed(commit)
    assert box.ready == ready + 1
    found, following = box.page(0)
    assert (payloads(found), following) == ([b"1"], 1)
    assert found[0].id == f"{box.outbox.log.id}-0"
    box.close()


def test_an_event_without_a_commit_is_safe_soon(tmp_path: Path) -> None:
    box = Box(tmp_path).open()
    box.outbox.put(Event("client.connected", 1.0, "c"))
    box.runtime.run_until_idle()
    assert [one.event.type for one in box.page(0)[0]] == ["client.connected"]
    box.crash()
    again = Box(tmp_path).open()
    assert [one.event.type for one in again.page(0)[0]] == ["client.connected"]
    again.close()


def test_events_before_the_outbox_is_open_wait(tmp_path: Path) -> None:
    first = Box(tmp_path).open()
    first.take(b"1")
    first.close()
    box = Box(tmp_path)
    box.outbox.put(Event("plugin.early", 1.0))
    box.open(CommitId("s", 1))
    box.runtime.run_until_idle()
    types = [one.event.type for one in box.page(0)[0]]
    assert types == ["message.published", "plugin.early"]
    box.close()


def test_delivered_events_are_not_sent_again_after_a_stop(tmp_path: Path) -> None:
    box = Box(tmp_path).open()
    box.take(*(b"%d" % n for n in range(10)))
    ids = [one.id for one in box.page(0)[0]]
    for number in (0, 1, 2, 5, 7):
        box.done(number)
    box.close()
    again = Box(tmp_path).open(CommitId("s", 1))
    assert again.outbox.start == 3
    assert again.outbox.waiting == 5
    found, following = again.page(3)
    assert [one.number for one in found] == [3, 4, 6, 8, 9]
    assert [one.id for one in found] == [ids[n] for n in (3, 4, 6, 8, 9)]
    assert following == 10
    again.close()


def test_after_a_kill_only_events_in_flight_are_sent_again(tmp_path: Path) -> None:
    box = Box(tmp_path).open()
    box.take(*(b"%d" % n for n in range(6)))
    box.page(0)
    box.done(0)
    box.runtime.advance(1.1)
    box.done(1, 4)
    box.crash()
    again = Box(tmp_path).open(CommitId("s", 1))
    assert (again.outbox.start, again.outbox.waiting, again.sent.waiting) == (2, 3, 3)
    assert [one.number for one in again.page(2)[0]] == [2, 3, 5]
    again.done(2)
    again.crash()
    third = Box(tmp_path).open(CommitId("s", 1))
    assert [one.number for one in third.page(0)[0]] == [3, 5]
    third.close()


def test_after_a_power_cut_at_most_a_second_is_sent_again(tmp_path: Path) -> None:
    box = Box(tmp_path).open()
    box.take(*(b"%d" % n for n in range(4)))
    box.page(0)
    box.done(0)
    box.runtime.advance(1.1)
    box.done(1, 2)
    box.crash()
    [path] = tmp_path.glob(f"{DONE}*")
    data = path.read_bytes()
    path.write_bytes(data[:12] + bytes(40))  # the end was not written
    again = Box(tmp_path).open(CommitId("s", 1))
    assert [one.number for one in again.page(0)[0]] == [2, 3]
    again.close()


def test_a_seek_forgets_which_events_are_done(tmp_path: Path) -> None:
    box = Box(tmp_path).open()
    box.take(*(b"%d" % n for n in range(4)))
    box.page(0)
    box.done(0, 1, 2)
    box.runtime.run_until_idle()
    box.sent.seek(1)()
    box.crash()
    again = Box(tmp_path).open(CommitId("s", 1))
    assert [one.number for one in again.page(1)[0]] == [1, 2, 3]
    again.close()


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{", b"[]", b'{"log": 1}', b'{"log": "LOG", "edge": "x"}', b"[" * 100_000,
        b'{"log": "LOG", "edge": Infinity}',
    ],
)  # fmt: skip
def test_without_a_cursor_all_is_sent_again(tmp_path: Path, text: bytes) -> None:
    box = Box(tmp_path).open()
    box.take(b"1", b"2")
    box.page(0)
    box.done(0)
    box.close()
    (tmp_path / CURSOR).write_bytes(text.replace(b"LOG", box.outbox.log.id.encode()))
    again = Box(tmp_path).open(CommitId("s", 1))
    assert payloads(again.page(0)[0]) == [b"1", b"2"]
    assert [
        event for _, event, _ in again.runtime.logged if event == "webhook.cursor_unusable"
    ] or (b'"log": 1' in text)
    again.close()


def test_a_cursor_of_another_log_says_nothing(tmp_path: Path) -> None:
    box = Box(tmp_path).open()
    box.take(b"1")
    box.close()
    (tmp_path / CURSOR).write_text(json.dumps({"log": "another", "edge": 1, "open": []}))
    again = Box(tmp_path).open(CommitId("s", 1))
    assert payloads(again.page(0)[0]) == [b"1"]
    again.close()


def test_delivered_events_are_deleted(tmp_path: Path) -> None:
    box = Box(tmp_path, max_bytes=65536).open()
    for _ in range(40):
        box.take(b"x" * 1000)
    files = len(list((tmp_path / "log").glob("*.segment")))
    assert files > 4
    for one in box.page(0)[0]:
        box.done(one.number)
    box.runtime.advance(2)
    assert len(list((tmp_path / "log").glob("*.segment"))) == 1
    assert box.outbox.disk < 20_000
    box.close()


def test_only_what_arrived_is_deleted(tmp_path: Path) -> None:
    box = Box(tmp_path, max_bytes=65536).open()
    for number in range(40):
        box.take(b"%d " % number + b"x" * 1000)
    for one in box.page(0)[0][:20]:
        box.done(one.number)
    box.runtime.advance(2)
    assert 0 < box.outbox.log.earliest <= 20
    box.close()
    again = Box(tmp_path, max_bytes=65536).open(CommitId("s", 40))
    left = [int(payload.split()[0]) for payload in payloads(again.page(20)[0])]
    assert left == list(range(20, 40))
    again.close()


def test_full_by_events_and_by_bytes(tmp_path: Path) -> None:
    box = Box(tmp_path / "events", max_events=3).open()
    box.take(b"1", b"2")
    assert not box.outbox.full
    box.take(b"3")
    assert box.outbox.full
    box.page(0)
    assert box.outbox.full  # an event being sent has not arrived yet
    box.done(1)
    assert not box.outbox.full
    box.close()
    box = Box(tmp_path / "bytes", max_bytes=65536).open()
    for _ in range(70):
        box.take(b"x" * 1000)
    assert box.outbox.full
    box.crash()
    box = Box(tmp_path / "bytes", max_bytes=65536).open(CommitId("s", 70))
    assert box.outbox.full  # as before
    found = box.page(0)[0]
    assert box.outbox.size == pytest.approx(75_000, rel=0.1)
    for one in found[1:]:
        box.done(one.number)
    assert not box.outbox.full
    for _ in range(70):
        box.take(b"x" * 1000)
        for one in box.page(70)[0]:
            box.done(one.number)
    assert box.outbox.full  # the first event keeps all later ones on the disk
    box.done(found[0].number)
    assert not box.outbox.full  # nothing waits, although the last segment is still there
    box.runtime.advance(2)
    box.take(b"y")
    assert not box.outbox.full
    assert box.outbox.disk < 20_000
    box.close()


def test_a_disk_that_fills_is_cleared_at_once(tmp_path: Path) -> None:
    box = Box(tmp_path, max_bytes=65536).open()
    for number in range(300):
        box.take(b"x" * 1000)
        for one in box.page(number)[0]:
            box.done(one.number)
        box.runtime.advance(0.001)
        assert not box.outbox.full
    assert box.outbox.disk < 80_000
    box.close()


def test_full_while_the_disk_is_slower_than_publishers(tmp_path: Path) -> None:
    box = Box(tmp_path).open()
    box.outbox.bounds = Bounds(1 << 30, 1000, max_unwritten=10_000)
    commit = CommitId("s", 1)
    for number in range(13):
        assert box.outbox.full == (number > 10)
        box.outbox.append(commit, Message("t", bytes(800)))
    assert box.flush(commit) is None
    assert not box.outbox.full
    box.close()


def test_full_after_a_restart_too(tmp_path: Path) -> None:
    box = Box(tmp_path, max_events=3).open()
    box.take(b"1", b"2", b"3")
    box.crash()
    again = Box(tmp_path, max_events=3).open(CommitId("s", 1))
    assert again.outbox.full
    again.close()


def test_one_commit_beyond_all_bounds_is_delivered_and_does_not_stay_in_the_way(
    tmp_path: Path,
) -> None:
    box = Box(tmp_path, max_bytes=65536).open()
    box.take(*(b"x" * 10_000 for _ in range(20)))
    assert box.outbox.full
    for one in box.page(0)[0]:
        box.done(one.number)
    box.runtime.advance(2)
    assert not box.outbox.full
    box.take(b"1")
    for one in box.page(20)[0]:
        box.done(one.number)
    box.runtime.advance(2)
    assert box.outbox.disk < 10_000
    box.close()


def test_lifecycle_events_may_go_a_little_beyond_and_are_then_counted(tmp_path: Path) -> None:
    box = Box(tmp_path, max_events=10).open()
    for _ in range(20):
        box.outbox.put(Event("client.connected", 1.0))
    assert box.outbox.waiting == 11
    assert box.outbox.spilled == 9
    box.close()


def test_dropped_when_full(tmp_path: Path) -> None:
    box = Box(tmp_path, max_events=2, on_full="drop").open()
    box.take(b"1", b"2", b"3")
    assert not box.outbox.full
    assert payloads(box.page(0)[0]) == [b"1", b"2"]
    assert box.outbox.spilled == 1
    box.close()


def test_a_commit_waits_for_what_went_to_the_dead_letters(tmp_path: Path) -> None:
    spilled: list[tuple[Event, Callable[[StoreFailed | None], None]]] = []
    box = Box(
        tmp_path, max_events=1, on_full="dead_letter", spill=lambda *one: spilled.append(one)
    ).open()
    commit = CommitId("s", 1)
    for payload in (b"1", b"2", b"3"):
        box.outbox.append(commit, Message("t", payload))
    told: list[StoreFailed | None] = []
    box.outbox.flush(commit, told.append)
    box.runtime.run_until_idle()
    assert [event.payload for event, _ in spilled] == [b"2", b"3"]
    assert told == []
    spilled[0][1](None)
    assert told == []
    spilled[1][1](None)
    assert told == [None]
    box.outbox.append(CommitId("s", 2), Message("t", b"4"))
    told.clear()
    box.outbox.flush(CommitId("s", 2), told.append)
    spilled[2][1](StoreFailed("disk on fire"))
    box.runtime.run_until_idle()
    assert told == [StoreFailed("disk on fire")]
    box.close()


def test_an_event_that_cannot_be_understood_does_not_stop_the_others(tmp_path: Path) -> None:
    box = Box(tmp_path).open()
    box.take(b"1")
    box.outbox.log.append(None, b"of another version")
    box.take(b"2")
    found, following = box.page(0)
    assert (payloads(found), following) == ([b"1", b"2"], 3)
    assert box.sent.unreadable == 1
    assert box.outbox.waiting == 2
    box.close()


def rot(folder: Path, at: int, segment: int = 0) -> None:
    path = sorted((folder / "log").glob("*.segment"))[segment]
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_damage_while_it_runs_is_skipped_and_reported(tmp_path: Path) -> None:
    box = Box(tmp_path).open()
    box.take(*(b"%d" % number * 50 for number in range(6)))
    size = (box.outbox.disk - 200) // 6
    rot(tmp_path, -10 - 2 * size)
    first, following = box.page(0)
    assert [one.number for one in first] == [0, 1, 2]
    rest, end = box.page(following)
    assert [one.number for one in rest] == [4, 5]
    assert (box.lost, box.sent.damaged, box.outbox.waiting) == ([(3, 4)], 1, 5)
    [(level, event, fields)] = box.runtime.logged
    assert (level, event) == ("error", "webhook.outbox_damaged")
    assert (fields["first"], fields["end"], fields["lost"]) == (3, 4, 1)
    for one in (*first, *rest):
        box.done(one.number)
    assert box.outbox.waiting == box.outbox.size == 0
    assert box.page(end) == ([], 6)
    box.close()
    again = Box(tmp_path).open(CommitId("s", 1))
    assert (again.lost, again.outbox.waiting) == ([], 0)  # it arrived, or was reported as lost
    again.take(b"more")
    [one], _ = again.page(again.outbox.start)
    assert (one.number, one.event.payload) == (6, b"more")
    again.close()


def test_damage_at_the_end_does_not_stop_later_events(tmp_path: Path) -> None:
    box = Box(tmp_path).open()
    box.take(b"1", b"2")
    rot(tmp_path, -3)
    assert payloads(box.page(0)[0]) == [b"1"]
    found, following = box.page(1)
    assert (found, following, box.lost) == ([], 2, [(1, 2)])
    box.take(b"3")
    assert payloads(box.page(following)[0]) == [b"3"]
    box.close()


def test_a_start_after_damage_tells_what_is_missing(tmp_path: Path) -> None:
    box = Box(tmp_path, max_bytes=65536).open()
    for number in range(6):
        box.take(b"%d" % number * 5000)
    first, _ = box.page(0, 1)
    box.done(first[0].number)
    box.close()
    files = sorted((tmp_path / "log").glob("*.segment"))
    assert len(files) == 3
    rot(tmp_path, 3, 1)  # its head
    rot(tmp_path, -10, 1)
    files[0].unlink()
    box = Box(tmp_path, max_bytes=65536).open(CommitId("s", 6))
    found: list[Numbered] = []
    at = box.outbox.start
    while True:
        page, following = box.page(at)
        found += page
        if following == at:
            break
        at = following
    assert [one.number for one in found] == [2, 4, 5]
    assert box.lost == [(1, 2), (3, 4)]  # 0 had arrived
    assert (box.sent.damaged, box.outbox.waiting) == (2, 3)
    box.close()


def test_a_folder_that_was_moved_away_is_no_loss(tmp_path: Path) -> None:
    folder, away = tmp_path / "here", tmp_path / "away"
    box = Box(folder).open()
    for number in range(3):
        box.take(b"%d" % number)
    folder.rename(away)
    told: list[Any] = []
    box.sent.page(0, 10, 1 << 20, lambda *found: told.append(found))
    box.runtime.run_until_idle()
    ((events, following, error),) = told
    assert (events, following) == ([], 0)
    assert isinstance(error, FileNotFoundError)
    assert (box.lost, box.sent.damaged) == ([], 0)
    away.rename(folder)
    assert [one.number for one in box.page(0)[0]] == [0, 1, 2]
    box.close()


def test_on_a_full_disk_what_arrived_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = Box(tmp_path / "box", max_bytes=1 << 15).open()
    for number in range(20):
        box.take(b"%d" % number + bytes(1000))
    before, write = box.outbox.log.size, write_atomically
    kept = tmp_path / "box" / "reserve"
    assert kept.stat().st_size == folder.RESERVED

    def full(path: Path, data: bytes) -> None:
        if kept.exists():  # the only free space is that of the reserve
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, data)

    monkeypatch.setattr(folder, "write_atomically", full)
    for one in box.page(0)[0]:
        box.done(one.number)
    box.runtime.advance(2)
    assert box.outbox.log.size < before / 2
    assert json.loads((tmp_path / "box" / CURSOR).read_bytes())["edge"] == 20
    assert kept.stat().st_size == folder.RESERVED  # for the next time
    monkeypatch.undo()
    box.close()
    again = Box(tmp_path / "box").open(CommitId("s", 20))
    assert (again.outbox.waiting, again.lost) == (0, [])
    again.close()


def test_a_full_disk_without_a_reserve_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = Box(tmp_path / "box").open()
    (tmp_path / "box" / "reserve").unlink()

    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(folder, "write_atomically", full)
    box.take(b"1")
    for one in box.page(0)[0]:
        box.done(one.number)
    box.runtime.advance(2)
    assert "webhook.cursor_not_saved" in [name for _, name, _ in box.runtime.logged]
    monkeypatch.undo()
    box.close()


def test_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Box(tmp_path / "a").open().close()
    held = Box(tmp_path / "a").open()
    with pytest.raises(StoreError, match="in use by another process"):
        Box(tmp_path / "a").open()
    held.close()
    (tmp_path / "a" / "photos.zip").write_text("x")
    with pytest.raises(StoreError, match=r"contains unknown files: photos\.zip"):
        Box(tmp_path / "a").open()
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="is a file"):
        Box(tmp_path / "file").open()
    with pytest.raises(StoreError, match="is a file"):
        Box(tmp_path / "file" / "below").open()
    (tmp_path / "b" / "log").mkdir(parents=True)
    (tmp_path / "b" / "log" / "00000000000000000000.segment").write_bytes(b"garbage" * 100)
    (tmp_path / "b" / "log" / "00000000000000000009.segment").write_bytes(b"garbage" * 100)
    with pytest.raises(StoreError, match="segment"):
        Box(tmp_path / "b").open()
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/hookmq:/x")
    assert default_folder("a/..") == Path("/var/lib/hookmq/webhook/a%2F..")
    assert default_folder("..") == Path("/var/lib/hookmq/webhook/%2E%2E")
    monkeypatch.delenv("STATE_DIRECTORY")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert default_folder("one") != default_folder("two")
    assert default_folder("one") == Path("/state/hookmq/webhook/one")


def test_after_a_failed_disk_nothing_more_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = Box(tmp_path).open()

    def fails(file: int) -> None:
        raise OSError(5, "I/O error")

    monkeypatch.setattr("os.fdatasync", fails)
    box.outbox.put(Event("client.connected", 1.0))
    box.runtime.run_until_idle()
    assert [e for _, e, _ in box.runtime.logged] == ["webhook.outbox_failed"]
    monkeypatch.undo()
    assert box.flush(CommitId("s", 1)) is not None
    box.outbox.put(Event("client.connected", 1.0))
    assert box.outbox.spilled == 1
    box.close()


# events -----------------------------------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
events = st.builds(
    Event,
    st.text(min_size=1),
    st.floats(allow_nan=False),
    st.none() | st.text(),
    st.none() | st.text(),
    st.text(),
    st.dictionaries(st.text(), json_values, max_size=4),
    st.none() | st.binary(),
    st.none() | st.text(),
)


@given(events)
def test_events_are_unpacked_as_they_were(event: Event) -> None:
    assert unpack(pack(event)) == event


@example(
    b"(\xff\xff\xff\x7f"
)  # a tuple of two thousand million: marshal would take the memory for it
@given(st.binary(max_size=200))
def test_data_that_is_not_an_event_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a packed event"):
        unpack(data)


# in memory --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("drop", "left"), [("oldest", [1, 2, 3]), ("newest", [0, 1, 2])])
def test_a_memory_queue_is_bounded_in_events(drop: Any, left: list[int]) -> None:
    dropped: list[Event] = []
    queue = MemoryQueue("q", 3, 1 << 20, drop, dropped.append)
    for number in range(4):
        queue.put(Event("x.y", float(number)))
    assert len(dropped) == 1
    told: list[list[Numbered]] = []
    queue.page(0, 10, 1 << 20, lambda found, following, error: told.append(found))
    assert [one.number for one in told[0]] == left  # a consumer sees the gap
    assert [one.id for one in told[0]] == [f"q-{n}" for n in left]
    queue.put(Event("x.y", 9.0))
    assert len(dropped) == 2  # events being sent count
    for one in told[0]:
        queue.done(one.number)
    assert (queue.waiting, queue.size) == (0, 0)


@given(st.lists(st.integers(0, 3000), max_size=40), st.sampled_from(["oldest", "newest"]))
def test_a_memory_queue_is_bounded_in_bytes(sizes: list[int], drop: Any) -> None:
    dropped: list[Event] = []
    queue = MemoryQueue("q", 1000, 4096, drop, dropped.append)
    for size in sizes:
        queue.put(Event("x.y", 1.0, payload=bytes(size)))
        assert queue.size <= 4096
    assert queue.waiting + len(dropped) == len(sizes)


def test_what_does_not_fit_leaves_a_gap(tmp_path: Path) -> None:
    box = Box(tmp_path, max_events=2, on_full="drop").open()
    box.take(b"0", b"1", b"lost", b"lost")
    assert box.outbox.spilled == 2
    found, following = box.page(0)
    for one in found:
        box.done(one.number)
    box.take(b"2")
    assert box.outbox.waiting == 1  # the skipped numbers do not count
    more, following = box.page(following)
    assert [one.number for one in (*found, *more)] == [0, 1, 4]
    assert [one.id for one in more] == [f"{box.outbox.log.id}-4"]
    assert box.outbox.waiting == 1
    box.done(4)
    assert box.outbox.waiting == 0
    assert box.page(following) == ([], 5)


@pytest.mark.parametrize("crash", [False, True])
def test_a_gap_outlives_a_restart(tmp_path: Path, crash: bool) -> None:
    box = Box(tmp_path, max_events=2, on_full="drop").open()
    box.take(b"0", b"1", b"lost")
    box.runtime.advance(2.0)
    box.crash() if crash else box.close()
    box = Box(tmp_path, max_events=4, on_full="drop").open(CommitId("s", 1))
    assert box.outbox.waiting == 2
    box.take(b"2")
    assert box.outbox.waiting == 3
    found, _ = box.page(0)
    assert [one.number for one in found] == [0, 1, 3]
    box.close()
    box = Box(tmp_path, max_events=3, on_full="drop").open(CommitId("s", 2))
    assert box.outbox.waiting == 3
    found, following = box.page(0)
    assert ([one.number for one in found], following) == ([0, 1, 3], 4)
    assert box.outbox.waiting == 3


def test_unread_gaps_are_known_after_a_restart(tmp_path: Path) -> None:
    box = Box(tmp_path, max_events=2, on_full="drop").open()
    box.take(b"0", b"1", b"lost", b"lost")
    box.outbox.bounds = Bounds(1 << 20, 10, "drop")
    box.take(b"2")
    box.runtime.advance(2.0)
    box.crash()
    box = Box(tmp_path, max_events=10).open(CommitId("s", 2))
    assert box.outbox.waiting == 3
    assert [one.number for one in box.page(0)[0]] == [0, 1, 4]
    assert box.outbox.waiting == 3


def test_the_oldest_make_room_by_number(tmp_path: Path) -> None:
    box = Box(tmp_path, max_events=3, on_full="drop_oldest").open()
    box.take(b"0", b"1", b"2", b"lost")  # events of the present commit cannot be dropped
    assert (box.outbox.waiting, box.outbox.spilled, box.outbox.full) == (3, 1, False)
    box.take(b"4")
    box.take(b"5")
    assert (box.outbox.waiting, box.outbox.spilled, box.sent.dropped) == (3, 1, 2)
    assert payloads(box.page(0)[0]) == [b"2", b"4", b"5"]


def test_events_in_memory_are_sent_and_not_counted_as_dropped(tmp_path: Path) -> None:
    box = Box(tmp_path, max_events=3, on_full="drop_oldest").open()
    box.take(b"0", b"1", b"2")
    for one in box.page(0)[0]:
        box.sent.taken(one.number)
    for payload in (b"3", b"4", b"5", b"6"):
        box.take(payload)
    assert (box.outbox.waiting, box.outbox.spilled, box.sent.dropped) == (3, 0, 1)
    box.done(0)  # it arrived after all
    assert box.outbox.waiting == 3
    assert [one.event.payload for one in box.page(3)[0]] == [b"4", b"5", b"6"]


def test_the_oldest_make_room_on_disk(tmp_path: Path) -> None:
    box = Box(tmp_path, max_bytes=65536, max_events=0, on_full="drop_oldest").open()
    for number in range(2000):
        box.take(b"%06d" % number * 40)
        box.runtime.advance(0.01)
    outbox = box.outbox
    assert outbox.size <= 65536 + 400
    assert outbox.disk <= 3 * 65536
    assert box.sent.damaged == 0
    first = outbox.start
    assert outbox.waiting == 2000 - first
    assert (outbox.spilled, box.sent.dropped) == (0, first)
    found, _ = box.page(first, 10_000, 1 << 20)
    assert [one.number for one in found] == list(range(first, 2000))
    box.close()
    box = Box(tmp_path, max_bytes=65536, max_events=0, on_full="drop_oldest").open(
        CommitId("s", 2000)
    )
    assert box.outbox.waiting == 2000 - first
    assert (box.sent.damaged, box.lost) == (0, [])
