"""Public: the parts of HookMQ's server for plugins that add a listener or an HTTP route, or run a server of their own.

Everything in ``__all__`` stays compatible within a major version of `HOOK_API`, like `hookmq.plugin`.
"""

from hookmq.hooks.registries import RouteHandler
from hookmq.model.runtime import Wire
from hookmq.server.addresses import Address, Network, is_loopback, parse_address, parse_networks
from hookmq.server.files import check_regular, open_regular, shown_path
from hookmq.server.loop import loop_factory
from hookmq.server.plugin_listeners import (
    EnterConnection,
    ListenerCheck,
    ListenerFactory,
    OpenedListener,
)
from hookmq.server.protocols import ConnectionHandler
from hookmq.server.settings import HttpSettings, ListenerSettings, TlsSettings, WebSocketSettings
from hookmq.server.tls import server_context

__all__ = [
    "Address", "ConnectionHandler", "EnterConnection", "HttpSettings", "ListenerCheck", "ListenerFactory",
    "ListenerSettings", "Network", "OpenedListener", "RouteHandler", "TlsSettings", "WebSocketSettings", "Wire",
    "check_regular", "is_loopback", "loop_factory", "open_regular", "parse_address", "parse_networks", "server_context",
    "shown_path",
]  # fmt: skip
