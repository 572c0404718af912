"""Whom a rule is about, and what there is to know of a client."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any, Final

from hookmq.plugin import ClientInfo
from hookmq.rules import claim

Network = IPv4Network | IPv6Network
Key = tuple[str, ...] | tuple[str, int, int, int]
"""One thing that is true of a client: ``("user", "ann")``, ``("claim", "role", "admin")``, ``("ip", 4, 8, 10 << 24)``."""

GROUPS: Final = "groups"
"""The claim that tells a client's groups, beside those of the file."""
CERTIFICATE_FIELDS: Final = ("common_name", "fingerprint", "san")


@dataclass(frozen=True, slots=True)
class Who:
    """Conditions on a client: all that are given must hold, each for one of its values at least. None given: everybody.

    `claims` and `certificate` hold pairs of (name, values).
    """

    users: frozenset[str] | None = None
    anonymous: bool | None = None
    clients: frozenset[str] | None = None
    groups: frozenset[str] | None = None
    claims: tuple[tuple[str, frozenset[str]], ...] = ()
    certificate: tuple[tuple[str, frozenset[str]], ...] = ()
    networks: tuple[Network, ...] | None = None
    listeners: frozenset[str] | None = None

    def alternatives(self) -> Iterator[list[Key]]:
        """Each condition as the keys of which one must be true of the client; the most telling condition first."""
        if self.clients is not None:
            yield [("client", one) for one in self.clients]
        if self.users is not None:
            yield [("user", one) for one in self.users]
        for name, values in self.certificate:
            yield [("certificate", name, one) for one in values]
        for name, values in self.claims:
            yield [("claim", name, one) for one in values]
        if self.groups is not None:
            yield [("group", one) for one in self.groups]
        if self.networks is not None:
            yield [network_key(one) for one in self.networks]
        if self.anonymous is not None:
            yield [("anonymous", str(self.anonymous))]
        if self.listeners is not None:
            yield [("listener", one) for one in self.listeners]


EVERYBODY: Final = Who()


def network_key(network: Network) -> Key:
    """A network as a key."""
    return ("ip", network.version, network.prefixlen, int(network.network_address))


def user_of(client: ClientInfo) -> str | None:
    """Who the client was found to be, or the user name that it gave where nobody found out; None for nobody."""
    return client.username if client.identity is None else client.identity


def _texts(found: Any) -> Iterator[str]:
    """A claim's values as the file writes them; what no file can name is left out."""
    for value in found if isinstance(found, list | tuple | set | frozenset) else (found,):
        if isinstance(value, str):
            yield value
        elif isinstance(value, bool):
            yield "true" if value else "false"
        elif isinstance(value, int):
            yield str(value)


def keys_of(
    client: ClientInfo,
    groups: Mapping[str, tuple[str, ...]],
    claims: frozenset[str],
    prefixes: frozenset[tuple[int, int]],
) -> set[Key]:
    """Everything that is true of a client and that a file asks about: `groups` are those of each user, `claims` the
    names and `prefixes` the (IP version, length) of networks that it mentions."""
    user = user_of(client)
    keys: set[Key] = {
        ("client", client.client_id),
        ("listener", client.listener),
        ("anonymous", str(user is None)),
    }
    if user is not None:
        keys.add(("user", user))
        keys.update(("group", group) for group in groups.get(user, ()))
    keys.update(("group", group) for group in _texts(client.claims.get(GROUPS)))
    for name in claims:
        keys.update(("claim", name, text) for text in _texts(claim(client.claims, name)))
    certificate = client.peer.certificate
    if certificate is not None:
        if certificate.common_name:
            keys.add(("certificate", "common_name", certificate.common_name))
        if certificate.fingerprint:
            keys.add(("certificate", "fingerprint", certificate.fingerprint.lower()))
        keys.update(("certificate", "san", san) for san in certificate.sans)
    keys.update(_address_keys(client.peer.host, prefixes))
    return keys


def _address_keys(host: str, prefixes: frozenset[tuple[int, int]]) -> Iterator[Key]:
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:  # a Unix socket has none
        return
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    number = int(address)
    for version, length in prefixes:
        if version == address.version:
            yield (
                "ip",
                version,
                length,
                number >> (bits := address.max_prefixlen - length) << bits,
            )
