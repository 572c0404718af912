"""The route for other plugins' streams; see `hookmq_toolkit.streams`."""

import asyncio
import math
from typing import Any, Final

from hookmq.plugin import PluginError
from hookmq_toolkit.streams import SERVICE, StreamOwner, StreamStatus

from hookmq_admin.schemas import TEXT, listed, record, ref
from hookmq_admin.services import Call, Route
from hookmq_admin.tokens import Role

PATIENCE: Final = 5.0
"""Maximum number of seconds that a plugin may take to list its streams."""
MAX_ROWS: Final = 2000
"""Maximum number of streams and consumers per plugin in a response."""
MAX_PARTITIONS: Final = 256
"""Maximum number of partitions of a stream in a response."""
MAX_TEXT: Final = 512
"""Maximum number of characters in a name or an error."""


async def streams(call: Call) -> Any:
    """Return the streams, grouped by plugin in configuration order.

    If a plugin fails, responds too late or has too many streams, the other plugins' streams are still listed. The
    plugin's `failed` gives the reason.
    """
    asked = {
        plugin: asyncio.ensure_future(_Rows(plugin).read(owner))
        for plugin, owner in call.broker.services(SERVICE).items()
        if isinstance(owner, StreamOwner)
    }
    try:
        if asked:
            await asyncio.wait(asked.values(), timeout=PATIENCE)
    finally:
        for one in asked.values():
            one.cancel()  # does nothing if it is done
    items: list[dict[str, Any]] = []
    failed: list[dict[str, str]] = []
    for plugin, one in asked.items():
        rows, error = _result(one)
        items += rows
        if error:
            failed.append({"plugin": plugin, "error": error[:MAX_TEXT]})
    return {"items": items, "failed": failed}


def _result(asked: "asyncio.Future[_Rows]") -> tuple[list[dict[str, Any]], str]:
    """Return the streams that a plugin listed. If any are missing, also return the reason."""
    if not asked.done():
        return [], f"no answer within {PATIENCE:g} s"
    if asked.cancelled():
        return [], "the plugin has canceled the request"
    error = asked.exception()
    if error is None:
        found = asked.result()
        return found.items, f"only the first {MAX_ROWS} rows are listed" if found.full else ""
    # The text of any other error may contain the value of a secret.
    return [], error.message if isinstance(error, PluginError) else type(error).__name__


class _Rows:
    """One plugin's streams and their consumers, `MAX_ROWS` rows at most."""

    def __init__(self, plugin: str) -> None:
        self.items: list[dict[str, Any]] = []
        self.full = False
        self._plugin = plugin
        self._left = MAX_ROWS

    async def read(self, owner: StreamOwner) -> "_Rows":
        """Read the plugin's streams, and return self. Raises the plugin's own exception, or an error for an invalid
        value.
        """
        for one in await owner.list_streams():
            if not self._take():
                break
            self.items.append(self._shown(one))
        return self

    def _take(self) -> bool:
        """Count a row. Return False if it exceeds the limit."""
        self.full = self._left == 0
        self._left = max(self._left - 1, 0)
        return not self.full

    def _shown(self, one: StreamStatus) -> dict[str, Any]:
        consumers: list[dict[str, Any]] = []
        for consumer in one.consumers:
            if not self._take():
                break
            committed_at = _seconds(consumer.committed_at)
            consumers.append(
                {
                    "name": _text(consumer.name),
                    "lag": int(consumer.lag),
                    "committed_at": committed_at,
                    "lag_seconds": _seconds(consumer.lag_seconds),
                    "declared": None if consumer.declared is None else bool(consumer.declared),
                    "dead_letters": (
                        None if consumer.dead_letters is None else int(consumer.dead_letters)
                    ),
                }
            )
        if one.kind not in ("log", "queue"):
            raise ValueError("kind")
        return {
            "plugin": self._plugin,
            "name": _text(one.name),
            "kind": one.kind,
            "messages": int(one.messages),
            "bytes": int(one.bytes),
            "oldest": _seconds(one.oldest),
            "consumers": consumers,
            "error": _text(one.error),
            "max_bytes": None if one.max_bytes is None else int(one.max_bytes),
            "full": bool(one.full),
            "refused": int(one.refused),
            "dropped": int(one.dropped),
            "partitions": [int(count) for count in one.partitions[:MAX_PARTITIONS]],
        }


def _text(value: str) -> str:
    if not isinstance(value, str):
        raise TypeError("text")
    return value if len(value) <= MAX_TEXT else value[: MAX_TEXT - 1] + "…"


def _seconds(value: float | None) -> float | None:
    """Return a value that JSON can represent. Infinity becomes None."""
    return value if value is None or math.isfinite(value) else None


# fmt: off
ROUTES: Final = (
    Route("GET", "/streams", "listStreams", Role.VIEWER, "List the streams of plugins", streams,
          record(items=listed(ref("Stream")), failed=listed(record(
              plugin=TEXT, error={"type": "string", "description": "why its streams, or some of them, are missing"})))),
)
# fmt: on
