"""Look up claims by name.

The whole name is tried first. If no claim has that name, the dots in it separate the keys of nested objects, and longer
keys are tried first. `resource_access.my.app.roles` is therefore found in each of these objects:

    {"resource_access.my.app.roles": [...]}
    {"resource_access.my.app": {"roles": [...]}}
    {"resource_access": {"my.app": {"roles": [...]}}}
    {"resource_access": {"my": {"app": {"roles": [...]}}}}

If several match, the first in this order is used. Names that contain dots, such as `https://example.com/roles`, need no
quoting. A null claim counts as found, with the value None.
"""

from collections.abc import Mapping
from typing import Any, Final

MAX_DOTS: Final = 32
"""Names with more dots than this are looked up only as a whole."""
MISSING: Final = object()
"""The result of `find_claim` if no claim has the name."""


def find_claim(claims: Mapping[str, Any], name: str) -> Any:
    """Return the value of the claim `name`, or `MISSING`."""
    found = claims.get(name, MISSING)
    dots = name.count(".")
    if found is not MISSING or not dots or dots > MAX_DOTS:
        return found
    places: list[tuple[Mapping[str, Any], str]] = [(claims, name)]
    while places:
        inside, rest = places.pop()
        found = inside.get(rest, MISSING)
        if found is not MISSING:
            return found
        # The stack is last in, first out, so the longest name is pushed last.
        end = rest.find(".")
        while end >= 0:
            inner = inside.get(rest[:end])
            if isinstance(inner, Mapping):
                places.append((inner, rest[end + 1 :]))
            end = rest.find(".", end + 1)
    return MISSING


def claim_text(claims: Mapping[str, Any], name: str) -> str | None:
    """Return the claim `name` as text: a string, or an integer in decimal. Return None for anything else."""
    found = find_claim(claims, name)
    if type(found) is int:  # a boolean is not text
        return str(found)
    return found if isinstance(found, str) else None
