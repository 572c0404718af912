"""Routes for the broker's log: its level, and a stream of its events as server-sent events."""

import asyncio
from typing import Any, Final

from hookmq.plugin import LOG_LEVELS, LogEvent, LogFollower, PluginError

from hookmq_admin.errors import ApiError
from hookmq_admin.event_stream import EventStream
from hookmq_admin.fields import Field
from hookmq_admin.schemas import ref
from hookmq_admin.services import Call, Route
from hookmq_admin.tokens import Role

BATCH: Final = 50
"""Events to encode in one turn of the event loop."""


async def level(call: Call) -> Any:
    """Return the current log level and the configured one."""
    try:
        found = call.broker.log_levels()
    except PluginError as error:
        raise ApiError(409, error.message) from None
    return {"level": found.current, "configured": found.configured}


async def set_level(call: Call) -> Any:
    """Change the log level until the next reload or restart."""
    try:
        call.broker.set_log_level(call.arguments["level"])
    except PluginError as error:
        raise ApiError(409, error.message) from None
    return await level(call)


async def tail(call: Call) -> Any:
    """Stream log events until the client disconnects or its token is no longer valid."""
    services, given = call.services, call.arguments
    if services.tails >= services.config.max_tails:
        raise ApiError(503, f"{services.tails} live tails are open, which is the limit")
    try:
        follower = call.broker.follow_log(given["recent"])
    except PluginError as error:
        raise ApiError(409, error.message) from None
    services.tails += 1
    tail = _Tail(call, follower)
    task = asyncio.ensure_future(tail.pump(given["level"], given["event"]))
    try:
        await call.begin()
        return await tail.stream.run()
    finally:
        services.tails -= 1
        follower.stop()
        task.cancel()


class _Tail:
    """Passes log events to a response."""

    def __init__(self, call: Call, follower: LogFollower) -> None:
        self.stream = EventStream(call, "log", "events", self._tick)
        self._follower = follower
        self._skipped = 0

    async def pump(self, level: str, prefix: str) -> None:
        """Pass on the events at or above `level` whose names begin with `prefix`."""
        wanted = LOG_LEVELS[LOG_LEVELS.index(level) :]
        passed = 0
        try:
            async for event in self._follower:
                if event.level not in wanted or not event.event.startswith(prefix):
                    continue
                if self.stream.full:
                    self.stream.skip()
                else:
                    self.stream.add("log", event_fields(event))
                passed += 1
                if passed % BATCH == 0:
                    await asyncio.sleep(0)
        finally:
            self.stream.end(self._follower.ended or "the tail failed")

    def _tick(self) -> None:
        """Count the events that were skipped because they arrived too fast."""
        skipped = self._follower.skipped
        self.stream.skip(skipped - self._skipped)
        self._skipped = skipped


def event_fields(event: LogEvent) -> dict[str, Any]:
    """Return an event as a JSON value."""
    return {
        "time": event.time,
        "level": event.level,
        "event": event.event,
        "fields": dict(event.fields),
    }


_LEVEL: Final = Field("string", "the lowest level to log", required=True, choices=LOG_LEVELS)
# fmt: off
ROUTES: Final = (
    Route("GET", "/log/level", "getLogLevel", Role.VIEWER, "Get the level of the log", level, ref("LogLevel"),
          errors=(409,)),
    Route("PUT", "/log/level", "setLogLevel", Role.ADMIN,
          "Change the level of the log until the next reload or restart", set_level, ref("LogLevel"),
          body={"level": _LEVEL}, change=True, errors=(409,)),
    Route("GET", "/log/tail", "tailLog", Role.OPERATOR, "Follow the log", tail,
          {"type": "string", "description": "the events `log` (a LogEvent), `skipped` (how many) and `end`"},
          query={"level": Field("string", "only events of at least this level", default="debug", choices=LOG_LEVELS),
                 "event": Field("string", "only events whose names begin with this", default="", maximum=200),
                 "recent": Field("integer", "begin with this many events before", default=0, minimum=0, maximum=500)},
          change=True, errors=(409, 503), streams=True),
)
# fmt: on
