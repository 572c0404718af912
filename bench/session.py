"""One session of measuring: where processes run, at which priority, on what machine."""

from __future__ import annotations

import contextlib
import os
import pathlib
import platform
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


def say(text: str) -> None:
    """Progress, on stderr: stdout has the table only."""
    print(text, file=sys.stderr, flush=True)


def pin(cores: tuple[int, int] | None) -> tuple[int, int] | None:
    """Put this process, and so the generator, on the second of two cores; the first is the broker's.

    Returns None, and says so, where both are not available.
    """
    if cores is not None and not set(cores) <= os.sched_getaffinity(0):
        say(f"cores {cores} are not both available: not pinned")
        cores = None
    if cores is not None:
        os.sched_setaffinity(0, {cores[1]})
    return cores


@contextlib.contextmanager
def priority(nice: int | None) -> Iterator[None]:
    """Run the block, and what it starts, at that niceness: of the process and of its autogroup.

    With autogroups, Linux's default, niceness weighs within a session only; the session's own
    weight, which counts against everything else on the machine, is in /proc/self/autogroup.
    """
    if nice is None:
        yield
        return
    group = pathlib.Path("/proc/self/autogroup")
    before = group.read_text().split()[-1] if group.exists() else None
    os.setpriority(os.PRIO_PROCESS, 0, nice)
    if before is not None:
        group.write_text(str(nice))
    try:
        yield
    finally:
        if before is not None:
            group.write_text(before)


def machine() -> dict[str, Any]:
    """What the figures depend on, as far as the system tells."""
    model = "unknown"
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
    }
