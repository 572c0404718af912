"""Write a stream with a given number of messages without a broker, and run a reader process that serves it."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import random
import subprocess
import sys
from collections.abc import Iterator

from hookmq.plugin import Message
from hookmq.storage_api import CommitId
from hookmq_spark_sink.config import StreamConfig
from hookmq_spark_sink.merge import merge
from hookmq_spark_sink.stream import Stream
from hookmq_testing.runtime import VirtualRuntime

TOKEN = "bench-token-0123456789"
DEVICES = 1000
AT_ONCE = 1000
"""The number of messages per commit."""
BOOT = bytes(16)


def fill(folder: pathlib.Path, count: int, partitions: int = 4) -> int:
    """Write `count` messages from 1,000 devices, with JSON payloads of about 85 bytes. Return the bytes on disk."""
    folder.mkdir(exist_ok=True)
    runtime, draw = VirtualRuntime(), random.Random(1)
    stream = Stream(StreamConfig("all", ("#",), partitions), folder, runtime, sync=False, boot=BOOT)
    stream.upkeep.merge = merge
    stream.recover(CommitId("bench", 0))
    topics = [f"plant/line{n % 8}/device-{n:04}/telemetry" for n in range(DEVICES)]
    for number, first in enumerate(range(0, count, AT_ONCE), 1):
        commit = CommitId("bench", number)
        for at in range(first, min(first + AT_ONCE, count)):
            device = draw.randrange(DEVICES)
            payload = (
                f'{{"seq": {at}, "temperature": {draw.uniform(15, 30):.2f}, "humidity": '
                f'{draw.uniform(20, 80):.1f}, "state": "running", "ok": true}}'
            )
            stream.append(
                commit,
                Message(
                    topics[device], payload.encode(), 1, sender=f"device-{device:04}",
                    received_at=runtime.time() + at / 1e5,
                ),
            )  # fmt: skip
        stream.flush(commit, lambda _: None)
        runtime.run_until_idle()
        stream.committed(commit)
        runtime.run_until_idle()
    stream.close()
    return sum(path.stat().st_size for path in folder.rglob("*.segment"))


@contextlib.contextmanager
def serving(folder: pathlib.Path, partitions: int = 4) -> Iterator[tuple[int, int]]:
    """Run the reader process for the stream that `fill` wrote. Yield its port and its process id."""
    access = {"token": TOKEN, "common_name": None, "streams": ["*"], "commit": True}
    stream = {
        "name": "all", "folder": str(folder / "all"), "partitions": partitions, "filters": ["#"], "consumers": [],
    }  # fmt: skip
    given = {
        "boot": BOOT.hex(), "host": "127.0.0.1", "port": 0, "tls": None, "access": [access], "streams": [stream],
        "max_response": 64 << 20, "max_requests": 32, "timeout": 60.0,
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "hookmq_spark_sink.reader"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ},
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps(given).encode() + b"\n")
        process.stdin.flush()
        yield json.loads(process.stdout.readline())["port"], process.pid
    finally:
        process.kill()
        process.wait()
