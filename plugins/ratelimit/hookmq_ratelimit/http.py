"""Bans over HTTP: ``GET /plugins/ID/bans``, ``DELETE /plugins/ID/bans/NUMBER``. The listener controls access."""

from typing import Final, Protocol

from aiohttp import web
from hookmq.plugin import HttpRouter, Runtime

from hookmq_ratelimit.bans import Banned, Bans

MOST: Final = 1000
"""Maximum number of bans in one response."""


class Banning(Protocol):
    """The parts of the plugin that the routes use."""

    runtime: Runtime
    bans: Bans

    def unban(self, id: int) -> Banned | None: ...


def register(router: HttpRouter, plugin: Banning) -> None:
    """Add the routes to an `HttpRouter`."""

    async def bans(request: web.BaseRequest) -> web.Response:
        now = plugin.runtime.now()
        found = sorted(plugin.bans.all(now), key=lambda ban: ban.id, reverse=True)
        rows = [
            {
                "id": ban.id,
                "kind": ban.key[0],
                "name": ban.key[1],
                "user": ban.key[2] or None,
                "why": ban.why,
                "seconds_left": round(ban.until - now, 3),
            }
            for ban in found[:MOST]
        ]
        return web.json_response({"bans": rows, "total": len(found)})

    async def unban(request: web.BaseRequest, id: str) -> web.Response:
        if not id.isascii() or not id.isdigit() or plugin.unban(int(id[:18])) is None:
            raise web.HTTPNotFound(text="unknown ban\n")
        return web.Response(status=204)

    router.add("GET", "/bans", bans)
    router.add("DELETE", "/bans/{id}", unban)
