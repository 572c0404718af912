"""Compute the keys of buckets: the networks to which addresses belong, and names of limited length."""

from functools import lru_cache
from hashlib import sha256
from typing import Final

from hookmq.server_api import Network, parse_address

LONGEST: Final = 128
"""Maximum length of a name in a key. A client can send a name of up to 65,535 bytes."""


def short(name: str) -> str:
    """Return `name`. If it is long, return its beginning and a digest instead.

    With keys of limited length, a limit on the number of keys also limits memory.
    """
    if len(name) <= LONGEST:
        return name
    digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{name[: LONGEST - 65]}\u2026{digest}"


@lru_cache(4096)
def network_of(host: str, ipv4_prefix: int, ipv6_prefix: int) -> str:
    """Return the network that an address is counted under. A host that is not an IP address is returned unchanged."""
    address = parse_address(host)
    if address is None:
        return host
    bits = ipv4_prefix if address.version == 4 else ipv6_prefix
    width = address.max_prefixlen
    if bits == width:
        return str(address)
    first = int(address) >> (width - bits) << (width - bits)
    return f"{type(address)(first)}/{bits}"


def contains(networks: tuple[Network, ...], host: str) -> bool:
    """Return whether an address is in one of the networks."""
    address = parse_address(host)
    return address is not None and any(address in network for network in networks)
