"""Public: the contract between the engine and its sources. A source receives messages from another system.

A source is a subclass of `Source`, registered as an entry point in the group ``hookmq.sink_sources``. SOURCES.md shows
how to write and test one. Everything in ``__all__`` is stable within a major version of hookmq-sinks.

The engine runs each source in a separate process, in one asyncio event loop. It makes these calls, in this order:

    source = KIND(settings, context)
    await source.open()
    messages = await source.read()                    # repeatedly, never two calls at a time
    await source.acknowledge(messages, codes)         # once for each result of `read`, in the same order
    await source.close()                              # also after `open` failed or was cancelled

After `SourceUnavailable` or any unexpected error, the engine calls `close`, waits, and creates a new object.

When to acknowledge
===================
The engine hands the messages from each `read` to the broker, in order. The broker publishes them as if a client had sent
them: rules, limits and hooks apply. `acknowledge` is called once the broker has committed them. Only then acknowledge
them to the origin, because after a crash the origin must send all other messages again. This gives at-least-once
delivery, in order.

If the broker refuses a message temporarily, for example because a sink is full, the engine retries until the broker
accepts it. A message that the broker will never accept is stored as a dead letter or skipped, depending on
`on_refused`. The same happens to an origin's entry that cannot become a message. Return such an entry with a `problem`.
Its code in `codes` is 0x80 or above.

A source must never stop because of such a message. Report the message, so that those after it can be published.

Requirements for exactly-once delivery
======================================
Give a message a `mark`, which consists of a key and a value. The broker stores the mark in the same commit as the
message. After a crash, it therefore has both or neither. `SourceContext.marks` contains all stored marks; a new value for
a key replaces the old one.

- If the origin numbers its messages, use the stream's name as the key and the message's number as the value. After a
  restart, continue after that number.
- If the origin has a set of ids, use the id as the key. Skip a message whose id is already a mark. Call
  `SourceContext.forget` when the origin will not send the id again.

The mark is a user property of the message. If a plugin removes it in `on_publish`, or moves the message to a topic
outside `local_filters`, the mark is not stored.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from hookmq.mqtt_api import EMPTY, Properties
from hookmq.plugin import HookMQError

__all__ = ["Incoming", "Source", "SourceContext", "SourceUnavailable"]


class SourceUnavailable(HookMQError):
    """The origin cannot be reached, or has closed the connection. The engine retries, with growing delays.

    Give a short reason in words. It must not contain a secret. Set `permanent` if an operator must act.
    """

    def __init__(self, reason: str, permanent: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.permanent = permanent


@dataclass(slots=True)
class Incoming:
    """A message from the origin, as it will be published to this broker."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = EMPTY
    mark: tuple[str, str] | None = None
    """The key and value that the broker stores together with the message. The key must not contain ``=``."""
    problem: str = ""
    """Why this entry cannot be a message. It is not published, but handled like a message that was refused
    permanently."""
    answered: bool = False
    """Whether the origin handles a refusal itself. Such a message is neither retried nor stored as a dead letter."""
    identity: str = ""
    """The identity under which the message is published; empty for the source's own identity."""
    handle: Any = None
    """Any value for the source's own use, for example to acknowledge the message."""

    @property
    def size(self) -> int:
        """The size in bytes, as counted towards limits."""
        return len(self.topic) + len(self.payload) + 64


async def _forget_nothing(keys: Iterable[str]) -> None:
    """Do nothing, because there is no broker."""


@dataclass(frozen=True)
class SourceContext:
    """The name, marks, functions and folder that the engine provides to a source."""

    source: str
    """The source's name."""
    marks: dict[str, str] = field(default_factory=dict)
    """The stored marks. The engine adds each mark once it is committed."""
    forget: Callable[[Iterable[str]], Awaitable[None]] = field(default=_forget_nothing, repr=False)
    """Delete marks by their keys. Returns after the commit."""
    log: Callable[..., None] = field(default=lambda level, event, **fields: None, repr=False)
    """Log an event about the source: ``log("warning", "sources.kafka_slow", seconds=3)``."""
    folder: Path | None = None
    """The source's folder, for a source that has to store its own state."""


class Source:
    """Base class of sources. `Settings` is a frozen dataclass, just as for drivers; see `hookmq_sinks.driver.Driver`."""

    Settings: ClassVar[type]
    extra: ClassVar[str] = ""
    """The extra that installs the client library; empty if the source needs none."""

    def __init__(self, settings: Any, context: SourceContext) -> None:
        self.settings = settings
        self.context = context

    @classmethod
    def local_filters(cls, settings: Any) -> Sequence[str]:
        """Return filters for the local topics to which the source publishes messages with marks. Return none if it
        does not use marks.
        """
        return ()

    async def open(self) -> None:
        """Connect to the origin. Raises SourceUnavailable, or ImportError if a client library is missing."""

    async def read(self) -> Sequence[Incoming]:
        """Wait for messages. Return all that have arrived, in order: at least one, and at most a few thousand.

        Buffer only a limited number of messages. When the buffer is full, make the origin wait. Raises
        SourceUnavailable.
        """
        raise NotImplementedError

    async def acknowledge(self, messages: Sequence[Incoming], codes: Sequence[int]) -> None:
        """Acknowledge messages from `read` to the origin. `codes` contains a reason code for each message.

        Raises SourceUnavailable.
        """

    async def close(self) -> None:
        """Release all resources. Called once for each object, even if `open` failed. Must not raise or block."""

    def metrics(self) -> Mapping[str, float]:
        """Return the source's own counters, which become part of its status. Called about once a second."""
        return {}
