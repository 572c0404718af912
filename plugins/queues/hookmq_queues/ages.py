"""Compute the age of each group's oldest message."""

from functools import partial

from hookmq.plugin import BrokerHandle

from hookmq_queues.dispatch import Dispatcher
from hookmq_queues.storage import MessageLog


class Ages:
    """Knows when the oldest unsettled message of each of a queue's groups arrived.

    If that message is not in memory, its time is read in the background, and a later call returns it.
    """

    def __init__(self, log: MessageLog, broker: BrokerHandle) -> None:
        self._log = log
        self._broker = broker
        self._known: dict[str, tuple[int, float]] = {}
        """For each group, the offset and time of a message."""
        self._reading: set[str] = set()

    def oldest(self, dispatcher: Dispatcher) -> float | None:
        """Return the age of a group's oldest unsettled message, in seconds. Return 0 if there is no such message, and
        None if its age is not known yet.
        """
        floor, name = dispatcher.group.floor, dispatcher.name
        if floor >= self._log.end:
            return 0.0
        offset, time = self._known.get(name, (-1, 0.0))
        if offset != floor:
            message = self._log.get(floor)
            if message is None:
                self._read(name, floor)
                return None
            time = message.received_at
            self._known[name] = (floor, time)
        return max(0.0, self._broker.time() - time)

    def _read(self, name: str, offset: int) -> None:
        if name in self._reading or offset >= self._log.visible:
            return
        self._reading.add(name)

        def found(result: list[tuple[int, float]], error: BaseException | None) -> None:
            self._reading.discard(name)
            if error is None:
                self._known.update((name, (at, time)) for at, time in result)

        self._broker.runtime.run_blocking(partial(self._time_of, offset), found)

    def _time_of(self, offset: int) -> list[tuple[int, float]]:
        return [(at, one.received_at) for at, one in self._log.read(offset) if at == offset]
