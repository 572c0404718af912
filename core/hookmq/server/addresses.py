"""Parse and compare addresses, and find the address of a client behind trusted proxies."""

import ipaddress
import re
from collections.abc import Iterable
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
"""An IP address of either version."""
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
"""An IP network of either version."""
_AUTHORITY: Final = re.compile(r"(\[[^\[\]@/?#%\s]+\]|[^\[\]:@/?#%\s]+)(?::[0-9]{0,5})?")
EVERY: Final = "*"
"""The host that means all of this machine's addresses, IPv4 and IPv6."""


def parse_bind(text: str) -> tuple[str, int]:
    """Parse ``HOST:PORT``, ``[IPv6]:PORT`` or ``*:PORT`` into host and port. Raises ValueError with the reason."""
    host, colon, digits = text.rpartition(":")
    if not colon or not digits.isascii() or not digits.isdigit() or int(digits) > 65535:
        raise ValueError(f"expected HOST:PORT, [IPv6]:PORT or *:PORT, found {text!r}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise ValueError(f"{host!r} is not an IPv6 address") from None
    elif ":" in host:
        raise ValueError(f"an IPv6 address needs brackets: [{host}]:{digits}")
    return host or EVERY, int(digits)


def parse_address(text: str) -> Address | None:
    """Parse an IP address. Drop an IPv6 zone, and convert IPv4-mapped IPv6 to IPv4. Return None for other text."""
    try:
        address = ipaddress.ip_address(text.strip().partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Parse networks such as ``10.0.0.0/8`` or single addresses. Raises ValueError naming the first invalid one."""
    return tuple(ipaddress.ip_network(text) for text in texts)


def within(host: str, networks: Iterable[Network]) -> bool:
    """Return whether `host` is an address in one of `networks`."""
    address = parse_address(host)
    return address is not None and any(address in network for network in networks)


def is_loopback(host: str) -> bool:
    """Return whether `host` is a loopback address or ``localhost``."""
    address = parse_address(host.strip("[]"))
    return host == "localhost" or (address is not None and address.is_loopback)


def bound_to_loopback(bind: str) -> bool:
    """Return whether only this machine can reach a listener with this ``bind``. Return False if
    `bind` is not HOST:PORT.
    """
    try:
        return is_loopback(parse_bind(bind)[0])
    except ValueError:
        return False


def host_of(authority: str) -> str:
    """Return the host from ``HOST[:PORT]`` in a URL or Host header, or '' if `authority` has
    another form.
    """
    found = _AUTHORITY.fullmatch(authority)
    return found[1] if found is not None else ""


def forwarded_for(host: str, headers: Iterable[str], trusted: tuple[Network, ...]) -> str:
    """Return the address of the client behind trusted proxies.

    If `host` is not a trusted proxy, return `host`. Otherwise, return the rightmost address in the X-Forwarded-For
    `headers` that is not a trusted proxy. The client could have forged the addresses to its left.
    """
    if not trusted or not within(host, trusted):
        return host
    hops = [hop for header in headers for hop in header.split(",") if hop.strip()]
    for hop in reversed(hops):
        address = parse_address(_without_port(hop.strip()))
        if address is None:
            break
        host = str(address)
        if not within(host, trusted):
            break
    return host


def _without_port(hop: str) -> str:
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    return hop.partition(":")[0] if hop.count(":") == 1 else hop


def format_address(address: object) -> str:
    """Return a socket address as text that `parse_bind` accepts; for a Unix socket, return its path."""
    if isinstance(address, tuple) and len(address) >= 2:
        host = f"[{address[0]}]" if ":" in str(address[0]) else address[0]
        return f"{host}:{address[1]}"
    return str(address)
