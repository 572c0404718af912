"""Routes for the cluster. The plugin `cluster` implements them; see `hookmq_toolkit.cluster`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final

from hookmq.plugin import BrokerHandle
from hookmq_toolkit.cluster import SERVICE, ClusterError, ClusterManager

from hookmq_admin.errors import ApiError
from hookmq_admin.fields import Field
from hookmq_admin.schemas import TEXT, record, ref
from hookmq_admin.services import Call, Route
from hookmq_admin.tokens import Role

_STATUS: Final = {"missing": 404, "conflict": 409, "failed": 503}


def manager_of(broker: BrokerHandle) -> ClusterManager:
    """Return the service that manages the cluster. Raises ApiError 409 if no plugin offers it."""
    for found in broker.services(SERVICE).values():
        if isinstance(found, ClusterManager):
            return found
    raise ApiError(409, "the broker is not in a cluster: the plugin cluster is not configured")


@contextmanager
def _reported() -> Iterator[None]:
    """Convert a ClusterError to an ApiError."""
    try:
        yield
    except ClusterError as error:
        raise ApiError(_STATUS[error.reason], str(error), error.field) from None


async def get_cluster(call: Call) -> Any:
    """Return the members and lanes of the cluster, as this node sees them."""
    with _reported():
        return asdict(manager_of(call.broker).show_cluster())


async def move_lane(call: Call) -> Any:
    """Give a lane of this node to another node."""
    lane, node = call.parts["lane"], call.arguments["node"]
    with _reported():
        await manager_of(call.broker).move_lane(lane, node)
    return {"lane": lane, "owner": node}


async def drain_node(call: Call) -> Any:
    """Begin to empty this node."""
    given = call.arguments
    with _reported():
        manager_of(call.broker).drain_node(call.parts["node"], given["seconds"], given["moved"])
    return await get_cluster(call)


async def undrain_node(call: Call) -> Any:
    """Begin to put this node back into service."""
    with _reported():
        manager_of(call.broker).undrain_node(call.parts["node"])
    return await get_cluster(call)


# fmt: off
ROUTES: Final = (
    Route("GET", "/cluster", "getCluster", Role.VIEWER, "Get the members and lanes of the cluster, as the node sees them",
          get_cluster, ref("Cluster"), errors=(409,)),
    Route("POST", "/cluster/lanes/{lane}/move", "moveLane", Role.ADMIN, "Give a lane of this node to another node",
          move_lane, record(lane=TEXT, owner=TEXT),
          body={"node": Field("string", "the node that gets the lane", required=True, minimum=1, maximum=63)},
          change=True, errors=(404, 409, 503)),
    Route("POST", "/cluster/nodes/{node}/drain", "drainNode", Role.ADMIN,
          "Begin to move the clients and lanes of this node to other nodes", drain_node, ref("Cluster"),
          body={"seconds": Field("number", "the time over which clients without a durable session are disconnected",
                                 default=10, minimum=0, maximum=3600),
                "moved": Field("boolean", "whether clients should use the other nodes from now on", default=False)},
          change=True, errors=(409,)),
    Route("POST", "/cluster/nodes/{node}/undrain", "undrainNode", Role.ADMIN,
          "Begin to put this node back into service", undrain_node, ref("Cluster"), change=True, errors=(409,)),
)
# fmt: on
