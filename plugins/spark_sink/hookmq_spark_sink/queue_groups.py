"""Move a queue's groups to the offsets that consumers of the read API have committed.

A group that is behind keeps messages in the queue, within the limit `wait_for_groups` of the queue's `retention`.
Messages are therefore also kept for a consumer that has the same name as a group.
"""

from collections.abc import Callable, Iterable, Mapping

from hookmq.plugin import BrokerHandle, PluginError
from hookmq_toolkit.queues import SERVICE, QueueError, QueueManager

from hookmq_spark_sink.files import Consumer


class QueueGroups:
    """The groups of one queue whose names match the consumers in `names`."""

    def __init__(self, queue: str, names: Iterable[str], log: Callable[..., None]) -> None:
        self._queue = queue
        self._names = tuple(names)
        self._log = log
        self._moved: dict[str, int] = {}
        self._problems: dict[str, str] = {}

    def renew(self) -> None:
        """Record that the queue has a new log, whose offsets start from the beginning."""
        self._moved.clear()

    async def move(
        self, broker: BrokerHandle, known: Mapping[str, Consumer], earliest: int, latest: int
    ) -> None:
        """Move each group to its consumer's offset. Each problem is logged only once."""
        if not self._names:
            return
        found = broker.services(SERVICE).values()
        manager = next((one for one in found if isinstance(one, QueueManager)), None)
        if manager is None:
            return
        for name in self._names:
            try:
                problem = self._problem(manager, name)
                committed = known[name].offsets.get(0) if name in known else None
                if not problem and committed is not None and self._moved.get(name) != committed:
                    place = min(max(committed, earliest), latest)
                    await manager.seek_queue(self._queue, name, str(place))
                    self._moved[name] = committed
            except (QueueError, PluginError) as error:
                problem = str(error)
            if problem and self._problems.get(name) != problem:
                self._log("warning", "spark_sink.group_not_moved", consumer=name, reason=problem)
            self._problems[name] = problem

    def _problem(self, manager: QueueManager, name: str) -> str:
        """Return why the group cannot follow its consumer, or '' if it can. Raises QueueError."""
        groups = {one.name: one for one in manager.show_queue(self._queue).groups}
        if name not in groups:
            known = ", ".join(groups)
            return f"the queue {self._queue} has no group {name}, only: {known}"
        if groups[name].consumer_count:
            return f"MQTT clients consume the group {name} of the queue {self._queue}"
        return ""
