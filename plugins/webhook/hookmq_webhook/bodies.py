"""A body of the operator's own: a JSON text whose strings hold ``${name}``. Values are put into the parsed text, so that
none can change its shape."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from hookmq.plugin import ConfigError

from hookmq_webhook.catalog import CATALOG, OTHER, PAYLOAD

_PLACE: Final = re.compile(r"\$\{([^{}]*)\}")
NAMES: Final = frozenset(
    {"id", "source", "type", "time", "sequence", "epoch", "traceparent"}
    | {field.name for kind in (*CATALOG.values(), OTHER) for field in (*kind.fields, *PAYLOAD)}
)
"""What ``${...}`` may name: attributes and fields."""
Made = Callable[[Mapping[str, Any]], Any]


class Body:
    """Compiled once. A string that is one placeholder becomes the value itself, null where there is none; within a text
    it is the value as text, or nothing. Raises ConfigError."""

    def __init__(self, text: str) -> None:
        try:
            template = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"body: not JSON: {error}") from None
        for name in sorted(set(_PLACE.findall(text)) - NAMES):
            raise ConfigError(
                f"body: there is no ${{{name}}}", hint="known: " + ", ".join(sorted(NAMES))
            )
        self._make = _compiled(template)

    def render(self, values: Mapping[str, Any]) -> bytes:
        """The body of an event with these values."""
        made = self._make(values)
        text = json.dumps(made, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return text.encode("utf-8", "replace")


def _compiled(template: Any) -> Made:
    if isinstance(template, str):
        return _text(template)
    if isinstance(template, list):
        items = [_compiled(one) for one in template]
        return lambda values: [make(values) for make in items]
    if isinstance(template, dict):
        members = {key: _compiled(one) for key, one in template.items()}
        return lambda values: {key: make(values) for key, make in members.items()}
    return lambda values: template


def _text(template: str) -> Made:
    whole = _PLACE.fullmatch(template)
    if whole is not None:
        name = whole[1]
        return lambda values: values.get(name)
    return lambda values: _PLACE.sub(lambda match: _word(values.get(match[1])), template)


def _word(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)
