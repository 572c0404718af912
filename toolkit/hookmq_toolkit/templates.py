"""Fill ``${name}`` placeholders in settings, such as text, URLs, headers and JSON bodies.

A value cannot change the structure of the surrounding text. `fill_url` percent-encodes each value, `fill_header`
refuses line ends, and `JsonTemplate` puts values into parsed JSON. Parse templates once, when the configuration is
loaded.

A value function takes a placeholder's name and returns its value. Names are not checked here: pass `Template.names` to
`check_names` when the configuration is loaded.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, overload
from urllib.parse import quote

from hookmq.plugin import ConfigError

_PLACEHOLDER: Final = re.compile(r"\$\{([^{}]*)\}")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


class Template:
    """Parsed text with placeholders. `text` is the original text."""

    __slots__ = ("_pieces", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        # literal, name, literal, name, ..., literal
        self._pieces = _PLACEHOLDER.split(text)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the placeholders, in order."""
        return tuple(self._pieces[1::2])

    @property
    def only(self) -> str | None:
        """The placeholder's name if the text consists of exactly one placeholder, otherwise None."""
        pieces = self._pieces
        return pieces[1] if len(pieces) == 3 and not pieces[0] and not pieces[2] else None

    @property
    def unclosed(self) -> bool:
        """True if the text contains a ``${`` that does not begin a placeholder."""
        return any("${" in literal for literal in self._pieces[::2])

    @overload
    def fill(self, value: Callable[[str], str]) -> str: ...
    @overload
    def fill(self, value: Callable[[str], str | None]) -> str | None: ...
    def fill(self, value: Callable[[str], str | None]) -> str | None:
        """Return the text with each placeholder replaced by its value, or None if any value is None."""
        pieces = self._pieces
        if len(pieces) == 1:
            return self.text
        filled = list(pieces)
        for index in range(1, len(pieces), 2):
            text = value(pieces[index])
            if text is None:
                return None
            filled[index] = text
        return "".join(filled)


class JsonTemplate:
    """A parsed JSON value whose strings contain placeholders. Keys remain unchanged.

    A string that consists of one placeholder becomes the value itself, with its type. Within a longer string, the value
    is converted to text by `text_of`.
    """

    __slots__ = ("_make", "names")

    def __init__(self, template: Any) -> None:
        names: list[str] = []
        self._make = _compiled(template, names)
        self.names: tuple[str, ...] = tuple(names)
        """The names of the placeholders, in order."""

    def fill(self, value: Callable[[str], Any]) -> Any:
        """Return the JSON value with each placeholder replaced by its value."""
        return self._make(value)


_Make = Callable[[Callable[[str], Any]], Any]


def _compiled(template: Any, names: list[str]) -> _Make:
    if isinstance(template, str):
        return _compiled_text(Template(template), names)
    if isinstance(template, list | tuple):
        items = [_compiled(one, names) for one in template]
        return lambda value: [make(value) for make in items]
    if isinstance(template, dict):
        members = {key: _compiled(one, names) for key, one in template.items()}
        return lambda value: {key: make(value) for key, make in members.items()}
    return lambda value: template


def _compiled_text(template: Template, names: list[str]) -> _Make:
    names += template.names
    only = template.only
    if only is not None:
        return lambda value: value(only)

    def make(value: Callable[[str], Any]) -> str:
        def text(name: str) -> str:
            return text_of(value(name))

        return template.fill(text)

    return make


def text_of(value: Any) -> str:
    """Return a JSON value as text: a string unchanged, None as an empty string, anything else as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def fill_url(template: Template, value: Callable[[str], str]) -> str:
    """Return the URL with each value percent-encoded as a whole.

    No value can change the request's destination: slashes are encoded, as are the dots of a value made up only of dots.
    """

    def encoded(name: str) -> str:
        text = value(name)
        return quote(text, safe="") if text.strip(".") else "%2E" * len(text)

    return template.fill(encoded)


def fill_header(template: Template, value: Callable[[str], str]) -> str:
    """Return the filled HTTP header value. Raise ValueError if it would contain a control character."""
    text = template.fill(value)
    if _CONTROL.search(text):
        raise ValueError("a header must not contain control characters")
    return text


def at_path(value: Any, steps: Sequence[str]) -> Any:
    """Return the part of a JSON value that `steps` lead to, such as ``["readings", "0", "celsius"]``, or None if there is
    none. A number is the index of a list's item."""
    for step in steps:
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, list) and step.isascii() and step.isdigit() and len(step) < 10:
            value = value[int(step)] if int(step) < len(value) else None
        else:
            return None
    return value


def check_names(names: Iterable[str], known: Iterable[str], key: str) -> None:
    """Raise ConfigError if one of `names` is not among `known`. `key` names the setting in the message."""
    allowed = set(known)
    for name in names:
        if name not in allowed:
            hint = "known: " + ", ".join(sorted(allowed))
            raise ConfigError(f"{key}: unknown placeholder ${{{name}}}", hint=hint)
