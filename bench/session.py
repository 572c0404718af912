"""Prepare a measuring session: cores, priority, and facts about the machine."""

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
    """Print progress to stderr, because stdout is reserved for the table."""
    print(text, file=sys.stderr, flush=True)


def pin(cores: tuple[int, int] | None) -> tuple[int, int] | None:
    """Pin this process, and with it the generator, to the second of two cores. The first is for the broker.

    Return the cores. If either is unavailable, report that and return None.
    """
    if cores is not None and not set(cores) <= os.sched_getaffinity(0):
        say(f"cores {cores} are not both available: not pinned")
        cores = None
    if cores is not None:
        os.sched_setaffinity(0, {cores[1]})
    return cores


@contextlib.contextmanager
def priority(nice: int | None) -> Iterator[None]:
    """Run the block, and the processes it starts, with the given niceness for both the process and its autogroup.

    With autogroups, which are Linux's default, niceness only counts within a session. /proc/self/autogroup sets the
    session's weight relative to the rest of the machine.
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
    """Return the properties of the machine that affect the figures."""
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
