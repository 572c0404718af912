"""Test a sink's process without a broker: its cursor, its lock, and how it handles a log that has lost messages."""

import asyncio
import json
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hookmq.mqtt_api import EMPTY
from hookmq.plugin import StoreError
from hookmq.storage_api import CommitId, make_message
from hookmq_sinks import sender
from hookmq_sinks.config import SinkConfig
from hookmq_sinks.control import status_of
from hookmq_sinks.cursor import Cursor, read_cursor, write_cursor
from hookmq_sinks.dead_letters import DeadLetters, read_dead_letters
from hookmq_sinks.plain import plain_value
from hookmq_sinks.process import SenderProcess
from hookmq_sinks.sender import Sender
from hookmq_sinks.sink_log import SinkLog
from hookmq_sinks.testing import make_record


class Runtime:
    """Runs blocking work immediately, and drops log events."""

    def run_blocking(self, work: Callable[[], Any], done: Callable[..., Any]) -> Callable[[], None]:
        done(work(), None)
        return lambda: None

    def log(self, *event: Any, **fields: Any) -> None:
        pass


class Sink:
    """A log that contains messages, and the `file` driver's folder."""

    def __init__(self, folder: Path) -> None:
        self.out = folder / "out"
        target = {"path": str(self.out), "sync": False}
        self.config = SinkConfig("s", ("#",), "file", target, decode="json")
        runtime: Any = Runtime()
        self.log = SinkLog(self.config, folder, runtime, sync=False)
        self.log.recover(CommitId("store", 0))
        self.commits = 0

    def publish(self, *numbers: int) -> None:
        self.commits += 1
        commit = CommitId("store", self.commits)
        for one in numbers:
            payload = json.dumps({"n": one}).encode()
            self.log.append(
                commit, make_message("t", payload, 1, False, EMPTY, None, "client", 1.0, None)
            )
        self.log.flush(commit, lambda failed: None)
        self.log.committed(commit)

    def sender(self, first: bool = True) -> Sender:
        return Sender({
            "sink": plain_value(self.config), "folder": str(self.log.folder), "log_id": self.log.log.id,
            "end": self.log.log.readable, "sync": False, "paused": False, "first": first,
        })  # fmt: skip

    async def run(self) -> list[dict[str, Any]]:
        """Run the process until everything is written. Return all lines in the target."""
        one = self.sender()
        task = asyncio.create_task(one.run())
        async with asyncio.timeout(20):
            while one.feed is None or one.feed.low < one.end or task.done():
                if task.done():
                    await task
                await asyncio.sleep(0.005)
        one.ended.set()
        await task
        return self.lines()

    def lines(self) -> list[dict[str, Any]]:
        text = "".join(path.read_text() for path in sorted(self.out.glob("*.jsonl*")))
        return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def sink(tmp_path: Path, told: list[Any]) -> Any:
    made = Sink(tmp_path)
    yield made
    made.log.close()


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collect everything that the process tells the broker."""
    found: list[Any] = []
    monkeypatch.setattr(sender, "tell", lambda **what: found.append(what))
    return found


def numbers(lines: list[dict[str, Any]]) -> list[int]:
    return [one["payload"]["n"] for one in lines]


async def test_the_cursor_is_stored_at_the_end(sink: Sink, told: list[Any]) -> None:
    sink.publish(1, 2, 3)
    assert numbers(await sink.run()) == [1, 2, 3]
    assert read_cursor(sink.log.folder) == Cursor(sink.log.log.id, 3)
    assert told[-1]["status"]["cursor"] == 3
    assert told[-1]["status"]["counts"]["written"] == 3
    sink.publish(4)
    assert numbers(await sink.run()) == [1, 2, 3, 4]


async def test_a_save_that_nobody_waits_for_does_not_disturb_the_next_one(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = sink.sender()
    began, waits, go_on = threading.Event(), threading.Event(), threading.Event()
    writing: list[int] = []
    overlaps: list[int] = []

    class Watched:
        """A lock that shows when a second thread asks for it."""

        def __init__(self) -> None:
            self.lock = threading.Lock()

        def __enter__(self) -> None:
            if self.lock.locked():
                waits.set()
            self.lock.acquire()

        def __exit__(self, *error: object) -> None:
            self.lock.release()

    def slow(*arguments: Any) -> None:
        overlaps.extend(writing)
        writing.append(arguments[1].offset)
        began.set()
        assert go_on.wait(20)
        write_cursor(*arguments)
        writing.pop()

    monkeypatch.setattr(sender, "write_cursor", slow)
    monkeypatch.setattr(one, "_saving", Watched())
    one.cursor = Cursor(one.log_id, 1)
    first = asyncio.create_task(one._save())
    assert await asyncio.to_thread(began.wait, 20)
    first.cancel()
    with suppress(asyncio.CancelledError):
        await first
    one.cursor = Cursor(one.log_id, 2)
    second = asyncio.create_task(one._save())
    assert await asyncio.to_thread(waits.wait, 20)
    go_on.set()
    await second
    assert overlaps == []
    assert read_cursor(sink.log.folder) == Cursor(one.log_id, 2)


@pytest.mark.parametrize("again", [None, 2])
async def test_a_seek_is_kept_while_its_cursor_is_stored(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, again: int | None
) -> None:
    sink.publish(1, 2, 3)
    one = sink.sender()
    loop = asyncio.get_running_loop()
    stored: list[Cursor] = []

    async def meanwhile() -> None:
        one._move()  # as `_upkeep` does
        if again is not None:
            one.take({"do": "seek", "offset": again, "id": 2})
            await asyncio.gather(*one._replies)

    def slow(folder: Path, cursor: Cursor, sync: bool) -> None:
        write_cursor(folder, cursor, sync)
        stored.append(cursor)
        if cursor.seek and cursor.offset == 0:
            asyncio.run_coroutine_threadsafe(meanwhile(), loop).result(20)

    monkeypatch.setattr(sender, "write_cursor", slow)
    task = asyncio.create_task(one.run())

    async def written(count: int) -> None:
        async with asyncio.timeout(20):
            while one.counts.written < count or one.cursor.offset < 3:
                await asyncio.sleep(0.005)
                one._move()

    await written(3)
    one.take({"do": "seek", "offset": 0, "id": 1})
    await written(4)
    one.ended.set()
    await task
    assert [cursor.offset for cursor in stored if cursor.seek] == (
        [0] if again is None else [0, again]
    )
    assert read_cursor(sink.log.folder) == Cursor(sink.log.log.id, 3)
    assert numbers(sink.lines())[-1] == 3
    assert again is not None or numbers(sink.lines()) == [1, 2, 3] * 2


async def test_a_lost_cursor_repeats_nothing_if_the_target_holds_the_position(sink: Sink) -> None:
    sink.publish(1, 2, 3)
    await sink.run()
    (sink.log.folder / "cursor").unlink()
    sink.publish(4)
    assert numbers(await sink.run()) == [1, 2, 3, 4]


async def test_a_damaged_cursor_is_an_error(sink: Sink) -> None:
    (sink.log.folder / "cursor").write_text("{")
    with pytest.raises(StoreError, match="cursor is damaged"):
        await sink.run()


async def test_new_messages_of_a_log_that_lost_some_get_other_ids(
    sink: Sink, told: list[Any]
) -> None:
    sink.publish(1, 2)
    first = await sink.run()
    write_cursor(sink.log.folder, Cursor(sink.log.log.id, 10))
    await sink.run()
    assert any(one.get("log", ["", ""])[1] == "sinks.cursor_ahead" for one in told)
    sink.publish(3)
    lines = await sink.run()
    assert numbers(lines) == [1, 2, 3]
    assert lines[-1]["id"] == f"s:{sink.log.log.id}.1:2"
    assert first[-1]["id"] == f"s:{sink.log.log.id}:1"
    assert read_cursor(sink.log.folder) == Cursor(sink.log.log.id, 3, 1)


async def test_messages_are_not_taken_for_lost_ones_that_the_target_has(
    sink: Sink, told: list[Any]
) -> None:
    sink.publish(1, 2)
    await sink.run()
    # The target has three records that the log has lost, and the cursor was stored before them.
    position = json.loads((sink.out / ".s.position").read_text())
    (sink.out / ".s.position").write_text(json.dumps({**position, "offset": 5}))
    one = sink.sender()
    sink.publish(3, 4, 5, 6)
    task = asyncio.create_task(one.run())
    async with asyncio.timeout(20):
        while not task.done() and len(sink.lines()) < 6:
            one.take({"end": sink.log.log.readable})
            await asyncio.sleep(0.01)
    one.ended.set()
    await task
    assert numbers(sink.lines()) == [1, 2, 3, 4, 5, 6]
    assert any(one.get("log", ["", ""])[1] == "sinks.cursor_ahead" for one in told)
    assert sink.lines()[2]["id"] == f"s:{sink.log.log.id}.1:2"


async def test_a_target_that_lost_records_gets_them_again(sink: Sink, told: list[Any]) -> None:
    sink.publish(1, 2, 3)
    await sink.run()
    before = (sink.out / ".s.position").read_text()
    sink.publish(4, 5)
    await sink.run()
    (sink.out / ".s.position").write_text(before)  # as if restored from a backup
    sink.publish(6)
    assert numbers(await sink.run()) == [1, 2, 3, 4, 5, 6]
    assert any(one.get("log", ["", ""])[1] == "sinks.target_behind" for one in told)


@pytest.mark.parametrize(
    ("paused", "told", "state"),
    [
        (True, "active", "paused"),
        (True, "failed", "failed"),
        (False, "paused", "starting"),
        (False, "active", "active"),
    ],
)
def test_a_late_report_does_not_end_a_pause(
    sink: Sink, paused: bool, told: str, state: str
) -> None:
    process = SenderProcess(sink.log, False)
    process.pause(paused)
    process.status = {"state": told, "reason": ""}
    assert status_of(process, 0.0).state == state


def test_only_one_process_writes(sink: Sink) -> None:
    held = sender.lock(sink.log.folder)
    assert held is not None
    assert sender.lock(sink.log.folder) is None


# dead letters --------------------------------------------------------------------------------------------------------


def test_dead_letters_keep_every_field(tmp_path: Path) -> None:
    letters = DeadLetters(tmp_path, 1 << 20)
    letters.open()
    records = [
        make_record(0, b"\xff\x00", "t/ä", qos=0, retain=True, key="k", content_type="x", response_topic="r",
                    correlation_data=b"\x01", text_payload=True, user_properties=(("a", "b"), ("a", "c")),
                    expires_at=5.0),
        make_record(1, client_id=None),
    ]  # fmt: skip
    assert letters.add([(one, "why") for one in records]) == 2
    assert letters.add([(one, "why") for one in records]) == 0
    letters.close()
    found = list(read_dead_letters(tmp_path))
    assert [one.reason for one in found] == ["why", "why"]
    for record, letter in zip(records, found, strict=True):
        record.value = None
        assert letter.record == record


def test_an_incomplete_letter_is_cut_off_and_others_are_known_again(tmp_path: Path) -> None:
    letters = DeadLetters(tmp_path, 1 << 20)
    letters.open()
    letters.add([(make_record(0), "a"), (make_record(1), "b")])
    letters.close()
    (path,) = (tmp_path / "dead-letters").glob("*.jsonl")
    path.write_bytes(path.read_bytes()[:-5])
    letters = DeadLetters(tmp_path, 1 << 20)
    letters.open()
    assert letters.count == 1
    assert letters.add([(make_record(0), "a"), (make_record(1), "b")]) == 1
    letters.close()
    assert [one.record.offset for one in read_dead_letters(tmp_path)] == [0, 1]


def test_dead_letters_are_bounded(tmp_path: Path) -> None:
    letters = DeadLetters(tmp_path, 65536)
    letters.open()
    for offset in range(200):
        letters.add([(make_record(offset, {"x": "y" * 1000}), "too large")])
    size = sum(path.stat().st_size for path in (tmp_path / "dead-letters").iterdir())
    assert size <= 65536 + 2000
    assert letters.removed + letters.count == 200
    found = [one.record.offset for one in read_dead_letters(tmp_path)]
    assert found == list(range(200 - letters.count, 200))
    letters.close()
