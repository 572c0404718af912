"""What plugins add to a node: types of listeners, routes of HTTP, metrics."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

from hookmq.hooks.manager import Hooks
from hookmq.metric_registry import MetricRegistry
from hookmq.plugin import Log, no_log
from hookmq.server.exporter import register_core
from hookmq.server.http import Router
from hookmq.server.plugged import ListenerTypes
from hookmq.server.watchdog import owner_among

if TYPE_CHECKING:
    from hookmq.broker import Broker


class Extensions:
    """What the plugins of `hooks` add, and the core's own metrics: those of `broker` and of `listeners`, which tells how
    many are connected to each. Without a broker it is there to be checked, and its metrics are not to be read.

    Made when a configuration is validated, when the broker starts and at each reload, so the ``register_`` hooks are
    called each time. Raises PluginError when a plugin adds what cannot be.
    """

    def __init__(
        self,
        hooks: Hooks,
        broker: "Broker | None" = None,
        listeners: Callable[[], Mapping[str, int]] = dict,
        log: Log = no_log,
    ) -> None:
        def unreadable(family: str, plugin: str, error: Exception) -> None:
            fields = {"family": family, "plugin": plugin, "error": repr(error)}
            log("warning", "metrics.unreadable", **fields, traceback=error)

        self.owner = owner_among(hooks.plugins)
        self.types = ListenerTypes()
        self.router = Router()
        self.metrics = MetricRegistry(unreadable)
        register_core(self.metrics, cast("Broker", broker), listeners)
        hooks.register("register_listeners", self.types.of)
        hooks.register("register_http", self.router.of)
        hooks.register("register_metrics", self.metrics.of)
