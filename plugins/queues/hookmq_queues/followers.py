"""Tell other plugins which part of each stream they can read. This is the service `hookmq_toolkit.queue_streams`.

A stream without followers costs nothing extra.
"""

from collections.abc import Callable, Mapping
from functools import partial

from hookmq_toolkit.queue_streams import Changed, StreamFiles

from hookmq_queues.queue import Queue
from hookmq_queues.stream import StreamQueue
from hookmq_queues.topics import PREFIX


class Followers:
    """Implements `QueueStreams`. `queues` returns the queues that exist. When a queue is created or deleted, call
    `opened` or `deleted`.
    """

    def __init__(self, queues: Callable[[], Mapping[str, Queue]]) -> None:
        self._queues = queues
        self._followers: dict[str, list[Changed]] = {}
        """The followers by queue name. The queue does not have to exist."""

    def follow(self, name: str, changed: Changed) -> Callable[[], None]:
        """Call `changed` with the part of a stream that can be read, now and after each change. Return a function that
        ends this.
        """
        self._followers.setdefault(name, []).append(changed)
        found = self._queues().get(name)
        if found is not None:
            self._attach(found)
        changed(self._report(name))
        return partial(self._end, name, changed)

    def _end(self, name: str, changed: Changed) -> None:
        known = self._followers.get(name, [])
        if changed in known:
            known.remove(changed)
        if not known and self._followers.pop(name, None) is not None:
            found = self._queues().get(name)
            if isinstance(found, StreamQueue):
                found.follow(None)

    def opened(self, queue: Queue) -> None:
        """Take note of a queue that was created while the broker is running."""
        name = queue.config.name
        if name in self._followers:
            self._attach(queue)
            self._tell(name)

    def deleted(self, queue: Queue) -> None:
        """Take note that a queue is being deleted. Its messages are still on disk."""
        if isinstance(queue, StreamQueue):
            queue.follow(None)
        self._tell(queue.config.name)

    def _attach(self, queue: Queue) -> None:
        if isinstance(queue, StreamQueue):
            queue.follow(partial(self._tell, queue.config.name))

    def _tell(self, name: str) -> None:
        followers = self._followers.get(name)
        if followers:
            report = self._report(name)
            for one in list(followers):
                one(report)

    def _report(self, name: str) -> StreamFiles | str:
        queue = self._queues().get(name)
        if queue is None:
            return f"there is no queue {name!r}"
        config = queue.config
        if not isinstance(queue, StreamQueue):
            return f"the queue {name} has the type {config.type}, but only a stream can be read"
        log = queue.log
        segments = log.log.segments
        return StreamFiles(
            log.log.folder,
            log.log.id,
            log.earliest,
            log.visible,
            (segments[-1].base, log.log.changes),
            log.bytes,
            (f"{PREFIX}{name}/#", *config.bindings),
        )
