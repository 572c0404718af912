"""Test the supervisor with workers that are small scripts. tests/workers runs real brokers."""

import asyncio
import io
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hookmq.server.supervisor
import pytest
from hookmq.model.errors import BindError, StoreError
from hookmq.server.settings import ListenerSettings
from hookmq.server.supervisor import Supervisor

CONNECTED = (
    "import os, socket, sys, time; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM);"
    "s.connect(os.environ['NOTIFY_SOCKET']);"
)
READY = CONNECTED + "s.send(b'READY=1');"


class Plan:
    """A plan that records its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.error: Exception | None = None
        self.gate: asyncio.Event | None = None

    async def start(self) -> None:
        self.calls.append("start")
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error

    def settings(self, worker: str) -> dict[str, str]:
        return {}

    async def stop(self) -> None:
        self.calls.append("stop")


class Desk:
    """A supervisor whose workers run the code that `code` returns."""

    def __init__(self, log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = log
        self.plan = Plan()
        self.starts: list[str] = []
        self.changed = asyncio.Event()
        log.on_record = self.changed.set
        monkeypatch.setattr(hookmq.server.supervisor, "FIRST_PAUSE", 0.01)
        monkeypatch.setattr(sys, "stderr", type("Stream", (), {"buffer": io.BytesIO()}))

    def make(self, code: Callable[[str], str], count: int = 2, *listeners: ListenerSettings) -> Supervisor:  # fmt: skip
        def command(worker: str) -> list[str]:
            self.starts.append(worker)
            return [sys.executable, "-c", code(worker)]

        return Supervisor(
            count, self.plan, listeners, command, lambda worker: {"NAME": worker}, 5.0, self.log
        )

    async def until(self, event: str, count: int = 1) -> dict[str, Any]:
        async with asyncio.timeout(60):
            while len(found := [one for one in self.log.records if one[1] == event]) < count:
                self.changed.clear()
                await self.changed.wait()
        fields: dict[str, Any] = found[-1][2]
        return fields


@pytest.fixture
async def desk(log: Any, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(log, monkeypatch)


async def test_workers_run_until_the_supervisor_stops(desk: Desk) -> None:
    supervisor = desk.make(lambda _: READY + "time.sleep(600)")
    running = asyncio.ensure_future(supervisor.run())
    assert await desk.until("workers.started") == {"workers": 2}
    assert sorted(desk.starts) == ["w0", "w1"]
    supervisor.request_stop()
    supervisor.request_stop()
    assert await running == 0
    assert desk.plan.calls == ["start", "stop"]


async def test_the_first_bad_exit_code_is_returned(desk: Desk) -> None:
    code = "import signal; signal.signal(15, lambda *_: sys.exit(CODE)); time.sleep(600)"
    supervisor = desk.make(
        lambda worker: (
            CONNECTED
            + code.replace("CODE", "7" if worker == "w1" else "0").replace(
                "time.sleep", "s.send(b'READY=1'); time.sleep"
            )
        )
    )
    running = asyncio.ensure_future(supervisor.run())
    await desk.until("workers.started")
    supervisor.request_stop()
    assert await running == 7


async def test_a_worker_that_ends_is_started_again_with_longer_pauses(desk: Desk) -> None:
    ends = READY + "time.sleep(600) if sys.argv[0] == 'x' else None;"

    def code(worker: str) -> str:
        first = desk.starts.count(worker) == 1
        return READY + "time.sleep(600)" if worker == "w1" or first else ends + "sys.exit(9)"

    supervisor = desk.make(code)
    running = asyncio.ensure_future(supervisor.run())
    await desk.until("workers.started")
    supervisor._workers[0].kill()
    fields = await desk.until("worker.ended")
    assert fields == {"worker": "w0", "reason": "signal SIGKILL", "restart_in": 0.01}
    fields = await desk.until("worker.ended", 3)
    assert fields == {"worker": "w0", "reason": "exit code 9", "restart_in": 0.04}
    assert desk.starts.count("w1") == 1
    supervisor.request_stop()
    supervisor.request_stop()
    await running


async def test_a_silent_worker_is_killed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hookmq.server.supervisor, "BEAT", 0.2)
    supervisor = desk.make(lambda _: READY + "time.sleep(600)", 1)
    running = asyncio.ensure_future(supervisor.run())
    fields = await desk.until("worker.killed")
    assert fields == {"worker": "w0", "why": "silent for 0.2 s"}
    await desk.until("worker.ended")
    supervisor.request_stop()
    supervisor.request_stop()
    await running


async def test_a_worker_that_does_not_stop_is_killed(desk: Desk) -> None:
    code = "import signal; signal.signal(15, signal.SIG_IGN);" + READY + "time.sleep(600)"
    supervisor = desk.make(lambda _: code, 1)
    supervisor._patience = 0.05
    running = asyncio.ensure_future(supervisor.run())
    await desk.until("workers.started")
    supervisor.request_stop()
    assert await running == 1
    assert (await desk.until("worker.killed"))["why"] == "did not stop in time"


async def test_a_worker_that_does_not_start_ends_the_others(desk: Desk) -> None:
    supervisor = desk.make(
        lambda worker: "raise SystemExit(2)" if worker == "w1" else READY + "time.sleep(600)"
    )
    assert await supervisor.run() == 2
    assert (await desk.until("worker.failed"))["reason"] == "exit code 2"
    assert desk.plan.calls == ["start", "stop"]


async def test_a_plan_that_fails(desk: Desk) -> None:
    desk.plan.error = StoreError("no")
    with pytest.raises(StoreError, match="no"):
        await desk.make(lambda _: "").run()
    assert desk.plan.calls == ["start", "stop"]
    assert desk.starts == []


async def test_a_stop_while_the_plan_starts(desk: Desk) -> None:
    desk.plan.gate = asyncio.Event()
    supervisor = desk.make(lambda _: "")
    running = asyncio.ensure_future(supervisor.run())
    async with asyncio.timeout(60):
        while not desk.plan.calls:  # noqa: ASYNC110 - the plan has no event for its start
            await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == 0
    assert desk.plan.calls == ["start", "stop"]
    assert desk.starts == []


async def test_an_address_in_use_starts_nothing(desk: Desk) -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(BindError, match="address already in use"):
        await desk.make(lambda _: "", 2, ListenerSettings("tcp", bind=f"127.0.0.1:{port}")).run()
    assert desk.plan.calls == ["stop"]
    server.close()


async def test_signals_are_passed_on(desk: Desk) -> None:
    code = READY + "import signal; signal.sigwait([signal.SIGHUP]); sys.exit(5)"
    code = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP]);" + code
    again = READY + "time.sleep(600)"
    supervisor = desk.make(lambda worker: code if desk.starts.count(worker) == 1 else again)
    running = asyncio.ensure_future(supervisor.run())
    await desk.until("workers.started")
    os.kill(os.getpid(), signal.SIGHUP)
    assert (await desk.until("worker.ended", 2))["reason"] == "exit code 5"
    supervisor.request_stop()
    supervisor.request_stop()
    await running


async def test_what_workers_get_from_their_environment(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WATCHDOG_PID", "1")
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/hookmq")
    path = tmp_path / "s"
    listeners = (
        ListenerSettings("tcp", bind="127.0.0.1:0"),
        ListenerSettings("unix", "unix", bind=str(path)),
    )
    wanted = (
        "import json; w = json.loads(os.environ['HOOKMQ_WORKER']);"
        "assert 'WATCHDOG_PID' not in os.environ;"
        "assert os.environ['STATE_DIRECTORY'] == '/var/lib/hookmq/workers/w0';"
        "assert os.environ['NAME'] == 'w0';"
        "assert w['number'] == 0 and w['total'] == 1 and w['ports']['tcp'] > 0;"
        "u = socket.socket(fileno=w['sockets']['unix']);"
        f"assert u.getsockname() == {str(path)!r};"
        "assert os.read(w['alive'], 1) == b'';"  # blocks until the supervisor has ended
    )
    supervisor = desk.make(lambda _: READY + wanted + "sys.exit(5)", 1, *listeners)
    running = asyncio.ensure_future(supervisor.run())
    await desk.until("workers.started")
    await asyncio.to_thread(os.close, supervisor._alive[1])
    supervisor._alive = (supervisor._alive[0], -1)
    assert (await desk.until("worker.ended"))["reason"] == "exit code 5"
    supervisor.request_stop()
    supervisor.request_stop()
    await running
    assert not path.exists()
