"""Routes for clients: their sessions, subscriptions, queues and messages in flight."""

import asyncio
from typing import Any, Final

from hookmq.plugin import SessionSnapshot

from hookmq_admin import shown
from hookmq_admin.errors import ApiError
from hookmq_admin.fields import FILTER, MESSAGES, PAGED, QOS, REASON, Field
from hookmq_admin.schemas import FLAG, WHOLE, paged, record, ref
from hookmq_admin.services import Call, Route
from hookmq_admin.tokens import Role

PARTS: Final = 20
"""Maximum number of parts of the session list that one request examines."""
CLIENT: Final = "/clients/{client_id}"
LISTED: Final = {
    **PAGED,
    "client_id": Field("string", "the beginning of the client id", default=""),
    "username": Field("string", "the beginning of the user name", default=""),
    "listener": Field("string", "the name of the listener", default=""),
    "address": Field("string", "the beginning of the address", default=""),
    "connected": Field("boolean", "only online clients, or only offline clients"),
}
SUBSCRIPTION: Final = {
    "filter": FILTER,
    "qos": QOS,
    "no_local": Field("boolean", "whether not to send the client's own messages", default=False),
    "retain_as_published": Field("boolean", "whether to keep the RETAIN flag", default=False),
    "retain_handling": Field(
        "integer", "whether to send retained messages", default=0, minimum=0, maximum=2
    ),
    "authorize": Field("boolean", "whether the access rules of the client apply", default=False),
}
BAN: Final = {
    "seconds": Field("number", "how long", default=3600, minimum=1, maximum=31_622_400),
    "reason": REASON,
}


async def listed(call: Call) -> Any:
    """Return a page of clients. A search examines a limited number of sessions, a thousand at a time."""
    cursor, limit = call.paging()
    given = call.arguments
    address = given["address"]
    found: list[SessionSnapshot] = []
    for part in range(PARTS):
        if part:
            await asyncio.sleep(0)
        page = call.broker.sessions(
            cursor, limit - len(found), client_id=given["client_id"], username=given["username"],
            listener=given["listener"], connected=given["connected"],
        )  # fmt: skip
        found += [one for one in page.items if one.peer.host.startswith(address)]
        cursor = page.cursor
        if not cursor or len(found) == limit:
            break
    return {"items": [shown.session(one) for one in found], "cursor": cursor}


async def one(call: Call) -> Any:
    """Return one client."""
    session = call.session()
    return shown.client(session, call.broker.client(session.client_id))


async def subscriptions(call: Call) -> Any:
    """Return a page of the client's subscriptions."""
    session = call.session()
    page = call.broker.subscriptions(*call.paging(), client_id=session.client_id)
    return shown.page(page, [shown.subscription(found) for found in page.items])


async def queue(call: Call) -> Any:
    """Return a page of the client's queue."""
    session = call.session()
    page = await call.broker.queue(session.client_id, *call.paging())
    return shown.page(page, [shown.queued(found, call.payloads) for found in page.items])


async def inflight(call: Call) -> Any:
    """Return a page of the client's messages in flight."""
    session = call.session()
    page = call.broker.inflight(session.client_id, *call.paging())
    return shown.page(page, [shown.inflight(found, call.payloads) for found in page.items])


async def disconnect(call: Call) -> Any:
    """Disconnect the client."""
    session = call.session()
    given = call.arguments
    done = call.broker.disconnect(
        session.client_id, reason=given["reason"], drop_will=given["drop_will"]
    )
    return {"disconnected": done}


async def end_session(call: Call) -> Any:
    """End the client's session."""
    session = call.session()
    return {"ended": call.broker.end_session(session.client_id, call.arguments["reason"])}


async def subscribe(call: Call) -> Any:
    """Subscribe the client."""
    session = call.session()
    given = call.arguments
    code = await call.broker.subscribe(
        session.client_id, given["filter"], given["qos"], no_local=given["no_local"],
        retain_as_published=given["retain_as_published"],
        retain_handling=given["retain_handling"], authorize=given["authorize"],
    )  # fmt: skip
    if code >= 0x80:
        raise ApiError(409, f"the subscription was refused: {code.text}")
    return {"qos": int(code)}


async def unsubscribe(call: Call) -> Any:
    """Remove one of the client's subscriptions."""
    session = call.session()
    if not await call.broker.unsubscribe(session.client_id, call.arguments["filter"]):
        raise ApiError(404, "the client has no such subscription", "filter")
    return {"removed": True}


async def purge(call: Call) -> Any:
    """Drop the client's queue."""
    session = call.session()
    return {"dropped": await call.broker.purge_queue(session.client_id)}


async def ban(call: Call) -> Any:
    """Ban the client id."""
    _need_ratelimit(call)
    given = call.arguments
    reason = given["reason"] or "banned"
    client_id = call.parts["client_id"]
    call.broker.emit(
        "ratelimit.ban", client_id=client_id, seconds=float(given["seconds"]), reason=reason
    )
    return {"requested": True}


async def unban(call: Call) -> Any:
    """Lift any bans on the client id."""
    _need_ratelimit(call)
    call.broker.emit("ratelimit.unban", client_id=call.parts["client_id"])
    return {"requested": True}


def _need_ratelimit(call: Call) -> None:
    if not any(one.use == "ratelimit" and not one.disabled for one in call.broker.plugins()):
        raise ApiError(409, "bans need the plugin ratelimit, which is not configured")


_V, _O = Role.VIEWER, Role.OPERATOR
_REQUESTED: Final = record(requested=FLAG)
# fmt: off
ROUTES: Final = (
    Route("GET", "/clients", "listClients", _V, "List and search clients, online and offline", listed,
          paged("Session"), query=LISTED, errors=(410,)),
    Route("GET", CLIENT, "getClient", _V, "Get one client", one, ref("Client"), errors=(404,)),
    Route("GET", CLIENT + "/subscriptions", "listClientSubscriptions", _V, "List the subscriptions of a client",
          subscriptions, paged("Subscription"), query=PAGED, errors=(404, 410)),
    Route("GET", CLIENT + "/queue", "listQueue", _V, "List the messages that wait for a client", queue,
          paged("QueuedMessage"), query=MESSAGES, errors=(404, 410)),
    Route("GET", CLIENT + "/inflight", "listInflight", _V, "List the messages in flight to a client", inflight,
          paged("InflightMessage"), query=MESSAGES, errors=(404, 410)),
    Route("POST", CLIENT + "/disconnect", "disconnectClient", _O, "Disconnect a client", disconnect,
          record(disconnected=FLAG), change=True, errors=(404,),
          body={"reason": REASON, "drop_will": Field("boolean", "whether not to publish its will", default=False)}),
    Route("DELETE", CLIENT + "/session", "endSession", _O, "End the session of a client", end_session,
          record(ended=FLAG), query={"reason": REASON}, change=True, errors=(404,)),
    Route("POST", CLIENT + "/subscriptions", "subscribeClient", _O, "Subscribe a client", subscribe,
          record(qos=WHOLE), body=SUBSCRIPTION, change=True, errors=(404, 409)),
    Route("DELETE", CLIENT + "/subscriptions", "unsubscribeClient", _O, "Remove a subscription of a client",
          unsubscribe, record(removed=FLAG), query={"filter": FILTER}, change=True, errors=(404,)),
    Route("DELETE", CLIENT + "/queue", "purgeQueue", _O, "Drop the messages that wait for a client", purge,
          record(dropped=WHOLE), change=True, errors=(404,)),
    Route("POST", CLIENT + "/ban", "banClient", _O, "Ban a client id, with the plugin ratelimit", ban,
          _REQUESTED, body=BAN, change=True, errors=(409,)),
    Route("DELETE", CLIENT + "/ban", "unbanClient", _O, "Lift the bans of a client id", unban,
          _REQUESTED, change=True, errors=(409,)),
)
# fmt: on
