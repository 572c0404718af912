"""Define conditions on clients, and collect the facts to compare them with."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any, Final

from hookmq.plugin import ClientInfo
from hookmq_toolkit.claims import find_claim

Network = IPv4Network | IPv6Network
Key = tuple[str, ...] | tuple[str, int, int, int]
"""One fact about a client, such as ``("user", "ann")``, ``("claim", "role", "admin")`` or ``("ip", 4, 8, 10 << 24)``."""

GROUPS: Final = "groups"
"""Name of the claim that lists a client's groups. The file can assign more groups to a user."""
CERTIFICATE_FIELDS: Final = ("common_name", "fingerprint", "san")


@dataclass(frozen=True, slots=True)
class Who:
    """Conditions on a client. The client must meet all conditions, each with at least one of its values.

    Without conditions, every client matches. `claims` and `certificate` contain pairs of (name, values).
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
        """Yield each condition as a list of keys, most selective condition first. The client must have one key from
        each list.
        """
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
    """Return the key of a network."""
    return ("ip", network.version, network.prefixlen, int(network.network_address))


def user_of(client: ClientInfo) -> str | None:
    """Return the client's identity, or its user name if no plugin gave it an identity."""
    return client.username if client.identity is None else client.identity


def _texts(found: Any) -> Iterator[str]:
    """Yield a claim's values as strings, spelled as in a rule file. Skip values that a rule file cannot contain."""
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
    """Return the facts about a client that a file's rules depend on.

    `groups` maps each user to the groups that the file assigns. `claims` contains the claims that the file names, and
    `prefixes` the IP version and prefix length of each network in the file.
    """
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
        keys.update(("claim", name, text) for text in _texts(find_claim(client.claims, name)))
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
    except ValueError:  # a Unix socket has no address
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
