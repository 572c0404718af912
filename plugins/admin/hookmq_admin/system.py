"""Routes for the whole broker: overview, metrics, listeners, plugins and the configuration."""

from functools import cache
from typing import Any, Final

from hookmq.plugin import PluginError, ReloadReport
from importlib_metadata import version

from hookmq_admin import shown
from hookmq_admin.errors import ApiError
from hookmq_admin.fields import Field
from hookmq_admin.history import SERIES, dropped
from hookmq_admin.preconditions import tag_of
from hookmq_admin.schemas import NUMBER, TEXT, listed, mapped, record, ref
from hookmq_admin.services import Call, Route
from hookmq_admin.tokens import Role

MAX_SAMPLES: Final = 20_000


@cache
def broker_version() -> str:
    """Return the broker's version. The first call reads files, which takes a millisecond or more."""
    return version("hookmq")


def _check_names(text: str) -> None:
    unknown = [name for name in text.split(",") if name and name not in SERIES]
    if unknown:
        raise ValueError(f"unknown series {unknown[0][:80]!r}; expected {', '.join(SERIES)}")


async def health(call: Call) -> Any:
    """Report that the broker is working."""
    return {"status": "ok"}


async def overview(call: Call) -> Any:
    """Return the broker's most important figures."""
    services, broker = call.services, call.broker
    counters = broker.counters()
    now = broker.time()
    figures = ("connections", "sessions", "subscriptions", "retained_messages", "queue_bytes")
    return {
        "version": broker_version(),
        "time": now,
        "started_at": services.started_at,
        "uptime": now - services.started_at,
        **{name: int(counters.get(name, 0)) for name in figures},
        "rates": services.history.rates(),
        "dropped": dropped(counters),
        "loop_lag": services.history.lag,
        "latency": services.history.latency(),
    }


async def counters(call: Call) -> Any:
    """Return the core's metrics."""
    return {"counters": dict(call.broker.counters())}


async def history(call: Call) -> Any:
    """Return samples of the metrics."""
    given = call.arguments
    wanted = tuple(name for name in given["series"].split(",") if name) or SERIES
    found = call.services.history
    times, series = found.samples(given["since"], given["limit"], wanted)
    return {"interval": found.interval, "times": times, "series": series}


async def listeners(call: Call) -> Any:
    """Return the listeners."""
    return {"items": [shown.listener(one) for one in call.broker.listeners()]}


async def plugins(call: Call) -> Any:
    """Return the plugins with their hooks' counters."""
    return {"items": [shown.plugin(one) for one in call.broker.plugins()]}


def tag(call: Call) -> str:
    """Return the configuration's entity tag, which does not depend on secrets."""
    return tag_of([call.broker.configuration()])


async def configuration(call: Call) -> Any:
    """Return the configuration without secrets."""
    return {"yaml": call.broker.configuration()}


async def reload(call: Call) -> Any:
    """Reload the configuration, and return what changed."""
    try:
        report = await call.broker.reload()
    except PluginError as error:
        raise ApiError(409, error.message) from None
    return _report(report)


async def check(call: Call) -> Any:
    """Return the mistakes in a configuration document, or the changes that reloading it would make."""
    try:
        found = await call.broker.check_configuration(call.arguments["yaml"])
    except PluginError as error:
        raise ApiError(409, error.message) from None
    mistakes = [
        {"message": one.message, "line": one.line, "column": one.column, "hint": one.hint}
        for one in found.mistakes
    ]
    changes = None if found.changes is None else _report(found.changes)
    return {"valid": not mistakes, "mistakes": mistakes, "changes": changes}


def _report(report: ReloadReport) -> Any:
    parts = {"applied": report.applied, "needs_restart": report.restart}
    return {
        name: [{"path": one.path, "old": one.old, "new": one.new} for one in changes]
        for name, changes in parts.items()
    }


_V, _A = Role.VIEWER, Role.ADMIN
# fmt: off
ROUTES: Final = (
    Route("GET", "/health", "getHealth", _V, "Check that the broker works", health, record(status=TEXT)),
    Route("GET", "/overview", "getOverview", _V, "Get the most important figures", overview, ref("Overview")),
    Route("GET", "/counters", "getCounters", _V, "Get the metrics of the core", counters,
          record(counters=mapped(NUMBER))),
    Route("GET", "/history", "getHistory", _V, "Get samples of the metrics, the oldest first", history, ref("History"),
          query={"since": Field("number", "only samples after this time", default=0),
                 "limit": Field("integer", "most samples", default=360, minimum=1, maximum=MAX_SAMPLES),
                 "series": Field("string", "names with commas; all by default", default="", check=_check_names)}),
    Route("GET", "/listeners", "listListeners", _V, "List the listeners", listeners,
          record(items=listed(ref("Listener")))),
    Route("GET", "/plugins", "listPlugins", _V, "List the plugins with the counters of their hooks", plugins,
          record(items=listed(ref("Plugin")))),
    Route("GET", "/configuration", "getConfiguration", _A, "Get the configuration without secrets", configuration,
          record(yaml=TEXT), tag=tag),
    Route("POST", "/configuration/reload", "reloadConfiguration", _A, "Reload the configuration", reload,
          ref("Reload"), change=True, errors=(409,), tag=tag),
    Route("POST", "/configuration/check", "checkConfiguration", _A,
          "Check a configuration document, and compare it with the configuration in force", check, ref("ConfigCheck"),
          body={"yaml": Field("string", "the document", required=True)}, change=True,
          hidden=("yaml",), errors=(409,)),
)
# fmt: on
