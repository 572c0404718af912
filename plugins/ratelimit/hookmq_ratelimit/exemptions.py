"""Clients that are not limited."""

import re
from fnmatch import translate

from hookmq.plugin import ClientInfo
from hookmq.server_api import parse_networks

from hookmq_ratelimit.addresses import contains
from hookmq_ratelimit.client_keys import user_of
from hookmq_ratelimit.settings import Exempt


class Exemptions:
    """The exemptions of one configuration, compiled for fast lookup."""

    __slots__ = ("_client_ids", "_listeners", "_networks", "_users")

    def __init__(self, exempt: Exempt) -> None:
        self._listeners = exempt.listeners
        self._networks = parse_networks(exempt.networks)
        self._users = _pattern(exempt.users)
        self._client_ids = _pattern(exempt.client_ids)

    def unauthenticated(self, client: ClientInfo) -> str:
        """Return the listener or address that exempts a client from all limits, or '' if neither does."""
        if client.listener in self._listeners:
            return f"listener {client.listener}"
        if self._networks and contains(self._networks, client.peer.host):
            return f"address {client.peer.host}"
        return ""

    def accepted(self, client: ClientInfo) -> str:
        """Return why an accepted client is exempt, or '' if it is not exempt."""
        user = user_of(client)
        if user and self._users is not None and self._users.match(user):
            return f"user {user}"
        if self._client_ids is not None and self._client_ids.match(client.client_id):
            return f"client id {client.client_id}"
        return self.unauthenticated(client)


def _pattern(names: tuple[str, ...]) -> re.Pattern[str] | None:
    if not names:
        return None
    # `*` is the only wildcard. The shell's other wildcards can be part of names.
    return re.compile("|".join(translate(re.sub(r"([?\[])", r"[\1]", name)) for name in names))
