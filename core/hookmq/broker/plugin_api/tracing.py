"""The call that plugins use to trace clients and messages."""

from hookmq.broker.plugin_api.base import HandleBase
from hookmq.hooks.traces import Trace, TraceRequest
from hookmq.model.errors import PluginError


class Tracing(HandleBase):
    """The method of a plugin's handle that starts a trace."""

    __slots__ = ()

    def trace(self, request: TraceRequest) -> Trace:
        """Start a trace. Raises PluginError."""
        self._only_on_loop("trace()")
        self._check_types("trace", ("request", request, TraceRequest))
        if self._instance.kept.left:
            raise PluginError(self._plugin, "cannot trace: the plugin has ended")
        return self._state.start_trace(self._instance, request)
