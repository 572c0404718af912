"""Look up the values of a rule's variables."""

from collections.abc import Iterable

from hookmq.plugin import ClientInfo

from hookmq_toolkit.claims import claim_text
from hookmq_toolkit.rules.rule import CLIENT_ID, USER


def rule_values(client: ClientInfo, variables: Iterable[str]) -> dict[str, str]:
    """Return the values of `variables`, usually `Rules.variables`, for a client.

    ``%u`` is the client's identity, or its user name if no plugin gave it an identity. ``%c`` is its client id.
    ``${NAME}`` is a claim, as `hookmq_toolkit.claims` finds it. Variables without a value are left out. A claim has a
    value only if it is a string or an integer.
    """
    values: dict[str, str] = {}
    for name in variables:
        if name == USER:
            value = client.username if client.identity is None else client.identity
        elif name == CLIENT_ID:
            value = client.client_id
        else:
            value = claim_text(client.claims, name[2:-1])
        if value is not None:
            values[name] = value
    return values
