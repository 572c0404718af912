"""Render custom request bodies from JSON with ``${name}`` placeholders in its strings.

No value can change the structure of the JSON.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from hookmq.plugin import ConfigError
from hookmq_toolkit.templates import JsonTemplate, Template, at_path, check_names

from hookmq_webhook.catalog import CATALOG, OTHER, PAYLOAD
from hookmq_webhook.config import PAYLOAD_PLACE

NAMES: Final = frozenset(
    {"id", "source", "type", "time", "sequence", "epoch", "traceparent"}
    | {field.name for kind in (*CATALOG.values(), OTHER) for field in (*kind.fields, *PAYLOAD)}
)
"""Valid placeholder names: the attributes and fields of events."""


class Body:
    """A body template, parsed once. Raises ConfigError if `text` is not JSON or has an unknown placeholder.

    A string that consists of one placeholder is replaced by the value itself. If the event has no such value, the
    string becomes null. In a longer string, the value is inserted as text.
    """

    def __init__(self, text: str) -> None:
        try:
            template = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"body: not valid JSON: {error}") from None
        names = Template(text).names
        self._paths = {
            name: name.split(".")[1:]
            for name in names
            if "." in name and PAYLOAD_PLACE.fullmatch(name)
        }
        others = sorted(name for name in names if name not in self._paths)
        check_names(others, NAMES | {"payload.FIELD"}, "body")
        self._template = JsonTemplate(template)

    def render(self, values: Mapping[str, Any], payload: Callable[[], Any]) -> bytes:
        """Return the body for an event with these values. `payload` is a function that returns the event's payload as a
        JSON value.
        """
        paths = self._paths
        found = payload() if paths else None

        def value(name: str) -> Any:
            path = paths.get(name)
            return values.get(name) if path is None else at_path(found, path)

        made = self._template.fill(value)
        text = json.dumps(made, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return text.encode("utf-8", "replace")
