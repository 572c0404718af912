"""Manage groups that clients create by subscribing, rather than groups in the configuration.

Such a group exists as long as its stored state does. It is deleted after it has had no consumer for `group_expiry`,
because its messages would otherwise fill the queue. Restarting the broker also restarts this period.
"""

from collections.abc import Callable
from typing import Final

from hookmq.plugin import BrokerHandle, Timer

from hookmq_queues.config import NAME, QueueConfig
from hookmq_queues.dispatch import Dispatcher
from hookmq_queues.group_state import state_key

_CHECKS: Final = 10
"""Number of times within `group_expiry` that groups are checked for consumers."""


class GroupUse:
    """One queue's groups that are not in the configuration.

    `make` adds a group to `dispatchers`. `removed` is called after a group has been removed from them.
    """

    def __init__(
        self,
        config: Callable[[], QueueConfig],
        dispatchers: dict[str, Dispatcher],
        broker: BrokerHandle,
        make: Callable[[str], Dispatcher],
        removed: Callable[[], None],
    ) -> None:
        self._config = config
        self._dispatchers = dispatchers
        self._broker = broker
        self._make = make
        self._removed = removed
        self._unused: dict[str, float] = {}
        """The time at which `_check` first found each group without a consumer."""
        self._timer: Timer | None = None

    def stored(self) -> list[str]:
        """Return the names of the groups stored before the restart."""
        config = self._config()
        if not config.groups_on_first_use:
            return []
        prefix = state_key(config.name, "")
        found: list[str] = []
        cursor, more = "", True
        while more:
            page = self._broker.state.items(prefix, cursor, 1000)
            cursor, more = page.cursor, bool(page.cursor)
            found += [key.removeprefix(prefix) for key, _ in page.items]
        return [one for one in found if one not in config.group_settings]

    def refusal(self, name: str) -> str:
        """Return why a client cannot create a group with this name, or ''."""
        config = self._config()
        if not config.groups_on_first_use or not NAME.fullmatch(name):
            return f"the queue {config.name} has no group {name[:128]!r}"
        if len(self._dispatchers) >= config.max_groups:
            return (
                f"the queue {config.name} has {len(self._dispatchers)} groups, which is the maximum"
            )
        return ""

    def use(self, name: str) -> Dispatcher | None:
        """Return a group, creating it if it does not exist. Return None if it cannot be created."""
        found = self._dispatchers.get(name)
        if found is not None or self.refusal(name):
            return found
        made = self._make(name)
        made.store()
        queue = self._config().name
        self._broker.log("info", "queue.group_created", queue=queue, group=name)
        self._broker.emit("queue.group_created", None, queue=queue, group=name)
        self.watch()
        return made

    def used(self, name: str) -> None:
        """Record that a group has gained or lost a consumer. This restarts the period after which it is deleted."""
        self._unused.pop(name, None)

    def watch(self) -> None:
        """Check regularly for groups without consumers, as long as there are groups outside the configuration."""
        config = self._config()
        if self._timer is None and len(self._dispatchers) > len(config.group_settings):
            self._timer = self._broker.runtime.call_later(
                config.group_expiry / _CHECKS, self._check
            )

    def _check(self) -> None:
        self._timer = None
        config, now = self._config(), self._broker.now()
        for name, one in list(self._dispatchers.items()):
            if name in config.group_settings:
                continue
            if one.consumers:
                self._unused.pop(name, None)
            elif now - self._unused.setdefault(name, now) >= config.group_expiry:
                self._remove(name, one)
        self.watch()

    def _remove(self, name: str, dispatcher: Dispatcher) -> None:
        queue = self._config().name
        dispatcher.close()
        del self._dispatchers[name], self._unused[name]
        self._broker.state.delete(state_key(queue, name))
        fields = {"queue": queue, "group": name, "messages": dispatcher.backlog}
        self._broker.log("info", "queue.group_deleted", **fields)
        self._broker.emit("queue.group_deleted", None, **fields)
        self._removed()

    def close(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()
