"""Addresses as the configuration writes them, and who among the peers is a trusted proxy."""

import ipaddress
import re
from collections.abc import Iterable
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_AUTHORITY: Final = re.compile(r"(\[[^\[\]@/?#%\s]+\]|[^\[\]:@/?#%\s]+)(?::[0-9]{0,5})?")
EVERY: Final = "*"
"""The host that stands for every address of the machine, IPv4 and IPv6."""


def parse_bind(text: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``, ``[IPv6]:PORT`` or ``*:PORT``. Raises ValueError that says what is wrong."""
    host, colon, digits = text.rpartition(":")
    if not colon or not digits.isascii() or not digits.isdigit() or int(digits) > 65535:
        raise ValueError(f"expected HOST:PORT, [IPv6]:PORT or *:PORT, found {text!r}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise ValueError(f"{host!r} is no IPv6 address") from None
    elif ":" in host:
        raise ValueError(f"an IPv6 address stands in brackets: [{host}]:{digits}")
    return host or EVERY, int(digits)


def parse_address(text: str) -> Address | None:
    """An IP address, IPv4 in IPv6 as IPv4, without zone; None when it is none."""
    try:
        address = ipaddress.ip_address(text.strip().partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Networks such as ``10.0.0.0/8`` or single addresses. Raises ValueError that names the wrong one."""
    return tuple(ipaddress.ip_network(text) for text in texts)


def within(host: str, networks: Iterable[Network]) -> bool:
    """Whether `host` is an address in one of `networks`."""
    address = parse_address(host)
    return address is not None and any(address in network for network in networks)


def is_loopback(host: str) -> bool:
    """Whether `host` names this machine alone."""
    address = parse_address(host.strip("[]"))
    return host == "localhost" or (address is not None and address.is_loopback)


def bound_to_loopback(bind: str) -> bool:
    """Whether a listener bound there is reached from this machine alone; False for what is no HOST:PORT."""
    try:
        return is_loopback(parse_bind(bind)[0])
    except ValueError:
        return False


def host_of(authority: str) -> str:
    """Return the host of ``HOST:PORT`` as a URL or a Host header has it; '' if `authority` is not of that form."""
    found = _AUTHORITY.fullmatch(authority)
    return found[1] if found is not None else ""


def forwarded_for(host: str, headers: Iterable[str], trusted: tuple[Network, ...]) -> str:
    """The client's address behind trusted proxies: `host` when that is no trusted proxy, else the rightmost address of
    the X-Forwarded-For `headers` that is none. What stands left of it could have been written by the client."""
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
    """A socket's address as `parse_bind` reads it; a Unix socket's is its path."""
    if isinstance(address, tuple) and len(address) >= 2:
        return (
            f"[{address[0]}]:{address[1]}"
            if ":" in str(address[0])
            else f"{address[0]}:{address[1]}"
        )
    return str(address)
