"""Plugins' additions to the server: listener types, HTTP routes and metrics."""

from typing import TYPE_CHECKING, cast

from hookmq.hooks.manager import Hooks
from hookmq.hooks.metric_registry import MetricRegistry
from hookmq.plugin import Log, no_log
from hookmq.server.exporter import register_exported
from hookmq.server.http import HttpRoutes
from hookmq.server.plugin_listeners import ListenerTypes
from hookmq.server.watchdog import owner_among
from hookmq.server.workers import WorkerPlans

if TYPE_CHECKING:
    from hookmq.broker import Broker


class PluginExtensions:
    """The additions that the plugins in `hooks` make to the server, and the core's metrics.

    The metrics come from `broker`. Without a broker, the additions are only checked. The ``register_`` hooks run
    whenever a configuration is validated, started or reloaded. Raises PluginError for an invalid addition.
    """

    def __init__(
        self,
        hooks: Hooks,
        broker: "Broker | None" = None,
        log: Log = no_log,
    ) -> None:
        def unreadable(family: str, plugin: str, error: Exception) -> None:
            fields = {"family": family, "plugin": plugin, "error": repr(error)}
            log("warning", "metrics.unreadable", **fields, traceback=error)

        self.owner = owner_among(hooks.plugins)
        self.types = ListenerTypes()
        self.workers = WorkerPlans()
        self.router = HttpRoutes()
        self.metrics = MetricRegistry(unreadable)
        register_exported(self.metrics, cast("Broker", broker))
        hooks.register("register_workers", self.workers.of)
        hooks.register("register_listeners", self.types.of)
        hooks.register("register_http", self.router.of)
        hooks.register("register_metrics", self.metrics.of)
