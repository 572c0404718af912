"""Routes for sinks and sources. A plugin such as `sinks` implements them; see `hookmq_toolkit.sinks` and `sources`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final

from hookmq.plugin import BrokerHandle
from hookmq_toolkit.sinks import (
    SERVICE,
    DeliveryLog,
    SinkDeadLetter,
    SinkError,
    SinkManager,
    SinkStatus,
)
from hookmq_toolkit.sources import SERVICE as SOURCES
from hookmq_toolkit.sources import SourceManager

from hookmq_admin import shown
from hookmq_admin.errors import ApiError
from hookmq_admin.fields import FEW, Field
from hookmq_admin.schemas import FLAG, TEXT, WHOLE, listed, record, ref
from hookmq_admin.services import Call, Route
from hookmq_admin.tokens import Role

_STATUS: Final = {"invalid": 400, "missing": 404, "conflict": 409, "failed": 503}


def managers_of(broker: BrokerHandle) -> list[SinkManager]:
    """Return the services of all plugins that manage sinks. Raises ApiError 409 if there is none."""
    found = [one for one in broker.services(SERVICE).values() if isinstance(one, SinkManager)]
    if not found:
        raise ApiError(409, "the broker has no sinks: neither sinks nor webhook is configured")
    return found


def manager_of(call: Call) -> SinkManager:
    """Return the service that manages the sink named in the path. If no service has that sink, return the first
    service. Raises ApiError 409.
    """
    name, managers = call.parts["sink"], managers_of(call.broker)
    having = [one for one in managers if any(sink.name == name for sink in one.list_sinks())]
    if len(having) > 1:
        raise ApiError(409, f"several plugins have a sink {name!r}; rename one of them")
    return (having or managers)[0]


def source_manager_of(broker: BrokerHandle) -> SourceManager:
    """Return the service of the first plugin that manages sources. Raises ApiError 409."""
    for found in broker.services(SOURCES).values():
        if isinstance(found, SourceManager):
            return found
    raise ApiError(409, "the broker has no sources: the plugin sinks is not configured")


@contextmanager
def reported() -> Iterator[None]:
    """Convert a SinkError to an ApiError."""
    try:
        yield
    except SinkError as error:
        raise ApiError(_STATUS[error.reason], str(error), error.field) from None


# handlers ------------------------------------------------------------------------------------------------------------


async def list_sinks(call: Call) -> Any:
    """Return all sinks."""
    with reported():
        return {
            "items": [
                _sink(one) for found in managers_of(call.broker) for one in found.list_sinks()
            ]
        }


async def get_sink(call: Call) -> Any:
    """Return one sink."""
    with reported():
        return _sink(manager_of(call).show_sink(call.parts["sink"]))


async def test_sink(call: Call) -> Any:
    """Open a sink's target and check it."""
    with reported():
        found = await manager_of(call).test_sink(call.parts["sink"])
    return {"problems": [asdict(one) for one in found]}


async def pause_sink(call: Call) -> Any:
    """Pause a sink."""
    return await _pause(call, True)


async def resume_sink(call: Call) -> Any:
    """Resume a sink."""
    return await _pause(call, False)


async def _pause(call: Call, paused: bool) -> Any:
    with reported():
        await manager_of(call).pause_sink(call.parts["sink"], paused)
    return {"paused": paused}


async def seek_sink(call: Call) -> Any:
    """Move a sink's cursor."""
    with reported():
        found = manager_of(call)
        return {"offset": await found.seek_sink(call.parts["sink"], call.arguments["position"])}


async def list_dead_letters(call: Call) -> Any:
    """Return a sink's dead letters."""
    given = call.arguments
    with reported():
        page = await manager_of(call).list_dead_letters(
            call.parts["sink"], given.get("after"), given["limit"]
        )
    return {"items": [_letter(one, call.payloads) for one in page.items], "after": page.cursor}


async def list_deliveries(call: Call) -> Any:
    """Return the latest attempts to deliver events."""
    given = call.arguments
    with reported():
        found = manager_of(call)
        found.show_sink(call.parts["sink"])
        if not isinstance(found, DeliveryLog):
            raise SinkError("conflict", "this sink does not keep its deliveries; webhooks do")
        items = await found.list_deliveries(
            call.parts["sink"], given.get("event", ""), given["limit"]
        )
    return {"items": [asdict(one) for one in items]}


async def replay_dead_letters(call: Call) -> Any:
    """Write a sink's dead letters to its target again."""
    with reported():
        return asdict(await manager_of(call).replay_dead_letters(call.parts["sink"]))


async def purge_dead_letters(call: Call) -> Any:
    """Delete a sink's dead letters."""
    with reported():
        return {"purged": await manager_of(call).purge_dead_letters(call.parts["sink"])}


async def list_sources(call: Call) -> Any:
    """Return all sources."""
    with reported():
        return {"items": [asdict(one) for one in source_manager_of(call.broker).list_sources()]}


async def get_source(call: Call) -> Any:
    """Return one source."""
    with reported():
        return asdict(source_manager_of(call.broker).show_source(call.parts["source"]))


async def pause_source(call: Call) -> Any:
    """Pause a source."""
    return await _pause_source(call, True)


async def resume_source(call: Call) -> Any:
    """Resume a source."""
    return await _pause_source(call, False)


async def _pause_source(call: Call, paused: bool) -> Any:
    with reported():
        await source_manager_of(call.broker).pause_source(call.parts["source"], paused)
    return {"paused": paused}


async def list_source_letters(call: Call) -> Any:
    """Return a source's dead letters."""
    given = call.arguments
    with reported():
        page = await source_manager_of(call.broker).list_source_letters(
            call.parts["source"], given.get("after"), given["limit"]
        )
    return {"items": [_letter(one, call.payloads) for one in page.items], "after": page.cursor}


async def test_source(call: Call) -> Any:
    """Open a source's origin and close it."""
    with reported():
        found = await source_manager_of(call.broker).test_source(call.parts["source"])
    return {"problems": [asdict(one) for one in found]}


async def replay_source_letters(call: Call) -> Any:
    """Publish a source's dead letters again."""
    with reported():
        manager = source_manager_of(call.broker)
        return asdict(await manager.replay_source_letters(call.parts["source"]))


async def purge_source_letters(call: Call) -> Any:
    """Delete a source's dead letters."""
    with reported():
        manager = source_manager_of(call.broker)
        return {"purged": await manager.purge_source_letters(call.parts["source"])}


# responses -----------------------------------------------------------------------------------------------------------


def _sink(status: SinkStatus) -> dict[str, Any]:
    return {**asdict(status), "topics": list(status.topics)}


def _letter(found: SinkDeadLetter, payloads: bool) -> dict[str, Any]:
    made = asdict(found)
    payload = made.pop("payload")
    made["bytes"] = len(payload)
    if payloads:
        made["payload"] = shown.payload(payload)
    return made


_O, _A = Role.OPERATOR, Role.ADMIN
_MISSING: Final = (404, 409)
_CHANGED: Final = (404, 409, 503)
_ONE: Final = "/sinks/{sink}"
_SOURCE: Final = "/sources/{source}"
# fmt: off
ROUTES: Final = (
    Route("GET", "/sinks", "listSinks", Role.VIEWER, "List the sinks", list_sinks, record(items=listed(ref("Sink"))),
          errors=(409,)),
    Route("GET", _ONE, "getSink", Role.VIEWER, "Get one sink", get_sink, ref("Sink"), errors=_MISSING),
    Route("POST", _ONE + "/test", "testSink", _O, "Open the target of a sink and check it, without writing anything",
          test_sink, record(problems=listed(record(key=TEXT, message=TEXT, hint=TEXT))), body={}, errors=_CHANGED),
    Route("POST", _ONE + "/pause", "pauseSink", _O, "Pause a sink, which continues to store messages", pause_sink,
          record(paused=FLAG), body={}, change=True, errors=_CHANGED),
    Route("POST", _ONE + "/resume", "resumeSink", _O, "Resume a sink", resume_sink, record(paused=FLAG), body={},
          change=True, errors=_CHANGED),
    Route("POST", _ONE + "/seek", "seekSink", _A, "Move the cursor of a sink, from where all messages are written again",
          seek_sink, record(offset=WHOLE),
          body={"position": Field("string", "first, next, an offset, a time as ISO 8601, or @ and epoch seconds",
                                  required=True, minimum=1, maximum=64)},
          change=True, errors=_CHANGED),
    Route("GET", _ONE + "/dead-letters", "listDeadLetters", _O, "List the messages that the target did not take",
          list_dead_letters,
          record(items=listed(ref("SinkDeadLetter")), after={
              "type": ["integer", "null"], "description": "`after` of the next page; null after the last page"}),
          query={"limit": FEW,
                 "after": Field("integer", "only dead letters above this number", minimum=0, maximum=1 << 62)},
          errors=_CHANGED),
    Route("GET", _ONE + "/deliveries", "listDeliveries", _O, "List the latest attempts to send events, newest first",
          list_deliveries, record(items=listed(ref("SinkDelivery"))),
          query={"limit": FEW,
                 "event": Field("string", "only attempts for the event with this id", minimum=1, maximum=256)},
          errors=_MISSING),
    Route("POST", _ONE + "/dead-letters/replay", "replayDeadLetters", _A, "Write all dead letters to the target again",
          replay_dead_letters, record(written=WHOLE, failed=WHOLE), body={}, change=True, errors=_CHANGED),
    Route("DELETE", _ONE + "/dead-letters", "purgeDeadLetters", _A, "Delete all dead letters", purge_dead_letters,
          record(purged=WHOLE), change=True, errors=_CHANGED),
    Route("GET", "/sources", "listSources", Role.VIEWER, "List the sources", list_sources,
          record(items=listed(ref("Source"))), errors=(409,)),
    Route("GET", _SOURCE, "getSource", Role.VIEWER, "Get one source", get_source, ref("Source"), errors=_MISSING),
    Route("POST", _SOURCE + "/pause", "pauseSource", _O, "Pause a source, which closes its connection", pause_source,
          record(paused=FLAG), body={}, change=True, errors=_CHANGED),
    Route("POST", _SOURCE + "/resume", "resumeSource", _O, "Resume a source", resume_source, record(paused=FLAG),
          body={}, change=True, errors=_CHANGED),
    Route("GET", _SOURCE + "/dead-letters", "listSourceDeadLetters", _O, "List the messages that could not be published",
          list_source_letters,
          record(items=listed(ref("SinkDeadLetter")), after={
              "type": ["integer", "null"], "description": "`after` of the next page; null after the last page"}),
          query={"limit": FEW,
                 "after": Field("integer", "only dead letters above this number", minimum=0, maximum=1 << 62)},
          errors=_CHANGED),
    Route("POST", _SOURCE + "/test", "testSource", _O, "Open the origin of a source, without receiving anything",
          test_source, record(problems=listed(record(key=TEXT, message=TEXT, hint=TEXT))), body={}, errors=_CHANGED),
    Route("POST", _SOURCE + "/dead-letters/replay", "replaySourceDeadLetters", _A, "Publish all dead letters again",
          replay_source_letters, record(written=WHOLE, failed=WHOLE), body={}, change=True, errors=_CHANGED),
    Route("DELETE", _SOURCE + "/dead-letters", "purgeSourceDeadLetters", _A, "Delete all dead letters of a source",
          purge_source_letters, record(purged=WHOLE), change=True, errors=_CHANGED),
)
# fmt: on
