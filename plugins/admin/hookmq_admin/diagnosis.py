"""Routes for troubleshooting: slow clients, hot topics and dropped messages."""

import asyncio
from heapq import nlargest
from typing import Any, Final

from hookmq.plugin import PluginError, SessionSnapshot

from hookmq_admin.errors import ApiError
from hookmq_admin.fields import CURSOR, FILTER, Field, Fields
from hookmq_admin.history import dropped
from hookmq_admin.schemas import FLAG, ref
from hookmq_admin.schemas import record as schema
from hookmq_admin.services import Call, Route
from hookmq_admin.tokens import Role
from hookmq_admin.top_counts import Counted

SLICE: Final = 250
"""Number of sessions to examine before yielding to the event loop. This takes about a millisecond."""
EXAMINED: Final = 10_000
"""Maximum number of sessions that one request examines."""
FIGURES: Final = ("queued", "queued_bytes", "inflight")
"""The figures that can show that a client is slow."""
SLOW: Final[Fields] = {
    "by": Field("string", "the figure to sort by", default="queued", choices=FIGURES),
    "limit": Field("integer", "maximum number of clients", default=20, minimum=1, maximum=100),
    "cursor": CURSOR,
}
MEASURED: Final[Fields] = {
    "filter": FILTER,
    "seconds": Field("number", "how long to count", default=10, minimum=1, maximum=600),
    "levels": Field(
        "integer", "count by this many levels of topics; 0 for whole topics", default=0, minimum=0, maximum=100
    ),
}  # fmt: skip
RECORDED: Final[Fields] = {
    "seconds": Field("number", "how long to record", default=60, minimum=1, maximum=3600)
}
TOP: Final[Fields] = {
    "limit": Field("integer", "maximum number of items of each list", default=20, minimum=1, maximum=100)
}  # fmt: skip


async def slow(call: Call) -> Any:
    """Examine one part of the sessions, and return its slowest clients."""
    given = call.arguments
    by, limit = given["by"], given["limit"]
    cursor, examined = given["cursor"], 0
    found: list[SessionSnapshot] = []
    while True:
        page = call.broker.sessions(cursor, SLICE)
        found += [one for one in page.items if getattr(one, by)]
        found = nlargest(limit, found, key=lambda one: getattr(one, by))
        examined += len(page.items)
        cursor = page.cursor
        if not cursor or examined >= EXAMINED:
            break
        await asyncio.sleep(0)
    items = [await _slow_client(call, one) for one in found]
    return {"items": items, "cursor": cursor, "examined": examined}


async def _slow_client(call: Call, found: SessionSnapshot) -> Any:
    return {
        "client_id": found.client_id,
        "connected": found.connected,
        "listener": found.listener,
        "address": found.peer.host,
        "queued": found.queued,
        "queued_bytes": found.queued_bytes,
        "inflight": found.inflight,
        "receive_maximum": found.receive_maximum,
        "oldest": await _oldest(call, found),
    }


async def _oldest(call: Call, found: SessionSnapshot) -> float | None:
    """Return the age of the client's oldest queued or unacknowledged message. Return None if there is no such
    message.
    """
    received: list[float] = []
    try:
        if found.queued:
            queue = await call.broker.queue(found.client_id, limit=1)
            received += [one.message.received_at for one in queue.items]
        if found.inflight:
            flying = call.broker.inflight(found.client_id, limit=1)
            received += [one.message.received_at for one in flying.items if one.message is not None]
    except PluginError:
        pass  # the session has ended meanwhile
    return max(0.0, call.broker.time() - min(received)) if received else None


async def hot(call: Call) -> Any:
    """Return the topics with the most messages."""
    found = call.services.hot
    return {
        "running": found.running,
        "filter": found.filter,
        "levels": found.levels,
        "started_at": found.started_at,
        "seconds": found.seconds,
        "listened": found.listened,
        "messages": found.counts.total,
        "topics": [
            {**_counted(one, "topic"), "rate": one.count / max(found.listened, 1e-3)}
            for one in found.counts.top(call.arguments["limit"])
        ],
    }


def _counted(one: Counted, name: str) -> dict[str, Any]:
    return {name: one.key, "messages": one.count, "bytes": one.size, "error": one.error}


async def start_hot(call: Call) -> Any:
    """Count the messages of each topic for a while."""
    given = call.arguments
    await call.services.hot.start(
        given["filter"], given["seconds"], given["levels"], call.token.identity, call.address
    )
    return {"started": True}


async def stop_hot(call: Call) -> Any:
    """End the measurement."""
    return {"stopped": call.services.hot.stop()}


async def drops(call: Call) -> Any:
    """Return how many messages were dropped, and the last recording."""
    found = call.services.drops
    most = call.arguments["limit"]
    reasons = dropped(call.broker.counters())
    samples = list(found.samples)[-most:]
    return {
        "running": found.running,
        "started_at": found.started_at,
        "reasons": {name: int(count) for name, count in reasons.items()},
        "recorded": found.topics.total,
        "clients": [_counted(one, "client_id") for one in found.clients.top(most)],
        "topics": [_counted(one, "topic") for one in found.topics.top(most)],
        "samples": samples[::-1],
    }


async def start_drops(call: Call) -> Any:
    """Record dropped messages for a while."""
    if not call.services.drops.start(call.arguments["seconds"]):
        raise ApiError(409, "a recording is running")
    return {"started": True}


async def stop_drops(call: Call) -> Any:
    """End the recording."""
    return {"stopped": call.services.drops.stop()}


_V, _O = Role.VIEWER, Role.OPERATOR
_STARTED: Final = schema(started=FLAG)
_STOPPED: Final = schema(stopped=FLAG)
# fmt: off
ROUTES: Final = (
    Route("GET", "/slow-clients", "listSlowClients", _V,
          "List the clients with the most messages that wait. Each page has those of the next 10,000 sessions", slow,
          ref("SlowClients"), query=SLOW, errors=(410,)),
    Route("GET", "/hot-topics", "getHotTopics", _V, "Get the topics with the most messages in the last measurement",
          hot, ref("HotTopics"), query=TOP),
    Route("POST", "/hot-topics", "startHotTopics", _O, "Count the messages of each topic for a while", start_hot,
          _STARTED, body=MEASURED, change=True, errors=(409, 503)),
    Route("DELETE", "/hot-topics", "stopHotTopics", _O, "End the measurement of topics", stop_hot, _STOPPED,
          change=True),
    Route("GET", "/drops", "getDrops", _V, "Get dropped messages by reason, and those of the last recording", drops,
          ref("Drops"), query=TOP),
    Route("POST", "/drops", "startDrops", _O, "Record dropped messages by client and topic for a while", start_drops,
          _STARTED, body=RECORDED, change=True, errors=(409,)),
    Route("DELETE", "/drops", "stopDrops", _O, "End the recording of dropped messages", stop_drops, _STOPPED,
          change=True),
)
# fmt: on
