"""Test how a plugin follows the log: which events it receives, which limits apply, and how it changes the level."""

import asyncio
import io
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator

import pytest
from hookmq.model.log_events import RECENT, LogEvent
from hookmq.server import logs
from hookmq.server.asyncio_runtime import AsyncioRuntime
from hookmq.server.event_log import BUFFER, Follower, ServerLog

Work = Callable[[AsyncioRuntime, ServerLog], Awaitable[None]]


@pytest.fixture(autouse=True)
def configured() -> Iterator[io.StringIO]:
    """Configure the log as the broker does, and restore it afterwards."""
    root, own = logging.getLogger(), logging.getLogger("hookmq")
    before = (root.level, own.level)
    stream = io.StringIO()
    handler = logs.configure("info", "json", stream)
    yield stream
    root.removeHandler(handler)
    root.setLevel(before[0])
    own.setLevel(before[1])


def run(work: Work) -> None:
    async def running() -> None:
        runtime = AsyncioRuntime()
        log = ServerLog(runtime, lambda: "info")
        try:
            async with asyncio.timeout(60):
                await work(runtime, log)
        finally:
            log.close()
            await runtime.close()

    asyncio.run(running())


def follow(log: ServerLog, recent: int = 0) -> Follower:
    return log.follow(recent, lambda: None)


async def read(follower: Follower, count: int) -> list[LogEvent]:
    return [await anext(follower) for _ in range(count)]


def test_recent_events_come_first_and_then_new_ones() -> None:
    async def work(runtime: AsyncioRuntime, log: ServerLog) -> None:
        for number in range(3):
            runtime.log("info", "a.b", number=number)
        follower = follow(log, 2)
        runtime.log("warning", "c.d", client_id="lamp", nothing=None)
        found = await read(follower, 3)
        assert [one.event for one in found] == ["a.b", "a.b", "c.d"]
        assert [one.fields for one in found] == [
            {"number": 1},
            {"number": 2},
            {"client_id": "lamp"},
        ]
        assert [one.level for one in found] == ["info", "info", "warning"]
        assert found[0].time <= found[2].time
        assert follow(log)._events == type(follower._events)()

    run(work)


def test_a_reader_that_waits_is_woken_by_other_threads() -> None:
    async def work(runtime: AsyncioRuntime, log: ServerLog) -> None:
        follower = follow(log)
        waiting = asyncio.ensure_future(read(follower, 2))
        await asyncio.sleep(0)
        for name in ("one.a", "two.b"):
            thread = threading.Thread(target=runtime.log, args=("info", name))
            thread.start()
            thread.join()
        assert [one.event for one in await waiting] == ["one.a", "two.b"]

    run(work)


def test_secrets_and_long_texts_are_cut_for_followers_and_the_stream(
    configured: io.StringIO,
) -> None:
    async def work(runtime: AsyncioRuntime, log: ServerLog) -> None:
        follower = follow(log)
        runtime.log(
            "info", "a.b", password="s3cret", inner={"token": "s3cret", "x": b"abc"}, long="x" * 5000,
            odd=object, items=(1, float("inf")),
        )  # fmt: skip
        (found,) = await read(follower, 1)
        assert found.fields["inner"] == {"x": "<3 bytes>"}
        assert found.fields["long"] == "x" * 1000 + "… (5000 characters)"
        assert found.fields["odd"] == "<class 'object'>"
        assert found.fields["items"] == [1, "inf"]
        assert "s3cret" not in repr(found) + configured.getvalue()

    run(work)


def test_a_traceback_is_one_line_and_is_not_kept() -> None:
    async def work(runtime: AsyncioRuntime, log: ServerLog) -> None:
        follower = follow(log)
        runtime.log("error", "a.b", traceback=ValueError("wrong"))
        (found,) = await read(follower, 1)
        assert found.fields == {"traceback": "ValueError: wrong"}

    run(work)


def test_events_of_libraries_are_followed_too() -> None:
    async def work(runtime: AsyncioRuntime, log: ServerLog) -> None:
        follower = follow(log)
        logging.getLogger("library").warning("low on %s", "memory")
        (found,) = await read(follower, 1)
        assert (found.event, found.fields["message"]) == ("log", "low on memory")

    run(work)


def test_what_waits_and_what_is_remembered_is_bounded() -> None:
    async def work(runtime: AsyncioRuntime, log: ServerLog) -> None:
        slow = follow(log)
        for number in range(BUFFER + 7):
            runtime.log("info", "a.b", number=number)
        assert slow.skipped == 7
        assert (await anext(slow)).fields["number"] == 0
        late = follow(log, 10 * RECENT)
        assert (await anext(late)).fields["number"] == BUFFER + 7 - RECENT
        assert late.skipped == 0

    run(work)


def test_the_end() -> None:
    async def work(runtime: AsyncioRuntime, log: ServerLog) -> None:
        ended: list[str] = []
        follower = log.follow(0, lambda: ended.append("told"))
        runtime.log("info", "a.b")
        follower.stop("enough")
        follower.stop("again")
        runtime.log("info", "c.d")
        assert [one.event async for one in follower] == ["a.b"]
        assert (follower.ended, ended) == ("enough", ["told"])
        other = follow(log)
        waiting = asyncio.ensure_future(anext(other))
        await asyncio.sleep(0)
        log.close()
        with pytest.raises(StopAsyncIteration):
            await waiting
        assert other.ended == "the broker has ended"

    run(work)


def test_the_level_changes_what_is_logged_until_the_log_is_configured(
    configured: io.StringIO,
) -> None:
    async def work(runtime: AsyncioRuntime, log: ServerLog) -> None:
        follower = follow(log)
        assert log.levels().current == "info"
        log.set_level("debug")
        assert (log.levels().current, log.levels().configured) == ("debug", "info")
        assert runtime.logs("debug")
        runtime.log("debug", "a.fine")
        assert '"a.fine"' in configured.getvalue()
        log.set_level("error")
        runtime.log("warning", "a.hidden")
        logs.configure("info", "json", configured)  # a reload
        assert log.levels().current == "info"
        runtime.log("info", "a.again")
        assert [one.event for one in await read(follower, 2)] == ["a.fine", "a.again"]

    run(work)
