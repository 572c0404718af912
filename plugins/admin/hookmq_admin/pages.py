"""Serve the console: a web page of static files that uses the API with a token that the user enters."""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final, Protocol

from aiohttp import web
from hookmq.plugin import HttpRouter, ListenerSnapshot
from hookmq.server_api import RouteHandler

from hookmq_admin.services import Services

KINDS: Final = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
FOLDER: Final = "console"
INDEX: Final = f"{FOLDER}/index.html"
HEADERS: Final = {
    "Cache-Control": "no-cache",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src {connect}; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_HOST: Final = re.compile(r"([A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:\d{1,5})?")


class Serving(Protocol):
    """The parts of the plugin that the page uses."""

    @property
    def services(self) -> Services: ...


def found(folder: Traversable, path: str) -> Iterator[str]:
    """Return the paths of all the console's files, relative to the package."""
    for one in sorted(folder.iterdir(), key=lambda entry: entry.name):
        name = f"{path}/{one.name}"
        if one.is_dir():
            yield from found(one, name)
        elif one.name.rpartition(".")[2] in KINDS:
            yield name


FILES: Final = {
    "/" if name == INDEX else f"/{name}": name
    for name in found(files("hookmq_admin").joinpath(FOLDER), FOLDER)
}
"""The file for each path of the page."""


def register(router: HttpRouter, plugin: Serving) -> None:
    """Add the page. Its files need no token, because they disclose only the ports of WebSocket listeners."""
    for path, name in FILES.items():
        router.add("GET", path, _served(plugin, name), authenticates=True)


def _served(plugin: Serving, name: str) -> RouteHandler:
    kind = KINDS[name.rpartition(".")[2]]

    async def serve(request: web.BaseRequest) -> web.Response:
        data, tag = _content(name)
        headers = {**HEADERS, "ETag": tag, "Content-Type": f"{kind}; charset=utf-8"}
        services, host = plugin.services, request.headers.get("Host", "")
        connect = connectable(host, services.broker.listeners(), services.config.console_sockets)
        headers["Content-Security-Policy"] = POLICY.format(connect=connect)
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=data, headers=headers)

    return serve


def connectable(
    host: str, listeners: Iterable[ListenerSnapshot], further: Iterable[str] = ()
) -> str:
    """Return the addresses that the page may connect to: the API, the WebSocket listeners on the page's `host`, and the
    `further` addresses.
    """
    allowed = ["'self'", *further]
    found = _HOST.fullmatch(host)
    if found is not None:
        for one in listeners:
            port = one.address.rpartition(":")[2]
            if one.type in ("ws", "wss") and port.isdigit():
                allowed.append(f"{one.type}://{found[1]}:{port}")
    return " ".join(allowed)


@cache
def _content(name: str) -> tuple[bytes, str]:
    """Return a file and its entity tag."""
    data = files("hookmq_admin").joinpath(name).read_bytes()
    return data, f'"{sha256(data).hexdigest()[:16]}"'
