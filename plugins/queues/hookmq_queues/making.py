"""Create, change and delete queues while the broker is running."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final

from hookmq.config_api import bind_values
from hookmq.plugin import BrokerHandle, ConfigError, PluginError, Promise, StoreError
from hookmq_toolkit.queues import QueueError
from hookmq_toolkit.threads import in_thread

from hookmq_queues.config import (
    NAME,
    FirstUse,
    QueueConfig,
    QueuesConfig,
    check_dead_letters,
    plain_settings,
)
from hookmq_queues.group_state import state_key
from hookmq_queues.queue import Queue
from hookmq_queues.registry import Maker, Registry, StoredQueue

CHANGEABLE: Final = frozenset(
    {
        "bindings", "max_messages", "max_bytes", "on_full", "visibility_timeout", "delivery_limit", "dead_letter",
        "message_ttl", "prefetch", "max_unacknowledged", "memory",
    }
)  # fmt: skip
"""The settings that a queue can change while it exists."""


class QueueMaker:
    """The queues by name. Creates, changes and deletes queues.

    `make` returns a new queue that is not yet one of the broker's journals. Once it has become a journal, `opened`
    opens the queue and finds its consumers. `deleted` forgets a deleted queue's consumers.
    """

    def __init__(
        self,
        config: QueuesConfig,
        registry: Registry,
        make: Callable[[QueueConfig], Queue],
        opened: Callable[[Queue], None],
        deleted: Callable[[Queue], None],
    ) -> None:
        self.queues: dict[str, Queue] = {}
        self.registry = registry
        self._config = config
        self._make = make
        self._opened = opened
        self._deleted = deleted
        self._broker: BrokerHandle
        self._busy: dict[str, list[Promise]] = {}
        """For each queue that is being created, changed or deleted, the callers that wait for this. The keys are names
        in lower case.
        """
        self._names: dict[str, str] = {}
        """The names of these queues in their original spelling, by name in lower case."""
        self._pending: dict[str, QueueConfig] = {}
        """The new settings of the queues that are being created or changed, by name."""

    def load(self, broker: BrokerHandle) -> list[str]:
        """Create the configured queues and those that have a file. If a queue is configured, its file is ignored.
        Return the names of such queues. This call blocks. Raises StoreError.
        """
        self._broker = broker
        configured = {one.name: one for one in self._config.queues}
        ignored = self.registry.load(set(configured))
        known = configured | {name: one.config for name, one in self.registry.queues.items()}
        for name, stored in self.registry.queues.items():
            try:
                check_dead_letters(stored.config, known)
            except ConfigError as error:
                raise StoreError(
                    f"{self.registry.folder}: the queue {name}, which was created while the broker ran: {error.message}"
                ) from None
        self.queues.update((name, self._make(one)) for name, one in known.items())
        return ignored

    def find(self, name: str) -> Queue:
        """Return a queue. Raises QueueError."""
        found = self.queues.get(name)
        if found is None:
            raise QueueError("missing", f"there is no queue {name!r}", "name")
        return found

    # first use -------------------------------------------------------------------------------------------------------

    def first_use(self, name: str) -> FirstUse | None:
        """Return the settings with which a client may create this queue. Return None if it may not."""
        if not NAME.fullmatch(name):
            return None
        return next((one for one in self._config.on_first_use if one.matches(name)), None)

    async def use(self, name: str, first_use: FirstUse) -> Queue:
        """Return the queue that a client uses, creating it if necessary. Raises QueueError."""
        while name.lower() in self._busy:
            await self._ended(name)
        found = self.queues.get(name)
        if found is not None:
            return found
        made = sum(
            1
            for other, one in self.registry.queues.items()
            if one.made_by == "first_use" and self.first_use(other) is first_use
        )
        making = sum(
            1 for one in self._names.values() if first_use.matches(one) and one not in self.queues
        )
        if made + making >= first_use.maximum:
            text = f"{first_use.maximum} queues were created for {first_use.pattern}, which is the maximum"
            raise QueueError("conflict", text)
        return await self.create(name, plain_settings(first_use, changed=True), "first_use")

    def _ended(self, name: str) -> Promise:
        """Return a promise that resolves when the current change to a queue completes."""
        promise = self._broker.runtime.promise()
        self._busy[name.lower()].append(promise)
        return promise

    # changes ---------------------------------------------------------------------------------------------------------

    def create(self, name: str, settings: Mapping[str, Any], made_by: Maker) -> Awaitable[Queue]:
        """Create a queue. Awaiting raises QueueError."""
        return self._alone(name, partial(self._create, name, settings, made_by))

    def change(self, name: str, settings: Mapping[str, Any]) -> Awaitable[Queue]:
        """Change some settings of a queue that has a file. A value of None resets a setting to its default. Awaiting
        raises QueueError.
        """
        return self._alone(name, partial(self._change, name, settings))

    def delete(self, name: str, force: bool) -> Awaitable[int]:
        """Delete a queue that has a file. Return the number of unsettled messages in it, which must be 0 unless `force`
        is True. Awaiting raises QueueError.
        """
        return self._alone(name, partial(self._delete, name, force))

    def _alone(self, name: str, change: Callable[[], Coroutine[Any, Any, Any]]) -> Awaitable[Any]:
        """Run a change to a queue, one at a time per queue. The change continues even if the caller stops waiting for
        it.
        """
        result = self._broker.runtime.promise()
        key = name.lower()
        if key in self._busy:
            text = f"the queue {name} is being created, changed or deleted: try again"
            result.set_exception(QueueError("conflict", text))
            return result
        self._busy[key] = []
        self._names[key] = name

        def ended(value: Any, error: BaseException | None) -> None:
            self._pending.pop(self._names.pop(key), None)
            for one in self._busy.pop(key):
                if not one.done():
                    one.set_result(None)
            if result.done():
                return
            if error is None:
                result.set_result(value)
            else:
                result.set_exception(error)

        self._broker.runtime.spawn(change(), ended)
        return result

    async def _create(self, name: str, settings: Mapping[str, Any], made_by: Maker) -> Queue:
        stored = self._bound(name, settings, made_by)
        self._check_new(stored.config)
        self._pending[name] = stored.config
        broker, registry = self._broker, self.registry
        await self._on_disk(partial(self._write_new, stored))
        queue = self._make(stored.config)
        try:
            await broker.add_journal(queue.log)
        except PluginError as error:
            await self._on_disk(partial(registry.erase, name))
            raise QueueError("failed", error.message) from None
        registry.queues[name] = stored
        self.queues[name] = queue
        self._opened(queue)
        broker.log("info", "queue.created", queue=name, made_by=made_by)
        broker.emit("queue.created", None, queue=name, made_by=made_by)
        return queue

    def _bound(self, name: str, settings: Mapping[str, Any], made_by: Maker) -> StoredQueue:
        if not NAME.fullmatch(name):
            raise QueueError(
                "invalid", f"{name!r} is not a name; use letters, digits, _ . -", "name"
            )
        if "name" in settings:
            raise QueueError("invalid", "name: a queue cannot be renamed", "settings")
        try:
            config = bind_values(QueueConfig, {**settings, "name": name})
        except ConfigError as error:
            raise QueueError("invalid", str(error), "settings") from None
        before = {one: queue.config for one, queue in self.queues.items()}
        after = before | {one: new for one, new in self._pending.items() if one in before}
        for others in (before, after):  # another change may still fail
            known = others | {name: config}
            for one in known.values():
                try:
                    check_dead_letters(one, known)
                except ConfigError as error:
                    raise QueueError("invalid", str(error), "settings") from None
        return StoredQueue(config, dict(settings), made_by)

    def _check_new(self, config: QueueConfig) -> None:
        same = next((one for one in self.queues if one.lower() == config.name.lower()), None)
        if same is not None:
            raise QueueError("conflict", f"the queue {same} exists already", "name")
        most = self._config.max_stored
        making = sum(one not in self.registry.queues for one in self._pending)
        if len(self.registry.queues) + making >= most:
            text = f"{most} queues were created while the broker ran: max_stored allows no more"
            raise QueueError("conflict", text)

    def _write_new(self, stored: StoredQueue) -> None:
        folder = self.registry.path / stored.config.name
        if folder.exists():
            raise QueueError(
                "conflict", f"{folder} exists already: move it away, or use another name", "name"
            )
        self.registry.write(stored)

    async def _change(self, name: str, settings: Mapping[str, Any]) -> Queue:
        queue, stored = self.find(name), self._stored(name, "changed")
        fixed = sorted(set(settings) - CHANGEABLE)
        if fixed:
            allowed = ", ".join(sorted(CHANGEABLE))
            text = f"{fixed[0]}: cannot be changed while the queue exists; settings that can be changed: {allowed}"
            raise QueueError("invalid", text, "settings")
        merged = {**stored.settings, **settings}
        given = {key: value for key, value in merged.items() if value is not None}
        changed = self._bound(name, given, stored.made_by)
        self._pending[name] = changed.config
        await self._on_disk(partial(self.registry.write, changed))
        self.registry.queues[name] = changed
        queue.configure(changed.config)
        self._broker.invalidate_routes()
        self._broker.log("info", "queue.changed", queue=name, settings=sorted(settings))
        return queue

    def _stored(self, name: str, what: str) -> StoredQueue:
        found = self.registry.queues.get(name)
        if found is None:
            text = f"the queue {name} is in the configuration, so it cannot be {what} while the broker runs"
            raise QueueError("conflict", text, "name")
        return found

    async def _delete(self, name: str, force: bool) -> int:
        queue, stored = self.find(name), self._stored(name, "deleted")
        users = [(one, other.config) for one, other in self.queues.items()]
        users += self._pending.items()
        user = next((one for one, config in users if config.dead_letter == name), "")
        if user:
            raise QueueError("conflict", f"the dead letters of {user} go to {name}", "name")
        messages = queue.depth + queue.delayed
        if messages and not force:
            raise QueueError(
                "conflict", f"the queue {name} has {messages} unsettled messages", "force"
            )
        broker = self._broker
        # From here on, no message is accepted, so that none is acknowledged and then deleted.
        del self.queues[name]
        queue.log.quiet()
        broker.invalidate_routes()
        try:
            await self._on_disk(partial(self.registry.write, stored, deleting=True))
        except QueueError:
            queue.log.quiet(False)
            self.queues[name] = queue
            broker.invalidate_routes()
            raise
        queue.close()
        for one in queue.dispatchers.values():
            one.close()
        self._deleted(queue)
        del self.registry.queues[name]
        try:
            await broker.remove_journal(queue.log)
            queue.log.close()
            for group in queue.dispatchers:
                await broker.state.delete(state_key(name, group))
        except PluginError as error:
            raise QueueError("failed", error.message) from None
        await self._on_disk(partial(self.registry.erase, name))
        broker.log("info", "queue.deleted", queue=name, messages=messages)
        broker.emit("queue.deleted", None, queue=name, messages=messages)
        return messages

    async def _on_disk(self, call: Callable[[], None]) -> None:
        try:
            await in_thread(self._broker.runtime, call)
        except (OSError, StoreError) as error:
            raise QueueError("failed", str(error)) from None
