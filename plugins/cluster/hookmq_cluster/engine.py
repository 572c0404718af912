"""What the cluster needs from its engine: a replicated log with conditions, and messages that are not stored.

`NatsEngine` implements this with NATS JetStream, the tests also with a simulated log. All calls and callbacks run on
the event loop's thread; no call blocks. A callback is called once, before or after the call returns.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

TOMBSTONE: Final = 3600
"""The `ttl` of an entry that says that something has ended, such as a session. All nodes have read it by then."""


class Entry(NamedTuple):
    """One message to append to the log.

    - `subject`: the full subject.
    - `data`: at most `Engine.max_entry` bytes.
    - `expect`: the entry is appended only if the last message of the subject `expect[0]` has the sequence `expect[1]`;
      0 means that this subject has no message.
    - `replace`: delete all earlier messages of the subject.
    - `ttl`: seconds after which the log deletes the message, or 0.
    """

    subject: str
    data: bytes
    expect: tuple[str, int] | None = None
    replace: bool = False
    ttl: int = 0


class Stored(NamedTuple):
    """One message in the log. `time` is the engine's clock when it was stored, in epoch seconds."""

    subject: str
    sequence: int
    data: bytes
    time: float


class Appended(NamedTuple):
    """A commit that a majority has. `last` is the sequence of its last entry; those of one commit are consecutive."""

    last: int


class Refused(NamedTuple):
    """A commit that was not made, because the expectation about `subject` is false. `subject` is '' if the engine does
    not say which one."""

    subject: str
    reason: str


class Unavailable(NamedTuple):
    """The engine did not answer, or has no majority. The result of a commit is then unknown."""

    reason: str


class Engine(Protocol):
    """A connection to the engine."""

    max_entry: int
    """The largest `Entry.data`, in bytes."""
    max_batch: int
    """The largest number of entries in one commit."""

    def commit(
        self,
        entries: Sequence[Entry],
        done: Callable[[Appended | Refused | Unavailable], None],
        key: str = "",
    ) -> None:
        """Append all `entries` atomically, with consecutive sequences, or none of them.

        A commit that was started earlier is appended earlier, unless it fails. With a `key`, the engine repeats a commit
        whose result is unknown until it is known, or until it gives up after `Engine` specific seconds: a commit with
        the same key is never appended twice. Without a key, the first unknown result is reported.
        """

    def last(
        self, subject: str, done: Callable[[Stored | None | Unavailable], None], exact: bool = False
    ) -> None:
        """Read the last message of one subject, without wildcards. A follower that lags may answer, unless `exact`."""

    def read(
        self, filters: Sequence[str], after: int, done: Callable[[list[Stored] | Unavailable], None]
    ) -> None:
        """Read messages of the subjects in `filters`, which may have wildcards, with sequences above `after`, in order.

        A page has at most a few MB. An empty page means that there are no more, as seen by a server that has at least
        everything that this engine has committed or has been shown before.
        """

    def follow(
        self, filters: Sequence[str], after: int, receive: Callable[[Stored], None]
    ) -> Callable[[], None]:
        """Call `receive` for each message of `filters` with a sequence above `after`, in order and without gaps, now and
        in future. Return a function that ends this. The engine reconnects by itself.
        """

    def trim(self, subject: str, before: int, done: Callable[[Unavailable | None], None]) -> None:
        """Delete all messages of `subject`, which may have wildcards, with sequences below `before`."""

    def send(self, subject: str, data: bytes) -> None:
        """Send a message to all listeners of the subject. It is not stored, and may be lost. Messages of one sender on
        one subject arrive in order."""

    def listen(self, subject: str, receive: Callable[[str, bytes], None]) -> Callable[[], None]:
        """Call ``receive(subject, data)`` for each message that is sent to `subject`, which may have wildcards, also by
        this process. Return a function that ends this.
        """

    def connected(self) -> bool:
        """Return whether the engine answered recently."""

    def on_connection(self, call: Callable[[bool], None]) -> None:
        """Call `call` with False when the connection is lost, and with True when it is back. Messages that were sent
        in between may be lost."""

    def close(self, done: Callable[[], None]) -> None:
        """Finish sending, then close the connection."""
