"""Check which hosts and addresses requests may be sent to.

Addresses are checked for each connection, after the host name is resolved.
"""

import ipaddress
import re
import socket
from collections.abc import Iterable, Sequence
from fnmatch import translate
from typing import Final

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from hookmq_webhook.config import DestinationConfig

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

REFUSED: Final = tuple(
    ipaddress.ip_network(text)
    for text in (
        "169.254.0.0/16",  # link-local; cloud metadata services use it, and return keys
        "fe80::/10",
        "fd00:ec2::/32",
        "100.100.100.200/32",
        "192.0.0.192/32",
        "168.63.129.16/32",
        "0.0.0.0/8",
        "::/128",
        "224.0.0.0/4",
        "255.255.255.255/32",
        "ff00::/8",
    )
)
"""Networks that are refused by default. `allow_networks` replaces this list."""
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_6TO4: Final = ipaddress.IPv6Network("2002::/16")


class Refused(OSError):
    """The destination is not allowed."""


class Destinations:
    """Compiled rules of a `DestinationConfig`."""

    def __init__(self, config: DestinationConfig) -> None:
        self._allow_hosts = _globs(config.allow_hosts)
        self._deny_hosts = _globs(config.deny_hosts)
        self._allow = tuple(map(ipaddress.ip_network, config.allow_networks))
        self._deny = tuple(map(ipaddress.ip_network, config.deny_networks))

    def check_host(self, host: str) -> None:
        """Raise Refused if `host`, the host name or address in a URL, is not allowed."""
        name = host.lower().rstrip(".").strip("[]")
        if (self._deny_hosts is not None and self._deny_hosts.match(name)) or (
            self._allow_hosts is not None and not self._allow_hosts.match(name)
        ):
            raise Refused(f"the host {name} is not allowed")
        try:
            address = ipaddress.ip_address(name.partition("%")[0])
        except ValueError:
            return
        if not self.allows(address):
            raise Refused(f"the address {name} is not allowed")

    def allows(self, address: Address) -> bool:
        """Return whether connections to `address` are allowed."""
        forms = _forms(address)
        if _within(forms, self._deny):
            return False
        if self._allow:
            return all(_within((form,), self._allow) for form in forms[-1:])
        return not _within(forms, REFUSED)


class CheckedResolver(AbstractResolver):
    """A resolver that returns only allowed addresses."""

    def __init__(self, destinations: Destinations, inner: AbstractResolver | None = None) -> None:
        self._destinations = destinations
        self._inner = inner or ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Resolve `host` to its allowed addresses, as aiohttp expects.

        Raises OSError, and Refused if no address is allowed.
        """
        self._destinations.check_host(host)
        found = await self._inner.resolve(host, port, family)
        good = [one for one in found if self._good(one["host"])]
        if found and not good:
            raise Refused(f"no address of {host} is allowed")
        return good

    def _good(self, text: str) -> bool:
        try:
            return self._destinations.allows(ipaddress.ip_address(text.partition("%")[0]))
        except ValueError:
            return False

    async def close(self) -> None:
        """Close the inner resolver."""
        await self._inner.close()


def _forms(address: Address) -> Sequence[Address]:
    """Return `address`, followed by the IPv4 address embedded in it, if any."""
    if isinstance(address, ipaddress.IPv4Address):
        return (address,)
    if address.ipv4_mapped is not None:
        return (address, address.ipv4_mapped)
    if address in _NAT64:
        return (address, ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    if address in _6TO4 and address.sixtofour is not None:
        return (address, address.sixtofour)
    return (address,)


def _within(forms: Iterable[Address], networks: Iterable[Network]) -> bool:
    return any(form in network for form in forms for network in networks)


def _globs(patterns: tuple[str, ...]) -> "re.Pattern[str] | None":
    made = [translate(pattern.lower()) for pattern in patterns]
    return re.compile("|".join(made)) if made else None
