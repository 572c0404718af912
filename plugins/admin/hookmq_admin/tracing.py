"""The route for traces. A trace streams what the broker does with some clients or messages, as server-sent events."""

import asyncio
from dataclasses import replace
from typing import Any, Final

from hookmq.plugin import PluginError, Trace, TraceEvent, TraceRequest

from hookmq_admin import shown
from hookmq_admin.errors import ApiError
from hookmq_admin.event_stream import EventStream
from hookmq_admin.fields import FILTER, Field
from hookmq_admin.services import Call, Route
from hookmq_admin.tokens import Role


async def trace(call: Call) -> Any:
    """Stream a trace's events until its time is up, the client disconnects, or the token is no longer valid."""
    try:
        request = TraceRequest(**call.arguments)
    except ValueError as error:
        raise ApiError(400, str(error)) from None
    try:
        found = call.broker.trace(request)
    except PluginError as error:
        raise ApiError(503, error.message) from None
    stream = EventStream(call, "trace", "events")
    task = asyncio.ensure_future(pump(found, stream))
    try:
        await call.begin()
        return await stream.run()
    finally:
        found.stop()
        task.cancel()


async def pump(found: Trace, stream: EventStream) -> None:
    """Pass a trace's events on to the response. If an event cannot be encoded, end the response."""
    try:
        async for event in found:
            if stream.full:
                stream.skip()
            else:
                stream.add("trace", event_fields(event))
    finally:
        stream.end(found.ended or "the trace failed")


def event_fields(event: TraceEvent) -> dict[str, Any]:
    """Return an event as a JSON value."""
    fields = dict(event.fields)
    data = fields.get("payload")
    if isinstance(data, bytes):
        fields["payload"] = shown.payload(data)
    return {
        "time": event.time,
        "kind": str(event.kind),
        "name": event.name,
        "client_id": event.client_id,
        "topic": event.topic,
        "fields": fields,
    }


# fmt: off
ROUTES: Final = (
    Route("GET", "/trace", "trace", Role.OPERATOR, "Follow what the broker does with some clients or messages", trace,
          {"type": "string", "description": "the events `trace` (a TraceEvent), `skipped` (how many) and `end`"},
          query={"client_id": Field("string", "trace this client", default=""),
                 "username": Field("string", "trace the clients with this user name", default=""),
                 "address": Field("string", "trace the clients whose addresses begin with this", default=""),
                 "filter": replace(FILTER, required=False, default="", help="only topics that this filter matches"),
                 "plugin": Field("string", "only calls of the plugin with this plugin id", default=""),
                 "seconds": Field("number", "how long", default=60, minimum=1, maximum=3600),
                 "rate": Field("integer", "most events per second", default=200, minimum=1, maximum=1000),
                 "payloads": Field("boolean", "whether to show the beginning of payloads", default=False)},
          change=True, errors=(503,), streams=True),
)
# fmt: on
