"""Test how the broker configures and runs the processes that write old messages to Parquet.

The processes here are short programs. `spark/tests/test_tier.py` runs the real one.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hookmq.plugin import ConfigError
from hookmq_spark_sink import config as configuration
from hookmq_spark_sink.config import SparkSinkConfig, StreamConfig, TierConfig
from hookmq_spark_sink.tier import TierProcess, processes

STAYS = """\
import sys
given = sys.stdin.readline()
open({file!r}, "a").write(given)
print("hookmq spark export: 2 files", file=sys.stderr, flush=True)
sys.stdin.read()
open({file!r}, "a").write("ended\\n")
"""
ENDS = """\
import sys
open({file!r}, "a").write(sys.stdin.readline())
print("hookmq spark export: no such bucket", file=sys.stderr, flush=True)
sys.exit(2)
"""


class Log:
    """Records a process's log events."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str, dict[str, Any]]] = []

    def __call__(self, level: str, event: str, **fields: Any) -> None:
        self.said.append((level, event, fields))

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not holds():
                await asyncio.get_running_loop().run_in_executor(None, lambda: None)


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], str]:
    """Return a function that creates a program and returns its path. The program ignores its arguments."""

    def make(text: str) -> str:
        path = tmp_path / "python"
        body = text.format(file=str(tmp_path / "told"))
        path.write_text(f"#!{sys.executable}\n{body}")
        path.chmod(0o700)
        return str(path)

    return make


async def test_a_process_gets_its_settings_and_ends_with_its_pipe(
    tmp_path: Path, program: Callable[[str], str]
) -> None:
    log = Log()
    tier = TierConfig("s3://lake/mqtt", 1 << 20, program(STAYS))
    streams = [StreamConfig(name, ("#",), tier=tier) for name in ("a", "b")]
    streams.append(StreamConfig("c", ("#",)))
    [process] = processes(tmp_path / "streams", streams, log)
    process.start()
    await log.until(lambda: bool(log.said))
    assert process.up
    await process.stop(60)
    given, ended = (tmp_path / "told").read_text().splitlines()
    assert json.loads(given) == {
        "folder": str(tmp_path / "streams"), "target": "s3://lake/mqtt", "streams": ["a", "b"], "file_size": 1 << 20,
    }  # fmt: skip
    assert ended == "ended"
    said = {"target": "s3://lake/mqtt", "text": "2 files"}
    assert log.said == [("info", "spark_sink.tier", said)]


async def test_a_process_that_ends_is_started_again_and_says_why(
    tmp_path: Path, program: Callable[[str], str]
) -> None:
    log = Log()
    tier = TierConfig("/lake", python=program(ENDS))
    process = TierProcess(tmp_path, tier, ["a"], log, wait=0.001)
    process.start()
    await log.until(lambda: process.restarts >= 2)
    await process.stop(60)
    assert not process.up
    reason = {"target": "/lake", "code": 2, "reason": "no such bucket"}
    assert ("warning", "spark_sink.tier_ended", reason) in log.said


async def test_a_program_that_vanishes_ends_no_broker(
    tmp_path: Path, program: Callable[[str], str]
) -> None:
    log = Log()
    tier = TierConfig("/lake", python=program(STAYS))
    os.unlink(tier.python)
    process = TierProcess(tmp_path, tier, ["a"], log, wait=0.001)
    process.start()
    await log.until(lambda: bool(log.said))
    await process.stop(60)
    level, event, fields = log.said[0]
    assert (level, event) == ("warning", "spark_sink.tier_ended")
    assert "No such file" in fields["reason"]


def test_retention_waits_for_the_tier() -> None:
    tier = TierConfig("/lake", python=sys.executable)
    assert StreamConfig("a", ("#",), consumers=("etl",), tier=tier).consumers == ("etl", "tier")


def test_wrong_settings_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"tier\.target: empty"):
        TierConfig("", python=sys.executable)
    with pytest.raises(ConfigError, match=r"tier\.python: no program /nowhere/python"):
        TierConfig("/lake", python="/nowhere/python")
    monkeypatch.setattr(configuration, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="the broker's Python has no pyarrow"):
        TierConfig("/lake")
    tier = TierConfig("/lake", python=sys.executable)
    with pytest.raises(ConfigError, match="need not be listed"):
        StreamConfig("a", ("#",), consumers=("tier",), tier=tier)
    other = TierConfig("/lake", 1 << 20, sys.executable)
    streams = (StreamConfig("a", ("#",), tier=tier), StreamConfig("b", ("#",), tier=other))
    with pytest.raises(ConfigError, match="tiers with the target /lake differ"):
        SparkSinkConfig(Path("streams"), streams)
