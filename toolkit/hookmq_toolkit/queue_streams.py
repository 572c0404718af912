"""A service for reading the messages of queues of type `stream` from disk, in another plugin or in that plugin's
process.

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
    """The part of a stream that can be read now.

    - `folder`: the folder of the segments.
    - `log_id`: the id of the log. A queue that was deleted and created again has another log.
    - `earliest`: the offset of the first message that is kept; `latest`: the offset of the next message. All messages
      below `latest` are committed. Some offsets in between may have no message.
    - `files`: changes whenever a file is created, deleted or replaced.
    - `bytes`: the approximate size of the messages.
    - `filters`: filters that match all topics of the messages.
    """

    folder: Path
    log_id: str
    earliest: int
    latest: int
    files: tuple[int, int]
    bytes: int
    filters: tuple[str, ...]


Changed = Callable[[StreamFiles | str], None]
"""Called with the readable part of a stream, or with the reason why nothing can be read."""


@runtime_checkable
class QueueStreams(Protocol):
    """Reports which part of each stream can be read. Call the method only on the event loop."""

    def follow(self, name: str, changed: Changed) -> Callable[[], None]:
        """Call `changed` now, and after each change to the queue `name`. Return a function that stops these calls. ¶ A
        new message is reported before its publisher gets the acknowledgement. Deletions of messages and files are
        reported once they are done.

        The queue need not exist. While it does not exist, or is not a stream, `changed` gets the reason.
        """
