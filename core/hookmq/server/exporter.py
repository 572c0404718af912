"""The metrics that the exporter shows: those of the core, and the build."""

import platform

from importlib_metadata import version

from hookmq import BUILD
from hookmq.broker import Broker
from hookmq.broker.core_metrics import register_core
from hookmq.hooks.metric_registry import MetricRegistry
from hookmq.plugin import HOOK_API


def register_exported(registry: MetricRegistry, broker: Broker) -> None:
    """Register the core's metrics and ``hookmq_build_info``. Each export reads them from `broker`."""
    register_core(registry, broker)
    build = {
        "build": BUILD.kind,
        "version": version("hookmq"),
        "python": platform.python_version(),
        "plugins_api": HOOK_API,
    }
    registry.gauge("build_info", "The running build; always 1.", lambda: [(build, 1)])
