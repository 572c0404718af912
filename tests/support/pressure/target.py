"""A real ``hookmq serve`` and what can be seen of it from outside: memory, descriptors, objects, metrics."""

import asyncio
import os
import re
import signal
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from serving import WAIT, Served, serving

Labels = str
"""As they stand in the metrics, `{reason="x",direction="y"}` or nothing."""
_LINE = re.compile(r"hookmq_(\w+)(\{.*\})? (\S+)")
STATE = "connections", "sessions", "subscriptions", "retained_messages", "queue_bytes"
"""Gauges that come back to where they were when everybody is gone."""


@dataclass
class Target:
    """The running broker."""

    served: Served
    port: int
    http: int
    highest: int = 0
    """The most memory that was seen, in bytes."""

    def resident(self) -> int:
        """Bytes in memory, of the broker's own process."""
        pages = Path(f"/proc/{self.served.process.pid}/statm").read_text().split()[1]
        now = int(pages) * os.sysconf("SC_PAGESIZE")
        self.highest = max(self.highest, now)
        return now

    def cpu(self) -> float:
        """Seconds of CPU that the broker's own process has used."""
        words = Path(f"/proc/{self.served.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def descriptors(self) -> int:
        """Open file descriptors."""
        return len(os.listdir(f"/proc/{self.served.process.pid}/fd"))

    def children(self) -> list[int]:
        """Processes that the broker started."""
        pid = self.served.process.pid
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def metrics(self) -> dict[tuple[str, Labels], float]:
        """What it exports, each by its name without ``hookmq_`` and its labels. Blocks."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/metrics", timeout=WAIT) as page:
            text = page.read().decode()
        found = (_LINE.fullmatch(line) for line in text.splitlines())
        return {(m[1], m[2] or ""): float(m[3]) for m in found if m}

    def state(self) -> dict[str, float]:
        """The gauges of `STATE`, and open descriptors. Blocks."""
        seen = self.metrics()
        return {**{name: seen[name, ""] for name in STATE}, "descriptors": self.descriptors()}

    def dropped(self) -> dict[Labels, float]:
        """Messages dropped, by reason and direction. Blocks."""
        return {
            labels: value
            for (name, labels), value in self.metrics().items()
            if name == "messages_dropped_total"
        }

    def objects(self) -> int:
        """Objects that its garbage collector knows, less those from before it was ready. Blocks."""
        self.served.signal(signal.SIGUSR1)
        return int(self.served.wait_for("node.state")["objects"])

    async def becomes(self, wanted: Callable[[], bool], seconds: float = WAIT) -> bool:
        """Whether `wanted`, which may block, comes true within `seconds`."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not await asyncio.to_thread(wanted):
            if loop.time() > end:
                return False
            await asyncio.sleep(0.05)
        return True


@contextmanager
def target(folder: Path, config: str) -> Iterator[Target]:
    """A broker with this configuration, whose listeners are called ``tcp`` and ``http``. When the block ends it must stop
    well; see `serving`."""
    file = folder / "hookmq.yaml"
    file.write_text(config)
    with serving("-c", str(file)) as served:
        yield Target(served, served.ports["tcp"], served.ports["http"])
