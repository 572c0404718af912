"""The arguments of the ``register_`` hooks, as plugins see them. The server implements them."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from hookmq.server.plugin_listeners import ListenerCheck, ListenerFactory

RouteHandler = Callable[..., Awaitable[Any]]
"""``await handler(request, **parts)``: takes an `aiohttp.web.BaseRequest`, returns an `aiohttp.web.StreamResponse`."""


class WorkerPlan(Protocol):
    """How several processes are one broker. The supervisor of the processes calls it; it is never used in a worker."""

    async def start(self) -> None:
        """Start the processes that the workers share, such as a server. Raises StoreError or ConfigError."""

    def settings(self, worker: str) -> Mapping[str, str]:
        """Return the settings of the plugin that differ in the process `worker`, such as ``w0``: the values by their
        dotted keys, both as in ``-o KEY=VALUE``. Called after `start`, each time that the process starts.
        """

    async def stop(self) -> None:
        """Stop what `start` has started, also after it has failed. All workers have ended."""


class WorkerRegistry(Protocol):
    """The `registry` of `register_workers`."""

    def set(self, count: int | Literal["auto"], plan: WorkerPlan) -> None:
        """Run the broker as `count` processes, or as one process for each CPU. Raises PluginError if `count` is less
        than 1, or if another plugin has called this.
        """


class ListenerRegistry(Protocol):
    """The `registry` of `register_listeners`."""

    def add(
        self, name: str, factory: "ListenerFactory", check: "ListenerCheck | None" = None
    ) -> None:
        """Add the listener type `name`.

        ``factory(settings, accept, runtime)`` creates a listener. ``check(settings)`` raises ConfigError for invalid
        settings. Raises PluginError if the name is taken or invalid.
        """


class HttpRouter(Protocol):
    """The `router` of `register_http`."""

    def add(
        self,
        method: str,
        path: str,
        handler: RouteHandler,
        *,
        authenticates: bool = False,
        streams: bool = False,
    ) -> None:
        """Serve requests for ``/plugins/ID`` + `path` with `handler`.

        `path` may contain ``{name}`` parts. `method` may be ``*``. Raises PluginError if the path is taken or invalid.

        With `authenticates`, the listener does not require its ``http.token``: the handler must authenticate each request
        itself. With `streams`, ``http.timeout`` ends when the handler is called, and the handler is cancelled if the
        client disconnects. The handler must then limit how long it waits for a client that does not read.
        """
