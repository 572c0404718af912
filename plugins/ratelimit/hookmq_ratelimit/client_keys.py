"""The names used to limit and ban clients."""

from hookmq.plugin import ClientInfo

from hookmq_ratelimit.addresses import short
from hookmq_ratelimit.bans import Key


def user_of(client: ClientInfo) -> str:
    """Return the identity of an accepted client, or its user name if no plugin gave it an identity."""
    return client.identity if client.identity is not None else client.username or ""


class ClientKeys:
    """Computes the ban keys of clients. `id` is the plugin id.

    Bans are looked up before a client is authenticated, by the user name in its CONNECT. A ban therefore uses that name
    only if it is the client's identity. Otherwise, a client with a token in the password could send another user's name
    and get that user banned.
    """

    __slots__ = ("_name",)

    def __init__(self, id: str) -> None:
        self._name = f"{id}.name"

    def note(self, client: ClientInfo) -> None:
        """Store the user name from CONNECT before any plugin changes it."""
        client.state[self._name] = client.username

    def vouched(self, client: ClientInfo) -> bool:
        """Return whether the user name in CONNECT is the client's identity."""
        return client.identity is None or client.identity == self._given(client)

    def user(self, client: ClientInfo) -> Key:
        """Return the key that bans the user of an accepted client."""
        if self.vouched(client):
            return ("user", short(self._given(client)), "")
        return ("identity", short(client.identity or ""), "")

    def client(self, client: ClientInfo) -> Key:
        """Return the key that bans an accepted client."""
        if self.vouched(client):
            return ("client", short(client.client_id), short(self._given(client)))
        return ("identity_client", short(client.client_id), short(client.identity or ""))

    def _given(self, client: ClientInfo) -> str:
        name = client.state.get(self._name, client.username)
        return str(name or "")
