"""The protocol for a plugin's state. The core implements it, and plugins use it as ``broker.state``."""

import builtins
from collections.abc import Awaitable
from typing import Protocol

from hookmq.model.snapshots import Page


class PluginState(Protocol):
    """The keys and values of one plugin id, in memory and in the broker's store.

    All changes in a turn are committed together. If a hook sets a key and accepts a message, then after a crash either
    both survive or neither does. Without a durable store, the state is lost when the process ends.

    A key is a string of at most 1,024 bytes; a value is bytes. `broker.plugin_state_keys` and
    `broker.plugin_state_bytes` limit the state. An invalid call raises PluginError and changes nothing. So does a call
    that exceeds a limit, is made in a thread, or is made before `on_startup`.
    """

    @property
    def keys(self) -> int:
        """The number of keys and timers."""

    def get(self, key: str) -> builtins.bytes | None:
        """Return the value of a key, or None."""

    def put(self, key: str, value: builtins.bytes) -> Awaitable[None]:
        """Set the value of a key. `get` returns the value at once. The awaitable completes after the commit; you need
        not await it.
        """

    def delete(self, key: str) -> Awaitable[bool]:
        """Delete a key. After the commit, the awaitable returns whether the key existed. You need not await it."""

    def items(
        self, prefix: str = "", cursor: str = "", limit: int = 100
    ) -> Page[tuple[str, builtins.bytes]]:
        """Return the keys that start with `prefix`, and their values, sorted by key.

        `limit` is from 1 to 1000. Pass `Page.cursor` to continue. A key that is set or deleted in the meantime may be
        missing.
        """

    @property
    def bytes(self) -> int:
        """The total size of all keys, values and timers in bytes."""
