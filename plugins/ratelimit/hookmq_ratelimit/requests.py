"""Bans that other plugins request with ``broker.emit``: ``ratelimit.ban`` and ``ratelimit.unban``."""

from collections.abc import Mapping
from math import inf
from typing import Final, NamedTuple

BAN: Final = "ratelimit.ban"
UNBAN: Final = "ratelimit.unban"


class BanRequest(NamedTuple):
    """A client id to ban, and for how long."""

    client_id: str
    seconds: float
    reason: str


def ban_request(fields: Mapping[str, object]) -> BanRequest:
    """Return the request in the fields of a ``ratelimit.ban`` event. Raises ValueError if they are invalid."""
    _only(fields, "client_id", "seconds", "reason")
    seconds = fields.get("seconds")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < inf:
        raise ValueError(f"seconds is {seconds!r}: expected a number above 0")
    reason = fields.get("reason", "")
    if not isinstance(reason, str):
        raise ValueError(f"reason is {type(reason).__name__}: expected a string")
    return BanRequest(_client_id(fields), float(seconds), reason)


def unban_request(fields: Mapping[str, object]) -> str:
    """Return the client id in the fields of a ``ratelimit.unban`` event. Raises ValueError if they are invalid."""
    _only(fields, "client_id")
    return _client_id(fields)


def _client_id(fields: Mapping[str, object]) -> str:
    client_id = fields.get("client_id")
    if not isinstance(client_id, str) or not client_id:
        raise ValueError(f"client_id is {client_id!r}: expected a string that is not empty")
    return client_id


def _only(fields: Mapping[str, object], *known: str) -> None:
    unknown = sorted(set(fields) - set(known))
    if unknown:
        raise ValueError(f"unknown field {unknown[0]!r}: expected {', '.join(known)}")
