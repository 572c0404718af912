"""Process metrics from the kernel, under the names that Prometheus's own clients use."""

import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from hookmq.hooks.metric_registry import MetricRegistry

PROC: Final = Path("/proc")
_START_TIME: Final = 19
"""The index of the start time in ``stat``, after the process name."""


def register_process(registry: MetricRegistry, proc: Path = PROC) -> None:
    """Register ``process_cpu_seconds_total``, ``process_resident_memory_bytes``, ``process_open_fds``,
    ``process_max_fds`` and ``process_start_time_seconds``.

    `proc` is the kernel's folder of process files. An export reads three files, however many sockets are open.
    """
    own = proc / "self"
    started = _start_time(proc)
    standard = registry.standard()
    # fmt: off
    standard.counter("process_cpu_seconds_total", "CPU time of the process, user and system.", time.process_time)
    standard.gauge("process_resident_memory_bytes", "Resident memory of the process.", lambda: _resident(own))
    standard.gauge("process_open_fds", "Open file descriptors.", lambda: _open_files(own))
    standard.gauge("process_max_fds", "Limit on open file descriptors.", _max_files)
    standard.gauge("process_start_time_seconds", "Start of the process, in epoch seconds.", _constant(started))
    # fmt: on


def _constant(value: float) -> Callable[[], float]:
    return lambda: value


def _start_time(proc: Path) -> float:
    """Return when this process started, in epoch seconds."""
    fields = (proc / "self" / "stat").read_text().rpartition(")")[2].split()
    ticks = float(fields[_START_TIME])
    [booted] = [
        line.split()[1]
        for line in (proc / "stat").read_text().splitlines()
        if line.startswith("btime ")
    ]
    return float(booted) + ticks / os.sysconf("SC_CLK_TCK")


def _resident(own: Path) -> int:
    pages = (own / "statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _open_files(own: Path) -> int:
    """Return the number of open files. Since Linux 6.2, this is the folder's size. On older kernels, the folder must be
    listed, which is slow with many connections.
    """
    folder = own / "fd"
    return folder.stat().st_size or len(os.listdir(folder))


def _max_files() -> float:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return float("inf") if limit == resource.RLIM_INFINITY else limit
