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
        # Metadata services of clouds, which give out keys. Link-local addresses come first: 169.254.169.254 is used by
        # AWS, Azure, DigitalOcean, GCP, Linode, Oracle and OpenStack, 169.254.42.42 by Scaleway.
        "169.254.0.0/16",
        "fe80::/10",
        "fd00:ec2::/32",  # AWS
        "fd20:ce::254/128",  # GCP
        "fd00:c1::a9fe:a9fe/128",  # Oracle
        "192.0.0.192/32",  # Oracle, older
        "fd00:42::42/128",  # Scaleway
        "fd00:a9fe:a9fe::/64",  # Linode
        "100.100.100.200/32",  # Alibaba
        "fd00:100::100:200/128",  # Alibaba
        "168.63.129.16/32",  # Azure
        "0.0.0.0/8",
        "::/128",
        "224.0.0.0/4",
        "255.255.255.255/32",
        "ff00::/8",
    )
)
"""Networks that are refused by default. `allow_networks` replaces this list."""
METADATA_NAMES: Final = frozenset(
    {
        "metadata", "metadata.google.internal", "metadata.goog", "instance-data", "instance-data.ec2.internal",
        "metadata.azure.internal", "metadata.azure.com", "metadata.digitalocean.com", "metadata.oraclecloud.com",
        "metadata.platformequinix.com", "metadata.tencentyun.com",
    }
)  # fmt: skip
"""Names of metadata services. A name is refused unless `allow_hosts` contains exactly that name."""
_LAST_32: Final = tuple(
    ipaddress.IPv6Network(text)
    for text in ("64:ff9b::/96", "64:ff9b:1::/48", "::ffff:0:0:0/96", "::/96")
)
"""IPv6 networks in which the last 32 bits of an address are an IPv4 address.

They are the two NAT64 prefixes, IPv4-translated addresses and IPv4-compatible addresses.
"""
_6TO4: Final = ipaddress.IPv6Network("2002::/16")
_TEREDO: Final = ipaddress.IPv6Network("2001::/32")


CHECKED: Final = 1000
"""Maximum number of allowed hosts to remember."""


class Refused(OSError):
    """The destination is not allowed."""


class Destinations:
    """Compiled rules of a `DestinationConfig`."""

    def __init__(self, config: DestinationConfig) -> None:
        self._allow_hosts = _globs(config.allow_hosts)
        self._metadata = METADATA_NAMES - {one.lower() for one in config.allow_hosts}
        self._deny_hosts = _globs(config.deny_hosts)
        self._allow = tuple(map(ipaddress.ip_network, config.allow_networks))
        self._deny = tuple(map(ipaddress.ip_network, config.deny_networks))
        self._checked: set[str] = set()
        """Hosts that are allowed, so that they need not be checked again."""

    def check_host(self, host: str) -> None:
        """Raise Refused if `host`, the host name or address in a URL, is not allowed."""
        if host in self._checked:
            return
        self._check(host)
        if len(self._checked) < CHECKED:
            self._checked.add(host)

    def _check(self, host: str) -> None:
        name = host.lower().rstrip(".").strip("[]")
        if name in self._metadata:
            raise Refused(f"the host {name} is a metadata service, and not allowed")
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
    if any(address in network for network in _LAST_32) and int(address) > 1:  # not :: and ::1
        return (address, ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    if address in _6TO4 and address.sixtofour is not None:
        return (address, address.sixtofour)
    if address in _TEREDO and address.teredo is not None:
        return (address, address.teredo[1])
    return (address,)


def _within(forms: Iterable[Address], networks: Iterable[Network]) -> bool:
    return any(form in network for form in forms for network in networks)


def _globs(patterns: tuple[str, ...]) -> "re.Pattern[str] | None":
    made = [translate(pattern.lower()) for pattern in patterns]
    return re.compile("|".join(made)) if made else None
