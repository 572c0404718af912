"""Look up the values of ``${...}`` in URLs, headers and bodies: the event's attributes, or fields of its payload."""

from collections.abc import Callable
from typing import Any, Final

from hookmq_toolkit.templates import Template, at_path, fill_header, fill_url, text_of

from hookmq_webhook.payloads import payload_value
from hookmq_webhook.queues import Numbered

LONGEST: Final = 8000
"""Maximum length of a URL or a header value, in characters. Servers refuse longer ones."""


class Unsendable(ValueError):
    """The event cannot be turned into a request. The error message contains no data from the event."""


def values_of(one: Numbered) -> Callable[[str], str]:
    """Return a function that looks up the value of a placeholder in the URL or a header.

    It raises Unsendable if the payload has no such field.
    """
    event = one.event
    known = {
        "type": event.type,
        "client": event.client or "",
        "topic": event.topic or "",
        "listener": event.listener,
        "id": one.id,
    }
    payload: list[Any] = []

    def value(name: str) -> str:
        if name in known:
            return known[name]
        if not payload:
            payload.append(payload_value(event))
        found = at_path(payload[0], name.split(".")[1:])
        if found is None:
            raise Unsendable(f"no value for ${{{name}}}")
        return text_of(found)

    return value


def filled_url(template: Template, value: Callable[[str], str]) -> str:
    """Return the URL with percent-encoded values. Raises Unsendable."""
    url = fill_url(template, value)
    if len(url) > LONGEST:
        raise Unsendable(f"the URL is longer than {LONGEST} characters")
    return url


def filled_header(name: str, template: Template, value: Callable[[str], str]) -> str:
    """Return the value of the header `name`. Raises Unsendable, for example if a value contains a line break."""
    try:
        text = fill_header(template, value)
    except Unsendable:
        raise
    except ValueError:
        raise Unsendable(f"a value contains control characters, in the header {name}") from None
    if len(text) > LONGEST:
        raise Unsendable(f"the header {name} is longer than {LONGEST} characters")
    return text
