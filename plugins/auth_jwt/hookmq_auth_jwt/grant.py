"""The permissions that a verified token grants to a client."""

from collections.abc import Mapping
from typing import Any, Final

from hookmq.plugin import Action, Allow, ClientInfo, Deny, Message
from hookmq_toolkit.claims import claim_text
from hookmq_toolkit.rules import Rules, rule_values

from hookmq_auth_jwt.template import CLIENT_ID, USERNAME

_ALLOW: Final = Allow()
_LOWERED: Final = tuple(Allow(max_qos=qos) for qos in range(3))
_DENY: Final = Deny(reason="not in the token's permissions")
NO_RULES: Final = Rules(())
"""Permissions that allow nothing."""


class Grant:
    """The permissions of one token. `key` is the fingerprint of the key that verified the token.

    If the token has no permissions, `rules` is None and other plugins decide.
    """

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
        """Return the verdict on an action, or None to abstain."""
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
        """Return the values of the rules' variables. Claims come from this token, not from `client.claims`. Another
        plugin may have accepted the client first and set those.
        """
        values = rule_values(client, rules.variables)
        for name in rules.variables:
            if not name.startswith("${"):
                continue
            inner = name[2:-1]
            found: str | None
            if inner == CLIENT_ID:
                found = client.client_id
            elif inner == USERNAME:
                found = client.username
            else:
                found = claim_text(self._claims, inner)
            if found is not None:
                values[name] = found
            else:
                values.pop(name, None)
        return values

    def __repr__(self) -> str:
        return f"Grant({self.identity!r})"


class Seat:
    """The plugin's state for one client.

    `grant` is None for a client without a token. `asked` is True until the client responds to a challenge.
    """

    __slots__ = ("asked", "grant")

    def __init__(self, grant: Grant | None = None) -> None:
        self.grant = grant
        self.asked = False
