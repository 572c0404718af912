"""The arguments of the ``register_`` hooks as plugin authors see them; the server and the command line implement them."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import argparse

    from hookmq.server.plugged import Check, Factory

RouteHandler = Callable[..., Awaitable[Any]]
"""``await handler(request, **parts)``: an `aiohttp.web.BaseRequest` in, an `aiohttp.web.StreamResponse` out."""


class ListenerRegistry(Protocol):
    """The `registry` of `register_listeners`."""

    def add(self, name: str, factory: "Factory", check: "Check | None" = None) -> None:
        """Make listeners of ``type: name`` with ``factory(settings, accept, runtime)``. ``check(settings)`` raises
        ConfigError for settings that cannot be used. Raises PluginError for a name that is taken or invalid."""


class HttpRouter(Protocol):
    """The `router` of `register_http`."""

    def add(self, method: str, path: str, handler: RouteHandler) -> None:
        """Answer ``/plugins/ID`` + `path` with `handler`. `path` may hold ``{name}`` parts, and `method` may be ``*``.
        Raises PluginError for a path that is taken or invalid."""


class CommandGroup(Protocol):
    """The `group` of `register_cli`."""

    def add_parser(self, name: str, *, help: str, **options: Any) -> "argparse.ArgumentParser":
        """Return the parser of the new command ``hookmq name``. Set its function with ``set_defaults(run=...)``. Raises
        PluginError for a name that is taken or invalid."""
