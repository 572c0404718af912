"""The route for the streams of other plugins; see `hookmq_toolkit.streams`."""

from typing import Any, Final

from hookmq_toolkit.streams import SERVICE, StreamOwner, StreamStatus

from hookmq_admin.schemas import listed, record, ref
from hookmq_admin.services import Call, Route
from hookmq_admin.tokens import Role


async def streams(call: Call) -> Any:
    """Return the streams, by plugin in the order of the configuration."""
    items: list[dict[str, Any]] = []
    for plugin, owner in call.broker.services(SERVICE).items():
        if isinstance(owner, StreamOwner):
            items += [_shown(plugin, one) for one in await owner.list_streams()]
    return {"items": items}


def _shown(plugin: str, one: StreamStatus) -> dict[str, Any]:
    return {
        "plugin": plugin,
        "name": one.name,
        "kind": one.kind,
        "messages": one.messages,
        "bytes": one.bytes,
        "oldest": one.oldest,
        "consumers": [
            {"name": consumer.name, "lag": consumer.lag, "committed_at": consumer.committed_at}
            for consumer in one.consumers
        ],
        "error": one.error,
    }


# fmt: off
ROUTES: Final = (
    Route("GET", "/streams", "listStreams", Role.VIEWER, "List the streams of plugins", streams,
          record(items=listed(ref("Stream")))),
)
# fmt: on
