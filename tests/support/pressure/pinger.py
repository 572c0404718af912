"""A client that only sends PINGREQ and runs in its own process.

python -m pressure.pinger PORT PID

It sends pings until its input ends. Then it prints one line of JSON: for each ping, the CPU seconds that the broker's
event loop (process PID) used before it answered. Other work on the machine does not count.
"""

import asyncio
import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import mqttbytes as m
from byteclient import over_tcp

SUPPORT = Path(__file__).parents[1]
PAUSE = 0.005


def _ping(port: int, process: int) -> list[float]:
    path = Path(f"/proc/{process}/schedstat")
    seen: list[float] = []
    with over_tcp(port, 4) as client:
        client.join("pinger")
        print("ready", flush=True)
        while not select.select([sys.stdin], [], [], PAUSE)[0]:
            before = int(path.read_text().split()[0])
            client.tell(m.PINGREQ, m.PINGRESP)
            seen.append((int(path.read_text().split()[0]) - before) / 1e9)
        client.send(m.disconnect())
        time.sleep(PAUSE)
    return seen


@contextlib.asynccontextmanager
async def pinger(port: int, process: int) -> AsyncIterator[list[float]]:
    """Ping while the block runs. The list of stalls is filled in when the block ends."""
    stalls: list[float] = []
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pressure.pinger", str(port), str(process),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=1 << 26,
        env={**os.environ, "PYTHONPATH": str(SUPPORT)},
    )  # fmt: skip
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        assert await child.stdout.readline() == b"ready\n"
        yield stalls
        child.stdin.close()
        stalls += json.loads(await child.stdout.readline())
        await child.wait()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


if __name__ == "__main__":
    print(json.dumps(_ping(int(sys.argv[1]), int(sys.argv[2]))), flush=True)
