"""Templates of requests: ``${name}`` in URLs, headers and bodies.

A value never changes the shape of what it is put into: in a URL it is percent-encoded, a header takes no line ends, and a
body is made of values, not of text.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

from hookmq.plugin import Action, ClientInfo, ConfigError
from hookmq.rules import claim

Value = str | int | bool | None
Values = Mapping[str, Value]

_PLACE: Final = re.compile(r"\$\{([^{}]*)\}")
CONNECT_NAMES: Final = frozenset(
    {
        "clientid", "username", "password", "peerhost", "peerport", "transport", "listener", "version", "clean_start",
        "keep_alive", "cert_common_name", "cert_subject", "cert_fingerprint",
    }
)  # fmt: skip
AUTHORIZE_NAMES: Final = (CONNECT_NAMES - {"password", "clean_start", "keep_alive"}) | {
    "identity", "action", "topic", "qos", "retain", "share", "access",
}  # fmt: skip
CLAIM: Final = "claim."
ACCESS: Final = {Action.SUBSCRIBE: 4, Action.PUBLISH: 2, Action.WILL: 2, Action.DELIVER: 1}
"""mosquitto's numbers of what is asked for."""


def check(text: str, known: frozenset[str], where: str) -> None:
    """Raise ConfigError for a name that there is not."""
    for name in _PLACE.findall(text):
        if name not in known and not (name.startswith(CLAIM) and "action" in known):
            raise ConfigError(
                f"{where}: there is no ${{{name}}}", hint="known: " + ", ".join(sorted(known))
            )


def url(template: str, values: Values) -> str:
    """The URL, each value percent-encoded as a whole."""
    return _PLACE.sub(lambda m: quote(_text(values.get(m[1])), safe=""), template)


def header(template: str, values: Values) -> str:
    """A header's value. Raises ValueError when a value would end the line."""
    made = _PLACE.sub(lambda m: _text(values.get(m[1])), template)
    if any(ord(c) < 32 or ord(c) == 127 for c in made):
        raise ValueError("a control character in a header")
    return made


def body(template: Mapping[str, str], values: Values) -> dict[str, Value]:
    """The members of a body. A template that is one placeholder gives the value itself, with its type."""
    made: dict[str, Value] = {}
    for key, text in template.items():
        whole = _PLACE.fullmatch(text)
        if whole:
            made[key] = values.get(whole[1])
        else:
            made[key] = _PLACE.sub(lambda m: _text(values.get(m[1])), text)
    return made


def encode(members: Mapping[str, Value], form: bool) -> bytes:
    """A body as JSON, or as a form."""
    if form:
        return urlencode({key: _text(value) for key, value in members.items()}).encode()
    return json.dumps(members, ensure_ascii=False, separators=(",", ":")).encode()


def client_values(client: ClientInfo) -> dict[str, Value]:
    """What is known of a client."""
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


class ClaimValues(dict[str, Value]):
    """Values, with the claims behind them as ``claim.NAME``."""

    def __init__(self, values: Values, claims: Mapping[str, Any]) -> None:
        super().__init__(values)
        self._claims = claims

    def get(self, key: str, default: Any = None) -> Any:
        """A claim that is no text, number or boolean counts as none."""
        if key.startswith(CLAIM):
            found = claim(self._claims, key[len(CLAIM) :])
            return found if isinstance(found, str | int) else default
        return super().get(key, default)


def _text(value: Value) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
