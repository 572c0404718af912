"""HTTP routes on a running broker that list and resend dead letters."""

import asyncio
import json
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final, Protocol

from aiohttp import web
from hookmq.plugin import HttpRouter
from hookmq_toolkit.sinks import SinkError

from hookmq_webhook.control import Control
from hookmq_webhook.deadletter import Dead, DeadLetters

SHOWN: Final = 1000
"""Maximum number of dead letters in one response."""


class Instance(Protocol):
    """The parts of the plugin that the routes use."""

    dead: DeadLetters | None
    control: Control


def shown(one: Dead) -> Mapping[str, Any]:
    """Return a dead letter as a JSON object, without the payload."""
    return {
        "id": one.id,
        "type": one.event.type,
        "client_id": one.event.client,
        "topic": one.event.topic,
        "reason": one.reason,
        "attempts": one.attempts,
        "event_time": one.event.time,
        "time": one.time,
    }


def register(router: HttpRouter, plugin: Instance) -> None:
    """Add the routes to `router`."""

    async def listed(request: web.BaseRequest) -> web.StreamResponse:
        dead = _dead(plugin)
        found = await asyncio.to_thread(lambda: [shown(one) for one in islice(dead.read(), SHOWN)])
        return web.json_response({"waiting": dead.waiting, "dead_letters": found})

    async def replayed(request: web.BaseRequest) -> web.StreamResponse:
        _dead(plugin)
        wanted = await _ids(request)
        try:
            done = await plugin.control.replay(lambda one: not wanted or one.id in wanted)
        except SinkError as error:
            if error.reason == "failed":
                raise web.HTTPServiceUnavailable(text=f"{error}\n") from None
            raise web.HTTPConflict(text=f"{error}\n") from None
        return web.json_response(
            {"arrived": done.arrived, "failed": done.failed, "reason": done.reason}
        )

    router.add("GET", "/deadletter", listed)
    router.add("POST", "/deadletter/replay", replayed)


async def _ids(request: web.BaseRequest) -> frozenset[str]:
    text = await request.text()
    if not text.strip():
        return frozenset()
    try:
        found = json.loads(text)["ids"]
        return frozenset(map(str, found))
    except (ValueError, KeyError, TypeError):
        raise web.HTTPBadRequest(text='expected {"ids": [...]}, or no body for all\n') from None


def _dead(plugin: Instance) -> DeadLetters:
    if plugin.dead is None:
        raise web.HTTPNotFound(text="this instance has no file of dead letters\n")
    return plugin.dead
