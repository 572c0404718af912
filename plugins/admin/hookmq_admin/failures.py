"""Limit the number of wrong tokens from one address."""

from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from math import ceil
from typing import Final

EVERY: Final = 6.0
"""Seconds until an address that has reached the limit may send one more wrong token."""
MAX_ADDRESSES: Final = 4096


class FailureLimit:
    """Counts wrong tokens by address, or by /64 network for IPv6. Remembers only the addresses that failed most
    recently.
    """

    def __init__(self, most: int, now: Callable[[], float]) -> None:
        self._most = most
        self._now = now
        self._full: OrderedDict[str, float] = OrderedDict()
        """For each address, when it may again send `most` wrong tokens."""
        self.failures = 0
        self.limited = 0

    def wait(self, address: str) -> int:
        """Return how many more seconds requests from `address` will be refused, or 0 if they are allowed."""
        left = self._full.get(_network(address), 0.0) - self._now() - (self._most - 1) * EVERY
        if left <= 0:
            return 0
        self.limited += 1
        return ceil(left)

    def failed(self, address: str) -> None:
        """Count a wrong token."""
        self.failures += 1
        network = _network(address)
        now = self._now()
        self._full[network] = max(self._full.get(network, now), now) + EVERY
        self._full.move_to_end(network)
        if len(self._full) > MAX_ADDRESSES:
            self._full.popitem(last=False)


def _network(address: str) -> str:
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(IPv6Address(int(parsed) >> 64 << 64))
    return address
