"""A real ``hookmq serve`` observed from outside: its memory, descriptors, objects and metrics."""

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
"""Labels as they appear in the metrics, such as `{reason="x",direction="y"}`, or an empty string."""
_LINE = re.compile(r"hookmq_(\w+)(\{.*\})? (\S+)")
STATE = "connections", "sessions", "subscriptions", "retained_messages", "queue_bytes"
"""Gauges that return to their initial values when all clients are gone."""


@dataclass
class Target:
    """The running broker."""

    served: Served
    port: int
    http: int
    highest: int = 0
    """The highest memory usage seen, in bytes."""

    def resident(self) -> int:
        """Return the resident memory of the broker's main process, in bytes."""
        pages = Path(f"/proc/{self.served.process.pid}/statm").read_text().split()[1]
        now = int(pages) * os.sysconf("SC_PAGESIZE")
        self.highest = max(self.highest, now)
        return now

    def cpu(self) -> float:
        """Return the CPU time of the broker's main process in seconds."""
        words = Path(f"/proc/{self.served.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def descriptors(self) -> int:
        """Return the number of open file descriptors."""
        return len(os.listdir(f"/proc/{self.served.process.pid}/fd"))

    def children(self) -> list[int]:
        """Return the pids of the broker's child processes."""
        pid = self.served.process.pid
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def metrics(self) -> dict[tuple[str, Labels], float]:
        """Return the exported metrics, keyed by name (without ``hookmq_``) and labels. This call blocks."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/metrics", timeout=WAIT) as page:
            text = page.read().decode()
        found = (_LINE.fullmatch(line) for line in text.splitlines())
        return {(m[1], m[2] or ""): float(m[3]) for m in found if m}

    def state(self) -> dict[str, float]:
        """Return the gauges of `STATE` and the number of open descriptors. This call blocks."""
        seen = self.metrics()
        return {**{name: seen[name, ""] for name in STATE}, "descriptors": self.descriptors()}

    def dropped(self) -> dict[Labels, float]:
        """Return the number of dropped messages by reason and direction. This call blocks."""
        return {
            labels: value
            for (name, labels), value in self.metrics().items()
            if name == "messages_dropped_total"
        }

    def objects(self) -> int:
        """Return the number of objects that the garbage collector tracks, minus those that existed at startup. This
        call blocks.
        """
        self.served.signal(signal.SIGUSR1)
        return int(self.served.wait_for("node.state")["objects"])

    async def becomes(self, wanted: Callable[[], bool], seconds: float = WAIT) -> bool:
        """Wait until `wanted()`, which may block, is true. Return False after `seconds`."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not await asyncio.to_thread(wanted):
            if loop.time() > end:
                return False
            await asyncio.sleep(0.05)
        return True


@contextmanager
def target(folder: Path, config: str) -> Iterator[Target]:
    """Run a broker with this configuration, whose listeners must be called ``tcp`` and ``http``.

    When the block ends, the broker must stop without errors; see `serving`.
    """
    file = folder / "hookmq.yaml"
    file.write_text(config)
    with serving("-c", str(file)) as served:
        yield Target(served, served.ports["tcp"], served.ports["http"])
