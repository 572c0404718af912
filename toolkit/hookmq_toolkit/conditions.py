"""Compare fields of JSON values with constants: ``payload.celsius > 30``.

A condition is ``FIELD OPERATOR VALUE``. The field is a path, such as ``payload.readings.0.celsius``. The value is JSON:
``30``, ``"open"``, ``true``, ``null`` or, after ``in`` and ``not in``, a list.

| operator | holds if the field |
|---|---|
| ``==``, ``!=`` | equals the value, or differs from it; a missing field equals ``null`` |
| ``<``, ``<=``, ``>``, ``>=`` | is less or greater: numbers are compared with numbers, and strings by code point |
| ``in``, ``not in`` | equals a value in the list, or equals none of them |

``true`` is not the number 1. A comparison of different types, such as a string with a number, does not hold.
"""

import json
import operator
import re
from collections.abc import Callable
from typing import Any, Final

from hookmq.plugin import ConfigError

from hookmq_toolkit.templates import at_path

_CONDITION: Final = re.compile(
    r"\s*([A-Za-z_][\w-]*(?:\.[\w-]+)*)\s*(==|!=|<=|>=|<|>|\bnot\s+in\b|\bin\b)\s*(\S.*?)\s*",
    re.ASCII | re.DOTALL,
)
_ORDER: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_HINT: Final = 'such as payload.celsius > 30, payload.state == "open" or payload.unit in ["C", "F"]'


class Condition:
    """A parsed condition. Raises ConfigError if `text` is not a valid condition. The message names the setting `key`."""

    __slots__ = ("_holds", "_steps", "root", "text")

    def __init__(self, text: str, key: str = "condition") -> None:
        self.text = text
        found = _CONDITION.fullmatch(text)
        if found is None:
            raise ConfigError(f"{key}: {text!r} is not a condition", hint=_HINT)
        self.root: str
        """The first part of the field's path."""
        self._steps: list[str]
        self.root, *self._steps = found[1].split(".")
        name = " ".join(found[2].split())
        try:
            value = json.loads(found[3], parse_constant=_refuse)
        except (ValueError, RecursionError):
            raise ConfigError(
                f"{key}: {text!r}: {found[3]!r} is not a JSON value",
                hint='write texts in double quotes: "open"',
            ) from None
        self._holds = _compiled(name, value, f"{key}: {text!r}")

    def __repr__(self) -> str:
        return f"Condition({self.text!r})"

    def holds(self, value: Any) -> bool:
        """Return whether the condition holds. `value` is what the first part of the field's path (`root`) names."""
        return self._holds(at_path(value, self._steps))


def _compiled(name: str, value: Any, what: str) -> Callable[[Any], bool]:
    if name in ("in", "not in"):
        if not isinstance(value, list) or not value:
            raise ConfigError(
                f"{what}: {name!r} needs a list with values", hint='such as ["C", "F"]'
            )
        wanted = name == "in"
        return lambda found: any(_equal(found, one) for one in value) is wanted
    if name in ("==", "!="):
        equal = name == "=="
        return lambda found: _equal(found, value) is equal
    kind = _kind(value)
    if kind not in (float, str):
        raise ConfigError(f"{what}: {name!r} needs a number or a text")
    compare = _ORDER[name]
    return lambda found: _kind(found) is kind and compare(found, value)


def _kind(value: Any) -> type:
    if isinstance(value, bool):
        return bool
    return float if isinstance(value, int | float) else type(value)


def _equal(found: Any, value: Any) -> bool:
    if _kind(found) is not _kind(value):
        return False
    if isinstance(value, list):
        return len(found) == len(value) and all(map(_equal, found, value))
    if isinstance(value, dict):
        return found.keys() == value.keys() and all(_equal(found[key], value[key]) for key in value)
    return bool(found == value)


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is not JSON")
