"""A well-behaved publisher and subscriber at QoS 1, for tests where other clients misbehave.

    python -m pressure.witness PORT RATE

It runs in its own process, so that the load generator does not add to the measured delay. It publishes RATE messages per
second until its input ends. Then it prints one line of JSON. The line contains the number of messages sent, acknowledged
and received, the largest backlog, whether the order was kept, and the delays in milliseconds. A delay is the time from
the moment when a message was due to be sent until it arrives. A message that was sent late therefore counts as late.
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from hookmq.mqtt.packets import Publish

from pressure.client import connect, subscribe

WAIT = 60.0
SUPPORT = Path(__file__).parents[1]


@dataclass
class Seen:
    """What the witness observed. Delays are in milliseconds."""

    sent: int = 0
    acknowledged: int = 0
    received: int = 0
    backlog: int = 0
    """The highest number of messages that were sent but not yet received."""
    ordered: bool = True
    p50: float = 0.0
    p99: float = 0.0
    longest: float = 0.0

    @property
    def well(self) -> bool:
        """Return whether all messages were acknowledged and delivered once, in order and in time.

        "In time" means that the number of messages in transit never exceeded 20 or three fifths of all messages,
        whichever is larger.
        """
        whole = self.sent == self.acknowledged == self.received
        return whole and self.ordered and self.backlog <= max(20, self.sent * 3 // 5)

    def __str__(self) -> str:
        return f"p50 {self.p50:.1f} p99 {self.p99:.1f} most {self.longest:.0f} ms of {self.sent}, {self.backlog} at once"


async def _publish(port: int, rate: float) -> Seen:
    loop = asyncio.get_running_loop()
    seen = Seen()
    due: list[float] = []
    delays: list[float] = []

    def came(message: Publish) -> None:
        number = int(message.payload)
        seen.ordered &= number == seen.received
        seen.received += 1
        delays.append(time.perf_counter() - due[number])

    name = f"witness-{os.getpid()}"
    receiver = await connect(port, f"{name}-r", came)
    await subscribe(receiver, name)
    sender = await connect(port, f"{name}-s")
    print("ready", flush=True)
    ended = asyncio.Event()
    loop.add_reader(0, ended.set)
    start = time.perf_counter()
    while not ended.is_set():
        when = start + seen.sent / rate
        left = when - time.perf_counter()
        if left > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), left)
                break
        due.append(when)
        sender.send_publish(name, b"%d" % seen.sent, 1)
        seen.sent += 1
        seen.backlog = max(seen.backlog, seen.sent - seen.received)
        await asyncio.sleep(0)
    loop.remove_reader(0)
    await receiver.until(lambda: seen.received >= seen.sent, WAIT)
    await sender.until(lambda: sender.acknowledged >= seen.sent, WAIT)
    seen.acknowledged = sender.acknowledged
    if delays:
        delays.sort()
        at = [delays[min(len(delays) - 1, int(len(delays) * part))] * 1e3 for part in (0.5, 0.99)]
        seen.p50, seen.p99, seen.longest = at[0], at[1], delays[-1] * 1e3
    sender.disconnect()
    receiver.disconnect()
    return seen


@contextlib.asynccontextmanager
async def witness(port: int, rate: float = 50.0) -> AsyncIterator[Seen]:
    """Run the witness while the block runs. The observations are filled in when the block ends."""
    seen = Seen()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "pressure.witness",
        str(port),
        str(rate),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SUPPORT)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert await asyncio.wait_for(process.stdout.readline(), WAIT) == b"ready\n"
        yield seen
        process.stdin.close()
        found = json.loads(await asyncio.wait_for(process.stdout.readline(), 3 * WAIT))
        for name, value in found.items():
            setattr(seen, name, value)
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


if __name__ == "__main__":
    print(json.dumps(vars(asyncio.run(_publish(int(sys.argv[1]), float(sys.argv[2]))))), flush=True)
