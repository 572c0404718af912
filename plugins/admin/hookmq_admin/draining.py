"""Routes that drain the broker: it keeps running while its clients move to another broker."""

from typing import Any, Final

from hookmq.plugin import DrainRequest, PluginError

from hookmq_admin.errors import ApiError
from hookmq_admin.fields import Field
from hookmq_admin.schemas import ref
from hookmq_admin.services import Call, Route
from hookmq_admin.tokens import Role


async def drain(call: Call) -> Any:
    """Refuse new connections, and disconnect the clients in batches."""
    given = call.arguments
    try:
        request = DrainRequest(
            seconds=given["seconds"], reference=given["server_reference"], moved=given["moved"]
        )
    except ValueError as error:
        raise ApiError(400, str(error), "server_reference") from None
    try:
        call.broker.drain(request)
    except PluginError as error:
        raise ApiError(409, error.message) from None
    return await status(call)


async def status(call: Call) -> Any:
    """Return how far the drain has progressed."""
    found = call.broker.drain_status()
    return {
        "draining": found.draining,
        "waiting": found.waiting,
        "connections": found.connections,
    }


async def cancel(call: Call) -> Any:
    """Accept connections again."""
    return {"cancelled": call.broker.cancel_drain()}


_A: Final = Role.ADMIN
# fmt: off
ROUTES: Final = (
    Route("GET", "/drain", "getDrain", Role.VIEWER, "Get the progress of a drain", status, ref("Drain")),
    Route("POST", "/drain", "startDrain", _A, "Refuse new connections and disconnect all clients in slices", drain,
          ref("Drain"),
          body={"seconds": Field("number", "the time over which clients are disconnected", default=10, minimum=0,
                                 maximum=3600),
                "server_reference": Field(
                    "string", "the server that clients should use; by default, that of the configuration", default="",
                    maximum=1024),
                "moved": Field("boolean", "whether clients should always use that server", default=False)},
          change=True, errors=(409,)),
    Route("DELETE", "/drain", "cancelDrain", _A, "Accept connections again", cancel,
          {"type": "object", "properties": {"cancelled": {"type": "boolean"}}, "required": ["cancelled"],
           "additionalProperties": False}, change=True),
)
# fmt: on
