"""Test how the event loop is chosen."""

import asyncio
from typing import Any

import pytest
from hookmq.server.loop import finished, loop_factory, run


async def answer(value: int) -> int:
    return value


@pytest.mark.parametrize(
    ("kind", "module"), [("asyncio", "asyncio"), ("uvloop", "uvloop"), ("auto", "uvloop")]
)
def test_loops(kind: Any, module: str) -> None:
    loop = loop_factory(kind)()
    assert type(loop).__module__.startswith(module)
    loop.close()


def test_auto_without_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hookmq.server.loop.find_spec", lambda name: None)
    assert loop_factory("auto") is asyncio.new_event_loop


def test_run_returns_the_result() -> None:
    assert run(answer(3), "asyncio") == 3


async def test_a_step_is_awaited() -> None:
    calls: list[Any] = []
    waiting = asyncio.create_task(finished(calls.append))
    await asyncio.sleep(0)
    assert not waiting.done()
    [done] = calls
    done()
    done(ValueError("too late"))
    await waiting


async def test_the_error_of_a_step_is_raised() -> None:
    with pytest.raises(ValueError, match="wrong"):
        await finished(lambda done: done(ValueError("wrong")))
