"""Test one worker's process as the supervisor sees it. tests/workers runs real brokers."""

import asyncio
import io
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hookmq.server.worker_process import WorkerProcess

NOTIFY = (
    "import os, socket, sys, time; s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM);"
    "s.connect(os.environ['NOTIFY_SOCKET']);"
)


class Watched:
    def __init__(self, path: Path) -> None:
        self.log = io.BytesIO()
        self.ready = asyncio.Event()
        self.worker = WorkerProcess("w3", str(path), self.ready.set, self.log)

    async def run(self, code: str) -> int:
        environ = {**os.environ, "NOTIFY_SOCKET": self.worker.notify_path}
        async with asyncio.timeout(60):
            return await self.worker.run([sys.executable, "-c", code], environ, [])


@pytest.fixture
async def watched(tmp_path: Path) -> Iterator[Watched]:  # type: ignore[misc]
    found = Watched(tmp_path / "n")
    yield found
    found.worker.close()
    assert not (tmp_path / "n").exists()


async def test_the_exit_code_is_returned(watched: Watched) -> None:
    assert await watched.run("raise SystemExit(4)") == 4
    assert await watched.run("pass") == 0
    assert watched.worker.pid == 0


async def test_the_log_has_the_workers_name(watched: Watched) -> None:
    await watched.run(
        "import sys; sys.stderr.write('{\"event\": \"x\"}\\nplain\\n{}\\n' + 'y' * 3000 + '\\nlast')"
    )
    lines = watched.log.getvalue().split(b"\n")
    assert lines[:3] == [b'{"worker":"w3","event": "x"}', b"w3 plain", b"w3 {}"]
    assert lines[3] == b"w3 " + b"y" * 3000
    assert lines[4:] == [b"w3 last", b""]


async def test_a_process_reports_that_it_is_ready(watched: Watched) -> None:
    code = NOTIFY + "s.send(b'STATUS=x'); s.send(b'READY=1\\nX=1'); time.sleep(600)"
    running = asyncio.ensure_future(watched.run(code))
    async with asyncio.timeout(60):
        await watched.ready.wait()
    worker = watched.worker
    assert worker.ready
    assert worker.beat >= worker.started
    assert worker.pid
    worker.signal(signal.SIGTERM)
    assert await running == -signal.SIGTERM
    assert not worker.ready


async def test_a_process_can_be_killed(watched: Watched) -> None:
    watched.worker.kill()  # there is none
    code = NOTIFY + "import signal; signal.signal(15, signal.SIG_IGN); s.send(b'READY=1'); time.sleep(600)"  # fmt: skip
    running = asyncio.ensure_future(watched.run(code))
    async with asyncio.timeout(60):
        await watched.ready.wait()
    watched.worker.signal(signal.SIGTERM)
    watched.worker.kill()
    assert await running == -signal.SIGKILL


async def test_a_command_that_does_not_exist(watched: Watched) -> None:
    with pytest.raises(FileNotFoundError):
        await watched.worker.run(["/nothing"], {}, [])
    assert watched.worker.pid == 0
