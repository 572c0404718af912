"""Test the process metrics."""

import os
import time
from contextlib import ExitStack
from pathlib import Path

from hookmq.hooks.metric_registry import MetricRegistry
from hookmq.server.process_metrics import _open_files, register_process


def read(name: str, registry: MetricRegistry) -> float:
    return registry.values()[name]


def test_the_kernel_counts_this_process() -> None:
    registry = MetricRegistry()
    register_process(registry)
    assert abs(read("process_cpu_seconds_total", registry) - time.process_time()) < 60
    # With the wrong unit, the process would seem to have started in the future or at boot.
    assert time.time() - 86400 < read("process_start_time_seconds", registry) <= time.time() + 60
    assert 1 << 20 < read("process_resident_memory_bytes", registry) < 1 << 40
    before = read("process_open_fds", registry)
    with ExitStack() as files:
        for _ in range(50):
            files.enter_context(open(os.devnull, "rb"))
        # Other tests of this process may close some files meanwhile.
        assert read("process_open_fds", registry) > before + 25
    assert read("process_max_fds", registry) >= before
    text = registry.text()
    assert "# TYPE process_cpu_seconds_total counter\n" in text
    assert "hookmq_process" not in text


def test_an_older_kernel_lists_the_open_files(tmp_path: Path) -> None:
    class OldFolder(type(tmp_path)):  # type: ignore[misc]
        def stat(self, **_: bool) -> os.stat_result:
            return os.stat_result((0o40500, *(0,) * 9))

    (tmp_path / "fd").mkdir()
    for name in "012":
        (tmp_path / "fd" / name).touch()
    assert _open_files(OldFolder(tmp_path)) == 3
