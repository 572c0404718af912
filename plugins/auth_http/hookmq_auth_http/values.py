"""Provide the values of ``${name}`` placeholders in requests, and check their names."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from hookmq.plugin import Action, ClientInfo, Message, Subscription
from hookmq_toolkit.claims import find_claim
from hookmq_toolkit.templates import check_names, text_of

Value = str | int | bool | None

CONNECT_NAMES: Final = frozenset(
    {
        "clientid", "username", "password", "peerhost", "peerport", "transport", "listener", "version", "clean_start",
        "keep_alive", "cert_common_name", "cert_subject", "cert_fingerprint",
    }
)  # fmt: skip
"""Placeholder names for `authenticate`."""
SUPERUSER_NAMES: Final = CONNECT_NAMES - {"password"}
"""Placeholder names for `superuser`."""
AUTHORIZE_NAMES: Final = (CONNECT_NAMES - {"password", "clean_start", "keep_alive"}) | {
    "identity", "action", "topic", "qos", "retain", "share", "access",
}  # fmt: skip
"""Placeholder names for `authorize`, which also accepts ``claim.NAME``."""
CLAIM: Final = "claim."
ACCESS: Final = {Action.SUBSCRIBE: 4, Action.PUBLISH: 2, Action.WILL: 2, Action.DELIVER: 1}
"""The numbers that Mosquitto plugins use for actions."""


def check_placeholders(names: Iterable[str], known: frozenset[str], key: str) -> None:
    """Raise ConfigError if any of the placeholders in `names` is not valid in the setting `key`."""
    claims = known is AUTHORIZE_NAMES
    check_names((one for one in names if not (claims and one.startswith(CLAIM))), known, key)


class Values:
    """Placeholder values by name. ``claim.NAME`` looks up NAME in `claims`.

    Only claims that are strings, integers or booleans have a value.
    """

    __slots__ = ("_claims", "_known")

    def __init__(self, known: Mapping[str, Value], claims: Mapping[str, Any]) -> None:
        self._known = known
        self._claims = claims

    def value(self, name: str) -> Value:
        """Return the value of a placeholder, or None if the client has no such value."""
        if name.startswith(CLAIM):
            found = find_claim(self._claims, name[len(CLAIM) :])
            return found if isinstance(found, str | int) else None
        return self._known.get(name)

    def text(self, name: str) -> str:
        """Return the value of a placeholder as text. None becomes an empty string."""
        return text_of(self.value(name))


def connect_values(client: ClientInfo, password: str) -> Values:
    """Return the placeholder values for a CONNECT."""
    return Values({**_client_values(client), "password": password}, {})


def authorize_values(
    client: ClientInfo,
    action: Action,
    topic: str,
    message: Message | None,
    wanted: Subscription | None,
) -> Values:
    """Return the placeholder values for an action, including the client's claims. A will counts as a publish."""
    return Values(
        {
            **_client_values(client),
            "action": "publish" if action is Action.WILL else action.value,
            "topic": topic,
            "qos": message.qos if message is not None else wanted.qos if wanted is not None else 0,
            "retain": message.retain if message is not None else False,
            "share": (wanted.share or "") if wanted is not None else "",
            "access": ACCESS[action],
        },
        client.claims,
    )


def _client_values(client: ClientInfo) -> dict[str, Value]:
    certificate = client.peer.certificate
    return {
        "clientid": client.client_id,
        "username": client.username or "",
        "peerhost": client.peer.host,
        "peerport": client.peer.port,
        "transport": client.peer.transport,
        "listener": client.listener,
        "version": client.version,
        "clean_start": client.clean_start,
        "keep_alive": client.keep_alive,
        "cert_common_name": certificate.common_name if certificate else "",
        "cert_subject": certificate.subject if certificate else "",
        "cert_fingerprint": certificate.fingerprint if certificate else "",
        "identity": client.identity or "",
    }
