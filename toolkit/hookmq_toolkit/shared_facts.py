"""A service through which plugins share facts between the nodes of a cluster: one plugin provides it, others use it.

A plugin offers a `SharedFacts` in `Plugin.offered_services` under the name `SERVICE`. A fact is a small value with a key,
which ends after some time, such as a ban. Facts are stored once, for all nodes, and survive their restarts.
"""

from collections.abc import Callable
from typing import Final, Protocol, runtime_checkable

SERVICE: Final = "shared_facts"
"""The name of the service in `Plugin.offered_services`."""
MAX_FACT: Final = 16_384
"""The largest size of a fact: its key, in UTF-8, and its value."""

FactChanged = Callable[[str, bytes | None, float], None]
"""Called with a key, its value, and the seconds until it ends. The value is None if the fact was withdrawn."""


@runtime_checkable
class SharedFacts(Protocol):
    """Shares facts with the other nodes. Call it in the event loop.

    The facts of different plugins are in different spaces. The last change of a key wins, whichever node has made it.
    """

    def follow(self, space: str, changed: FactChanged) -> Callable[[], None]:
        """Call `changed` for each fact of `space` that exists, now, and for each change in future, also for changes of
        this node. A fact that ends is not reported. Return a function that ends this.
        """

    def put(self, space: str, key: str, value: bytes, seconds: float) -> None:
        """Tell all nodes, and those that join later, a fact that ends after `seconds`. If the cluster's log does not
        answer, try again until then. Raises ValueError if the fact is larger than `MAX_FACT`.
        """

    def withdraw(self, space: str, key: str) -> None:
        """Withdraw a fact on all nodes."""
