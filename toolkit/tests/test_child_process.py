"""Test processes that a plugin runs: start, requests, death, and the end."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hookmq_toolkit.child_process import ChildProcess, Refused

CHILD = """\
import asyncio
import os

from hookmq_toolkit.channel import Channel, Refused
from hookmq_toolkit.child_runtime import ChildRuntime, run_child


class Child:
    def __init__(self):
        self.runtime = ChildRuntime(lambda level, event, **fields: self.channel.write((level, event, fields)))
        self.channel = Channel(self.take, self.answer)

    def take(self, value):
        if value == "thread":
            self.runtime.run_blocking(os.getpid, self.done)
        elif value == "fail":
            self.runtime.run_blocking(lambda: 1 / 0, self.done)
        elif value == "cancel":
            cancel = self.runtime.spawn(asyncio.sleep(60), self.done)
            cancel()
            self.runtime.call_later(0.0, lambda: self.runtime.log("info", "cancelled"))
        elif value == "die":
            os._exit(7)
        else:
            self.channel.write(value)

    def done(self, result, error):
        self.channel.write(("done", result, type(error).__name__))

    async def answer(self, request):
        if request == "wait":
            await asyncio.Event().wait()
        return request


if __name__ == "__main__":
    run_child(lambda: Child().channel)
"""


class World:
    """A process, and what it has sent."""

    def __init__(self) -> None:
        self.begun = 0
        self.taken: list[Any] = []
        self.ended: list[tuple[int | None, str]] = []
        self.changed = asyncio.Condition()
        self.child = ChildProcess("toolkit_child", self._begin, self._take, self._end)
        self._tasks: set[asyncio.Task[None]] = set()

    def _begin(self) -> None:
        self.begun += 1
        self._note()

    def _take(self, value: Any) -> None:
        self.taken.append(value)
        self._note()

    def _end(self, code: int | None, reason: str, seconds: float) -> None:
        self.ended.append((code, reason))
        self._note()

    def _note(self) -> None:
        task = asyncio.get_running_loop().create_task(self._notify())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def wait(self, until: Callable[[], bool]) -> None:
        async with asyncio.timeout(60), self.changed:
            await self.changed.wait_for(until)


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    (tmp_path / "toolkit_child.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    made = World()
    yield made
    await made.child.stop()


async def test_it_exchanges_values_and_requests(world: World) -> None:
    child = world.child
    with pytest.raises(Refused, match="not running"):
        await child.ask("early", 1.0)
    child.start()
    child.start()
    await world.wait(lambda: world.begun == 1)
    pid = child.pid
    assert child.running
    child.write("hello")
    child.write("thread")
    await world.wait(lambda: len(world.taken) == 2)
    assert world.taken == ["hello", ("done", pid, "NoneType")]
    assert await child.ask({"a": 1}, 30.0) == {"a": 1}
    with pytest.raises(Refused, match=r"no reply from the process within 0\.01 s"):
        await child.ask("wait", 0.01)
    child.write("fail")
    child.write("cancel")
    await world.wait(lambda: len(world.taken) == 4)
    assert sorted(world.taken[2:], key=str) == [
        ("done", None, "ZeroDivisionError"),
        ("info", "cancelled", {}),
    ]
    await child.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert (world.ended, child.restarts, child.pid) == ([], 0, 0)


async def test_one_that_died_is_started_again(world: World) -> None:
    child = world.child
    child.start()
    assert await _asked(world) == 1
    os.kill(child.pid, signal.SIGTERM)  # ignored
    child.write("die")
    await world.wait(lambda: world.begun == 2)
    os.kill(child.pid, signal.SIGKILL)
    await world.wait(lambda: world.begun == 3)
    assert world.ended == [(7, ""), (-9, "")]
    assert child.restarts == 2
    assert await child.ask(1, 30.0) == 1


async def test_one_that_cannot_be_started_is_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sys.executable
    monkeypatch.setattr("sys.executable", "/nothing")
    world.child.start()
    await world.wait(lambda: len(world.ended) == 2)
    assert world.ended == [(None, "No such file or directory")] * 2
    monkeypatch.setattr("sys.executable", before)
    await world.wait(lambda: world.begun == 1)


async def test_one_that_is_suspended_is_killed(world: World) -> None:
    child = world.child
    child.patience = 0.3
    child.start()
    assert await _asked(world) == 1
    os.kill(child.pid, signal.SIGSTOP)
    await world.wait(lambda: world.begun == 2)
    assert world.ended == [(None, "stuck"), (-9, "")]


async def _asked(world: World) -> Any:
    await world.wait(lambda: world.begun == 1)
    return await world.child.ask(1, 30.0)
