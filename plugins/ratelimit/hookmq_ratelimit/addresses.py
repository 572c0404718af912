"""What keys are made of: addresses that count as one, and names that are not too long to be kept."""

from functools import lru_cache
from hashlib import sha256
from typing import Final

from hookmq.server.addresses import Network, parse_address

LONGEST: Final = 128
"""Characters of a name that are kept; a client may choose one of 65,535 bytes."""


def short(name: str) -> str:
    """`name`, or the beginning of it and a digest where it is long: memory is bounded by a count of keys."""
    if len(name) <= LONGEST:
        return name
    digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{name[: LONGEST - 65]}\u2026{digest}"


@lru_cache(4096)
def network_of(host: str, ipv4_prefix: int, ipv6_prefix: int) -> str:
    """The network that an address counts as, as text; what is no address (a Unix socket) counts as itself."""
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
    """Whether an address lies in one of the networks."""
    address = parse_address(host)
    return address is not None and any(address in network for network in networks)
