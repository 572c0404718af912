"""A service for tools that read or fill the broker's store while no broker runs: one plugin provides it, and the command
of another one uses it.

A plugin offers a `StoreOpener` in `Plugin.offered_services` under the name `SERVICE`.
"""

from typing import Final, Protocol, runtime_checkable

from hookmq.plugin import Runtime
from hookmq.storage_api import Store

SERVICE: Final = "store"
"""The name of the service in `Plugin.offered_services`."""


@runtime_checkable
class StoreOpener(Protocol):
    """Opens the store of a configuration without a broker."""

    @property
    def place(self) -> str:
        """Where the store is, for messages: "the folder /var/lib/hookmq"."""

    @property
    def exists(self) -> bool:
        """Whether the store was ever created."""

    def open_store(self, runtime: Runtime) -> Store:
        """Open the store, or create it. Close it again. Raises StoreError if it is in use or damaged."""
