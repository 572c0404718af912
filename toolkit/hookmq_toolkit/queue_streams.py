"""The service with which another plugin, or its process, reads the messages of a queue of the type `stream` from disk.

A plugin with such queues offers `QueueStreams` in `Plugin.offered_services` under the name `SERVICE`. The files are a
segmented log (`hookmq_toolkit.segment_log`), and `hookmq_toolkit.message_frames` decodes its frames. Only the plugin
that owns the queue writes them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

SERVICE: Final = "queue_streams"
"""The name of the service in `Plugin.offered_services`."""


@dataclass(frozen=True, slots=True)
class StreamFiles:
    """What can be read of a stream now.

    - `folder`: the folder of the segments.
    - `log_id`: the id of the log. A queue that was deleted and created again has another log.
    - `earliest`, `latest`: the offsets of the first message that is kept, and of the next message. All messages below
      `latest` are committed. Some offsets between them may have no message.
    - `files`: differs from earlier values after a file was created, deleted or replaced.
    - `bytes`: the approximate size of the messages.
    - `filters`: the filters of the topics that the messages can have.
    """

    folder: Path
    log_id: str
    earliest: int
    latest: int
    files: tuple[int, int]
    bytes: int
    filters: tuple[str, ...]


Changed = Callable[[StreamFiles | str], None]
"""Called with what can be read of a stream, or with the reason why nothing can be read."""


@runtime_checkable
class QueueStreams(Protocol):
    """Reports what can be read of streams. Call the method only on the event loop."""

    def follow(self, name: str, changed: Changed) -> Callable[[], None]:
        """Call `changed` now, and whenever it has news of the queue `name`: before the publisher of a message is
        acknowledged, and after messages or files were deleted. Return a function that ends this.

        The queue need not exist. While it does not exist, or is not a stream, `changed` gets the reason.
        """
