"""The nats-server that a broker starts itself: real processes, and kill -9 of both."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from hookmq_cluster.engine import Appended, Entry, Stored
from hookmq_cluster.engine_errors import EngineError
from hookmq_cluster.nats_child import NatsChild, check_program, find_program, server_config
from hookmq_cluster.nats_connection import NatsOptions
from hookmq_cluster.nats_engine import NatsEngine
from nats_bench import LoggingRuntime

BROKER = """
import asyncio, sys
from pathlib import Path
from hookmq.server.asyncio_runtime import AsyncioRuntime
from hookmq_cluster.nats_child import NatsChild
async def main():
    child = NatsChild(Path(sys.argv[1]), AsyncioRuntime())
    await child.start()
    print(child.process, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


class Logged(list[tuple[str, str, dict[str, object]]]):
    """The log events of a runtime."""

    def __call__(self, level: str, event: str, /, **fields: object) -> None:
        self.append((level, event, fields))

    def events(self) -> list[str]:
        """Return the names of all events."""
        return [event for _, event, _ in self]


def run(test: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine."""
    asyncio.run(test)


async def until(condition: Any, seconds: float = 20.0) -> None:
    """Wait until `condition()` is true."""
    end = monotonic() + seconds
    while not condition():
        assert monotonic() < end, "the awaited event does not happen"
        await asyncio.sleep(0.01)


async def opened(options: NatsOptions, logged: Logged) -> NatsEngine:
    """Return an engine on the child."""
    engine = NatsEngine(options, "HOOKMQ_t", "hmq.t.>", LoggingRuntime(logged), replicas=1)
    await engine.open()
    return engine


async def committed(engine: NatsEngine, data: bytes, key: str = "") -> int:
    """Append an entry and return its sequence."""
    results: list[object] = []
    engine.commit([Entry("hmq.t.lane.a", data)], results.append, key)
    await until(lambda: results, 30.0)
    assert isinstance(results[0], Appended), results
    return results[0].last


async def closed(engine: NatsEngine) -> None:
    """Close an engine."""
    done: list[bool] = []
    engine.close(lambda: done.append(True))
    await until(lambda: done)


def gone(process: int, seconds: float = 10.0) -> bool:
    """Return whether a process ends in time. It may be a zombie of another parent."""
    end = monotonic() + seconds
    while monotonic() < end:
        try:
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        sleep(0.02)
    return False


def test_a_child_starts_stops_and_keeps_its_data(tmp_path: Path) -> None:
    async def test() -> None:
        passwords = []
        for number in range(2):
            logged = Logged()
            child = NatsChild(tmp_path / "nats", LoggingRuntime(logged))
            await child.start()
            process = child.process
            assert process
            passwords.append(child.options.password)
            file = tmp_path / "nats" / "nats.conf"
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
            engine = await opened(child.options, logged)
            assert await committed(engine, b"%d" % number) == number + 1
            await closed(engine)
            await child.stop()
            assert gone(process)
            assert child.process == 0
            assert "cluster.nats_started" in logged.events()
            assert "cluster.nats_log" in logged.events()
            assert passwords[-1] not in repr(list(logged))
            assert passwords[-1] not in repr(child.options)
        assert passwords[0] != passwords[1]

    run(test())


def test_only_loopback_and_only_with_the_password(tmp_path: Path) -> None:
    async def test() -> None:
        logged = Logged()
        child = NatsChild(tmp_path, LoggingRuntime(logged))
        await child.start()
        [server] = child.options.servers
        assert server.startswith("nats://127.0.0.1:")
        for options in (
            NatsOptions((server,)),
            NatsOptions((server,), user="hookmq", password="no"),
        ):
            engine = NatsEngine(options, "X", "x.>", LoggingRuntime(logged), replicas=1)
            with pytest.raises(EngineError, match="Authorization Violation"):
                await engine.open(5.0)
        await child.stop()

    run(test())


def test_a_server_that_was_killed_is_started_again_with_its_data(tmp_path: Path) -> None:
    async def test() -> None:
        logged = Logged()
        child = NatsChild(tmp_path, LoggingRuntime(logged))
        await child.start()
        engine = await opened(child.options, logged)
        await committed(engine, b"before")
        seen: list[Stored] = []
        engine.follow(["hmq.t.lane.*"], 0, seen.append)
        for number in range(3):
            before = child.process
            os.kill(before, signal.SIGKILL)
            assert await committed(engine, b"%d" % number, key=f"k/{number}") == number + 2
            await until(lambda before=before: child.process not in (0, before))
        await until(lambda: len(seen) == 4)
        assert [one.data for one in seen] == [b"before", b"0", b"1", b"2"]
        assert logged.events().count("cluster.nats_ended") == 3
        assert logged.events().count("cluster.nats_restarted") == 3
        await closed(engine)
        await child.stop()

    run(test())


def test_the_server_ends_with_a_broker_that_is_killed(tmp_path: Path) -> None:
    for _ in range(2):
        broker = subprocess.Popen(
            [sys.executable, "-c", BROKER, str(tmp_path / "nats")],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert broker.stdout is not None
        process = int(broker.stdout.readline())
        assert not gone(process, 0.1)
        broker.kill()
        broker.wait()
        broker.stdout.close()
        assert gone(process)

    async def test() -> None:
        child = NatsChild(tmp_path / "nats", LoggingRuntime(Logged()))
        await child.start()
        await child.stop()

    run(test())


def test_a_folder_has_one_owner(tmp_path: Path) -> None:
    async def test() -> None:
        child = NatsChild(tmp_path, LoggingRuntime(Logged()))
        await child.start()
        other = NatsChild(tmp_path, LoggingRuntime(Logged()))
        with pytest.raises(EngineError, match=f"{tmp_path} is in use by process {os.getpid()}"):
            await other.start()
        assert child.process
        await child.stop()
        await other.start()
        await other.stop()

    run(test())


def test_a_server_that_cannot_start(tmp_path: Path) -> None:
    async def test() -> None:
        (tmp_path / "jetstream").write_text("a file")
        child = NatsChild(tmp_path, LoggingRuntime(Logged()))
        with pytest.raises(EngineError, match=r"nats-server does not start: .*[Jj]et[Ss]tream"):
            await child.start()
        assert child.process == 0
        (tmp_path / "jetstream").unlink()
        await child.start()
        await child.stop()

    run(test())


def _script(folder: Path, name: str, output: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{output}'\n")
    path.chmod(0o700)
    return str(path)


def test_programs_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        old = _script(tmp_path, "old", "nats-server: v2.9.10")
        with pytest.raises(EngineError, match=r"old has the version 2\.9\.10; at least 2\.14 is"):
            await check_program(find_program(old))
        other = _script(tmp_path, "other", "something else")
        with pytest.raises(EngineError, match="other is not nats-server"):
            await check_program(find_program(other))
        child = NatsChild(tmp_path / "nats", LoggingRuntime(Logged()), str(tmp_path / "missing"))
        with pytest.raises(EngineError, match="missing is not a program"):
            await child.start()

    run(test())
    assert find_program() == Path(sys.executable).with_name("nats-server")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match="nats-server is not installed"):
        find_program()
    assert find_program(_script(tmp_path, "nats-server", "")) == tmp_path / "nats-server"
    assert find_program() == tmp_path / "nats-server"


def test_a_folder_whose_name_needs_quotes(tmp_path: Path) -> None:
    async def test() -> None:
        folder = tmp_path / 'a "b" $c é \\d'
        child = NatsChild(folder, LoggingRuntime(Logged()))
        await child.start()
        assert (folder / "jetstream").is_dir()
        await child.stop()

    run(test())
    with pytest.raises(EngineError, match="control character"):
        server_config("n", 1, "p", Path("/tmp/a\nb"))
