"""The values of a rule's variables."""

from collections.abc import Iterable, Mapping
from typing import Any

from hookmq.rules.rule import CLIENT_ID, USER
from hookmq.types import ClientInfo


def rule_values(client: ClientInfo, variables: Iterable[str]) -> dict[str, str]:
    """The values of `variables` (`Rules.variables`) for a client; one without a value is left out.

    ``%u`` is who the client was found to be (`ClientInfo.identity`), or the user name that it gave where nobody found
    out. ``${NAME}`` is the claim of that name; where there is none, the dots of ``${a.b}`` lead into nested claims.
    Strings and integers are values, nothing else is.
    """
    values: dict[str, str] = {}
    for name in variables:
        value: Any
        if name == USER:
            value = client.username if client.identity is None else client.identity
        elif name == CLIENT_ID:
            value = client.client_id
        else:
            value = claim(client.claims, name[2:-1])
        if type(value) is int:
            value = str(value)
        if isinstance(value, str):
            values[name] = value
    return values


def claim(claims: Mapping[str, Any], name: str) -> Any:
    """The claim `name`, or the one that its dots lead to (``realm_access.roles``); None where there is none."""
    found: Any = claims.get(name)
    if found is not None or "." not in name:
        return found
    found = claims
    for part in name.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(part)
    return found
