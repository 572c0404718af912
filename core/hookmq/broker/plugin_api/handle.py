"""The handle that a plugin uses to call the broker. Each plugin has its own handle, which sets the origin of the
plugin's messages.
"""

from hookmq.broker.plugin_api.actions import Actions
from hookmq.broker.plugin_api.authorization import Authorization
from hookmq.broker.plugin_api.clients import Clients
from hookmq.broker.plugin_api.delivering import Delivering
from hookmq.broker.plugin_api.draining import Draining
from hookmq.broker.plugin_api.inspection import Inspection
from hookmq.broker.plugin_api.keeping import Keeping
from hookmq.broker.plugin_api.logs import Logs
from hookmq.broker.plugin_api.messages import Messages
from hookmq.broker.plugin_api.publishing import Publishing
from hookmq.broker.plugin_api.subscribing import Subscribing
from hookmq.broker.plugin_api.tracing import Tracing
from hookmq.model.runtime import Runtime


class PluginBroker(
    Publishing, Authorization, Inspection, Messages, Subscribing, Delivering, Actions, Clients, Keeping, Tracing, Logs,
    Draining,
):  # fmt: skip
    """One plugin's handle; see `hookmq.hooks.broker_handle.BrokerHandle`. Each group of members is in its own module."""

    __slots__ = ()

    @property
    def runtime(self) -> Runtime:
        """Return the broker's runtime. Raises PluginError outside the event loop's thread."""
        self._only_on_loop("runtime")
        return self._state.runtime

    def now(self) -> float:
        """Return the monotonic time in seconds."""
        return self._state.runtime.now()

    def time(self) -> float:
        """Return the current time in epoch seconds."""
        return self._state.runtime.time()
