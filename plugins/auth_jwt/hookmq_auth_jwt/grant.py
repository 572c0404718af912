"""What a verified token gives a client for as long as it is connected."""

from collections.abc import Mapping
from typing import Any, Final

from hookmq.plugin import Action, Allow, ClientInfo, Deny, Message, Rules, rule_values

from hookmq_auth_jwt.template import CLIENT_ID, USERNAME, find

_ALLOW: Final = Allow()
_LOWERED: Final = tuple(Allow(max_qos=qos) for qos in range(3))
_DENY: Final = Deny(reason="not in the token's permissions")
NO_RULES: Final = Rules(())
"""Permissions that permit nothing."""


class Grant:
    """One token's permissions. `rules` is None where the token has none and others decide; `key` is the fingerprint of
    the key that verified it."""

    __slots__ = ("_claims", "_values", "identity", "key", "rules")

    def __init__(
        self, identity: str, key: str, rules: Rules | None, claims: Mapping[str, Any]
    ) -> None:
        self.identity = identity
        self.key = key
        self.rules = rules
        self._claims = claims
        self._values: dict[str, str] | None = None

    def decide(
        self, client: ClientInfo, action: Action, topic: str, message: Message | None
    ) -> Allow | Deny | None:
        """May the client do that? None where others decide."""
        rules = self.rules
        if rules is None:
            return None
        values = self._values
        if values is None:
            values = self._values = self._valued(client, rules)
        qos, retain = (0, False) if message is None else (message.qos, message.retain)
        rule = rules.decide(action, topic, qos, retain, values)
        if rule is None or not rule.allow:
            return _DENY
        return _ALLOW if rule.qos is None else _LOWERED[rule.qos]

    def _valued(self, client: ClientInfo, rules: Rules) -> dict[str, str]:
        """The values of the rules' variables, the claims being those of this very token: `client.claims` may be those
        of another plugin that accepted the client first."""
        values = rule_values(client, rules.variables)
        for name in rules.variables:
            if not name.startswith("${"):
                continue
            inner = name[2:-1]
            found: Any
            if inner == CLIENT_ID:
                found = client.client_id
            elif inner == USERNAME:
                found = client.username
            else:
                found = find(self._claims, inner)
            if type(found) is int:
                found = str(found)
            if isinstance(found, str):
                values[name] = found
            else:
                values.pop(name, None)
        return values

    def __repr__(self) -> str:
        return f"Grant({self.identity!r})"


class Seat:
    """A plugin's scratch space with a client: its grant, None for a client that came in without a token; and whether it
    was asked for one by a challenge that it has not answered."""

    __slots__ = ("asked", "grant")

    def __init__(self, grant: Grant | None = None) -> None:
        self.grant = grant
        self.asked = False
