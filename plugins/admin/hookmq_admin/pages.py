"""The console: static files of a web page, which uses the API with the token that a person enters."""

from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Final

from aiohttp import web
from hookmq.plugin import HttpRouter
from hookmq.server_api import RouteHandler

FILES: Final = {
    "/": ("index.html", "text/html"),
    "/console/app.js": ("app.js", "text/javascript"),
    "/console/style.css": ("style.css", "text/css"),
}
"""The name and type of each file, by path."""
HEADERS: Final = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def register(router: HttpRouter) -> None:
    """Add the page. Its files need no token, because they are the same for every broker."""
    for path, (name, kind) in FILES.items():
        router.add("GET", path, _served(name, kind), authenticates=True)


def _served(name: str, kind: str) -> RouteHandler:
    async def serve(request: web.BaseRequest) -> web.Response:
        data, tag = _content(name)
        headers = {**HEADERS, "ETag": tag, "Content-Type": f"{kind}; charset=utf-8"}
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=data, headers=headers)

    return serve


@cache
def _content(name: str) -> tuple[bytes, str]:
    """Return a file and its entity tag."""
    data = files("hookmq_admin").joinpath("console", name).read_bytes()
    return data, f'"{sha256(data).hexdigest()[:16]}"'
