"""Routes for queues. A plugin such as `queues` manages them; see `hookmq_toolkit.queues`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from typing import Any, Final

from hookmq.mqtt_api import validate_filter
from hookmq.plugin import BrokerHandle
from hookmq_toolkit.queues import (
    SERVICE,
    QueueError,
    QueueManager,
    QueueMessage,
    QueueStatus,
    RedriveRequest,
)

from hookmq_admin import shown
from hookmq_admin.errors import ApiError
from hookmq_admin.fields import FEW, Field
from hookmq_admin.schemas import FLAG, WHOLE, listed, record, ref
from hookmq_admin.services import Call, Route
from hookmq_admin.tokens import Role

_STATUS: Final = {"invalid": 400, "missing": 404, "conflict": 409, "failed": 503}


def manager_of(broker: BrokerHandle) -> QueueManager:
    """Return the service of the first plugin that manages queues. Raises ApiError 409."""
    for found in broker.services(SERVICE).values():
        if isinstance(found, QueueManager):
            return found
    raise ApiError(409, "the broker has no queues: the plugin queues is not configured")


@contextmanager
def reported() -> Iterator[None]:
    """Convert a QueueError to an ApiError."""
    try:
        yield
    except QueueError as error:
        raise ApiError(_STATUS[error.reason], str(error), error.field) from None


# handlers ------------------------------------------------------------------------------------------------------------


async def list_queues(call: Call) -> Any:
    """Return all queues."""
    with reported():
        return {"items": [_summary(one) for one in manager_of(call.broker).list_queues()]}


async def get_queue(call: Call) -> Any:
    """Return one queue with its settings and consumers."""
    with reported():
        return _detail(manager_of(call.broker).show_queue(call.parts["queue"]))


async def create_queue(call: Call) -> Any:
    """Create a queue."""
    given = call.arguments
    with reported():
        return _detail(
            await manager_of(call.broker).create_queue(given["name"], given.get("settings") or {})
        )


async def change_queue(call: Call) -> Any:
    """Change some of a queue's settings."""
    settings = call.arguments["settings"]
    with reported():
        return _detail(await manager_of(call.broker).change_queue(call.parts["queue"], settings))


async def delete_queue(call: Call) -> Any:
    """Delete a queue."""
    with reported():
        found = manager_of(call.broker)
        return {"messages": await found.delete_queue(call.parts["queue"], call.arguments["force"])}


async def peek_queue(call: Call) -> Any:
    """Return a queue's messages without delivering them."""
    given = call.arguments
    with reported():
        page = await manager_of(call.broker).peek_queue(
            call.parts["queue"], given["group"], given.get("after"), given["limit"]
        )
    return {"items": [_message(one, call.payloads) for one in page.items], "after": page.cursor}


async def purge_queue(call: Call) -> Any:
    """Drop the messages that are not held by any consumer."""
    with reported():
        found = manager_of(call.broker)
        return {"purged": await found.purge_queue(call.parts["queue"], call.arguments["group"])}


async def pause_queue(call: Call) -> Any:
    """Pause the deliveries of a queue or group."""
    return await _pause(call, True)


async def resume_queue(call: Call) -> Any:
    """Resume the deliveries of a queue or group."""
    return await _pause(call, False)


async def _pause(call: Call, paused: bool) -> Any:
    with reported():
        found = manager_of(call.broker)
        await found.pause_queue(call.parts["queue"], call.arguments["group"], paused)
    return {"paused": paused}


async def seek_queue(call: Call) -> Any:
    """Move one of a stream's groups to a position."""
    given = call.arguments
    with reported():
        found = manager_of(call.broker)
        offset = await found.seek_queue(call.parts["queue"], given["group"], given["position"])
    return {"offset": offset}


async def start_redrive(call: Call) -> Any:
    """Start moving dead letters back to the queues they came from."""
    given = {
        name: call.arguments[name]
        for name in _REDRIVE_NAMES
        if call.arguments.get(name) is not None
    }
    with reported():
        found = manager_of(call.broker)
        return asdict(found.start_redrive(call.parts["queue"], RedriveRequest(**given)))


async def get_redrive(call: Call) -> Any:
    """Return a redrive's progress."""
    with reported():
        return asdict(manager_of(call.broker).redrive_status(call.parts["queue"]))


async def stop_redrive(call: Call) -> Any:
    """Stop a redrive."""
    with reported():
        return asdict(manager_of(call.broker).stop_redrive(call.parts["queue"]))


# responses -----------------------------------------------------------------------------------------------------------


def _summary(status: QueueStatus) -> dict[str, Any]:
    found = _detail(status)
    del found["settings"]
    for group in found["groups"]:
        del group["consumers"]
    return found


def _detail(status: QueueStatus) -> dict[str, Any]:
    found = asdict(status)
    found["groups"] = list(found["groups"])
    for group in found["groups"]:
        group["consumers"] = list(group["consumers"])
    return found


def _message(found: QueueMessage, payloads: bool) -> dict[str, Any]:
    return {
        "offset": found.offset,
        "state": found.state,
        "deliveries": found.deliveries,
        "client_id": found.client_id,
        "due": found.due,
        **shown.message(found.message, payloads=payloads),
    }


# fields --------------------------------------------------------------------------------------------------------------


def _filter(text: str) -> None:
    if text:
        validate_filter(text)


_REDRIVE_NAMES: Final = tuple(one.name for one in fields(RedriveRequest))
_O, _A = Role.OPERATOR, Role.ADMIN
# fmt: off
_NAME: Final = Field("string", "the name of the queue", required=True, minimum=1, maximum=128)
_GROUP: Final = Field("string", "the group; by default, all groups", default="", maximum=128)
_ONE_GROUP: Final = Field("string", "the group; by default, the first group", default="", maximum=128)
_SETTINGS: Final = Field("object", "the settings, as in the configuration of the plugin")
_REDRIVE: Final = {
    "group": _ONE_GROUP,
    "queue": Field("string", "only dead letters of this queue", default="", maximum=128),
    "topic": Field("string", "only dead letters that were published to topics that match this filter", default="",
                   check=_filter),
    "reason": Field("string", "only dead letters with this reason", default="", maximum=256),
    "older_than": Field("number", "only dead letters that are at least this old, in seconds", default=0, minimum=0,
                        maximum=1e9),
    "limit": Field("integer", "the maximum number of messages to move; by default, all", minimum=1, maximum=10**12),
    "rate": Field("number", "the maximum number of messages to move per second", default=1000, minimum=0.01,
                  maximum=1e6),
}
_MISSING: Final = (404, 409)
_CHANGED: Final = (404, 409, 503)
_ONE: Final = "/queues/{queue}"
ROUTES: Final = (
    Route("GET", "/queues", "listQueues", Role.VIEWER, "List the queues", list_queues,
          record(items=listed(ref("QueueSummary"))), errors=(409,)),
    Route("POST", "/queues", "createQueue", _A, "Create a queue", create_queue, ref("Queue"),
          body={"name": _NAME, "settings": _SETTINGS}, change=True, errors=(409, 503)),
    Route("GET", _ONE, "getQueue", Role.VIEWER, "Get one queue with its settings and consumers", get_queue,
          ref("Queue"), errors=_MISSING),
    Route("PATCH", _ONE, "changeQueue", _A, "Change some settings of a queue that is not in the configuration",
          change_queue, ref("Queue"),
          body={"settings": Field("object", "the settings to change; null stands for the default", required=True)},
          change=True, errors=_CHANGED),
    Route("DELETE", _ONE, "deleteQueue", _A, "Delete a queue that is not in the configuration", delete_queue,
          record(messages=WHOLE),
          query={"force": Field("boolean", "whether to delete unsettled messages too", default=False)},
          change=True, errors=_CHANGED),
    Route("GET", _ONE + "/messages", "peekQueue", _O, "List unsettled messages without delivering them", peek_queue,
          record(items=listed(ref("PeekedMessage")), after={
              "type": ["integer", "null"], "description": "`after` of the next page; null after the last page"}),
          query={"group": _ONE_GROUP, "limit": FEW,
                 "after": Field("integer", "only messages above this offset", minimum=0, maximum=1 << 62)},
          errors=_CHANGED),
    Route("DELETE", _ONE + "/messages", "purgeQueueMessages", _A, "Drop all messages that no consumer has", purge_queue,
          record(purged=WHOLE), query={"group": _GROUP}, change=True, errors=_CHANGED),
    Route("POST", _ONE + "/pause", "pauseQueue", _O, "Pause the deliveries of a queue or group", pause_queue,
          record(paused=FLAG), body={"group": _GROUP}, change=True, errors=_CHANGED),
    Route("POST", _ONE + "/resume", "resumeQueue", _O, "Resume the deliveries of a queue or group", resume_queue,
          record(paused=FLAG), body={"group": _GROUP}, change=True, errors=_CHANGED),
    Route("POST", _ONE + "/seek", "seekQueue", _A, "Move a group of a stream to a position", seek_queue,
          record(offset=WHOLE),
          body={"group": Field("string", "the group", required=True, minimum=1, maximum=128),
                "position": Field("string", "first, last, next, an offset, a time as ISO 8601, or @ and epoch seconds",
                                  required=True, minimum=1, maximum=64)},
          change=True, errors=_CHANGED),
    Route("GET", _ONE + "/redrive", "getRedrive", Role.VIEWER, "Get the progress of the running or last redrive",
          get_redrive, ref("Redrive"), errors=_MISSING),
    Route("POST", _ONE + "/redrive", "startRedrive", _A, "Begin to move dead letters back to their queues",
          start_redrive, ref("Redrive"), body=_REDRIVE, change=True, errors=_MISSING),
    Route("DELETE", _ONE + "/redrive", "stopRedrive", _A, "Stop a redrive", stop_redrive, ref("Redrive"), change=True,
          errors=_MISSING),
)
# fmt: on
