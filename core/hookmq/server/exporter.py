"""The metrics that the exporter shows: those of the core, the build, and the process."""

import platform

from importlib_metadata import version

from hookmq import BUILD
from hookmq.broker import Broker
from hookmq.broker.core_metrics import register_core
from hookmq.hooks.metric_registry import MetricRegistry
from hookmq.plugin import HOOK_API
from hookmq.server.process_metrics import register_process


def register_exported(registry: MetricRegistry, broker: Broker) -> None:
    """Register the core's metrics, ``hookmq_build_info`` and the process metrics. Each export reads them from
    `broker` or the kernel.
    """
    register_core(registry, broker)
    register_process(registry)
    build = {
        "build": BUILD.kind,
        "version": version("hookmq"),
        "python": platform.python_version(),
        "plugins_api": HOOK_API,
    }
    registry.gauge("build_info", "The running build; always 1.", lambda: [(build, 1)])
