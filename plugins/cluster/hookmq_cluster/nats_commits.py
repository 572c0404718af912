"""The queue of commits: one at a time is under way, until its result is known.

One at a time keeps the order, and JetStream decides only one commit at a time anyway that has a condition on the same
subject. Callers put everything that arrives in the meantime into their next commit.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from hookmq.plugin import Runtime, Timer

from hookmq_cluster.batch_publish import (
    BUSY,
    DUPLICATE_IN_BATCH,
    DUPLICATE_IN_PROGRESS,
    UNKNOWN_KEY,
    WRONG_LAST_SEQUENCE,
    PublishAnswer,
    check_commit,
    decode_answer,
    encode_commit,
    encode_probe,
    found_sequence,
)
from hookmq_cluster.engine import Appended, Entry, Refused, Unavailable
from hookmq_cluster.nats_client import NatsClient

ANSWER: Final = 5.0
"""Seconds until a commit without a key has an unknown result."""
REPEAT: Final = 2.0
"""Seconds until a commit with a key is repeated."""
GIVE_UP: Final = 20.0
"""Seconds for which a commit with a key is repeated."""
DUPLICATE_WINDOW: Final = 120
"""Seconds for which the stream remembers keys."""
SAFE: Final = 80.0
"""Seconds after its first attempt from which a commit is not repeated. The stream could forget its key meanwhile."""
SHORTEST_PAUSE: Final = 0.002
LONGEST_PAUSE: Final = 0.25
"""Seconds between two attempts, if a server said that it did not store anything."""
MAX_GIVEN_UP: Final = 1000

Result = Appended | Refused | Unavailable


@dataclass(slots=True, eq=False)
class _Commit:
    """A commit. `begun` and `begun_time` are the time of its first attempt, by both clocks."""

    entries: tuple[Entry, ...]
    key: str
    done: Callable[[Result], None]
    begun: float = 0.0
    begun_time: float = 0.0
    deadline: float = 0.0
    answer: str = ""
    probing: bool = False
    """The current attempt only asks whether the stream has the key."""
    refused: Refused | None = None
    """The result, if the stream does not have the key."""
    pause: float = SHORTEST_PAUSE
    timer: Timer | None = None
    reason: str = ""
    logged: int = 0
    """The code of the answer that was logged last: one line is enough for all attempts."""


class Commits:
    """Makes commits in order. `seen` is called with the last sequence of each."""

    def __init__(
        self,
        client: NatsClient,
        runtime: Runtime,
        replicated: bool,
        seen: Callable[[int], None],
    ) -> None:
        self.max_entry = 0
        self.max_batch = 1000
        self._client = client
        self._runtime = runtime
        self._replicated = replicated
        self._seen = seen
        self._queue: deque[_Commit] = deque()
        self._batch = runtime.token(8)
        self._number = 0
        self._given_up: dict[str, tuple[float, float]] = {}
        """When commits began whose result is still unknown."""
        self._idle: Callable[[], None] | None = None
        client.on_connection(self._reconnected)

    def commit(
        self, entries: Sequence[Entry], done: Callable[[Result], None], key: str = ""
    ) -> None:
        """Append `entries`; see `Engine.commit`. Raises ValueError for a commit that is not possible."""
        check_commit(entries, self.max_batch, self.max_entry)
        self._queue.append(_Commit(tuple(entries), key, done))
        if len(self._queue) == 1:
            self._begin(self._queue[0])

    def when_idle(self, call: Callable[[], None]) -> None:
        """Call `call` once no commit is without a result."""
        self._idle = call
        if not self._queue:
            call()

    # one commit --------------------------------------------------------------------------------------------------

    def _begin(self, commit: _Commit) -> None:
        now, time = self._runtime.now(), self._runtime.time()
        commit.begun, commit.begun_time = self._given_up.pop(commit.key, (now, time))
        commit.deadline = now + (GIVE_UP if commit.key else ANSWER)
        self._attempt(commit)

    def _attempt(self, commit: _Commit) -> None:
        commit.timer = None
        now = self._runtime.now()
        age = max(now - commit.begun, self._runtime.time() - commit.begun_time)
        if now >= commit.deadline or age > SAFE:
            self._finish(commit, Unavailable(commit.reason or self._client.silence()))
            return
        wait = min(REPEAT, commit.deadline - now) if commit.key else commit.deadline - now
        commit.timer = self._runtime.call_later(wait, partial(self._silent, commit))
        if not self._client.connected():
            commit.answer = ""
            return
        answer = self._client.expect(partial(self._answered, commit))
        commit.answer = answer
        if commit.probing:
            subject = commit.entries[0].subject
            data = encode_probe(subject, commit.key, answer, self._replicated)
        else:
            self._number += 1
            batch = f"{self._batch}{self._number}"
            data = encode_commit(commit.entries, commit.key, batch, answer)
        self._client.write(data, now=True)

    def _silent(self, commit: _Commit) -> None:
        """Repeat a commit that nothing answered."""
        self._stop(commit)
        self._unknown(commit)

    def _unknown(self, commit: _Commit) -> None:
        if commit.key:
            self._attempt(commit)
        else:
            self._finish(commit, Unavailable(commit.reason or self._client.silence()))

    def _answered(self, commit: _Commit, header: bytes, data: bytes | None) -> None:
        self._stop(commit)
        if data is None:
            commit.reason = "the connection was lost"
            # With a key, the attempt now waits for the next connection.
            self._unknown(commit)
            return
        answer = decode_answer(header, data)
        if answer.sequence:
            # An earlier attempt may have stored the messages: of a batch, the first one has the key.
            more = len(commit.entries) - 1 if commit.probing else 0
            self._finish(commit, Appended(answer.sequence + more))
        elif commit.probing and answer.code in UNKNOWN_KEY:
            self._without_key(commit, answer)
        elif answer.code == WRONG_LAST_SEQUENCE:
            self._mismatch(commit, answer)
        elif answer.code == DUPLICATE_IN_BATCH:
            self._probe(commit)
        else:
            self._not_stored(commit, answer)

    def _probe(self, commit: _Commit, refused: Refused | None = None) -> None:
        commit.probing = True
        commit.refused = refused
        self._attempt(commit)

    def _without_key(self, commit: _Commit, answer: PublishAnswer) -> None:
        """No message has the key: the commit was refused, or the attempt that had the key failed."""
        commit.probing = False
        if commit.refused is not None:
            self._finish(commit, commit.refused)
        else:
            self._not_stored(commit, answer)

    def _mismatch(self, commit: _Commit, answer: PublishAnswer) -> None:
        wanted = [entry.expect for entry in commit.entries if entry.expect is not None]
        found = found_sequence(answer.text)
        # The sequences of a subject only rise. An earlier one is the answer of a leader that does not know yet that it
        # lost its majority, and another one will decide.
        if all(0 < found < sequence for _, sequence in wanted):
            self._not_stored(commit, answer)
            return
        refused = Refused(wanted[0][0] if len(wanted) == 1 else "", answer.text)
        if commit.key:
            # An earlier attempt may have succeeded. Its own messages can be why the condition is no longer true.
            self._probe(commit, refused)
        else:
            self._finish(commit, refused)

    def _not_stored(self, commit: _Commit, answer: PublishAnswer) -> None:
        """Make another attempt soon, since the server said that it stored nothing."""
        commit.reason = answer.text or f"error {answer.code}"
        if answer.code not in (BUSY, DUPLICATE_IN_PROGRESS, *UNKNOWN_KEY):
            commit.pause = max(commit.pause, 0.05)
            if answer.code != commit.logged:
                commit.logged = answer.code
                self._runtime.log(
                    "warning", "cluster.commit_delayed", code=answer.code, reason=commit.reason
                )
        commit.timer = self._runtime.call_later(commit.pause, partial(self._attempt, commit))
        commit.pause = min(commit.pause * 2, LONGEST_PAUSE)

    def _stop(self, commit: _Commit) -> None:
        if commit.answer:
            self._client.forget(commit.answer)
            commit.answer = ""
        if commit.timer is not None:
            commit.timer.cancel()
            commit.timer = None

    def _finish(self, commit: _Commit, result: Result) -> None:
        self._stop(commit)
        if isinstance(result, Appended):
            self._seen(result.last)
        elif isinstance(result, Unavailable) and commit.key:
            self._given_up[commit.key] = (commit.begun, commit.begun_time)
            if len(self._given_up) > MAX_GIVEN_UP:
                del self._given_up[next(iter(self._given_up))]
        self._queue.popleft()
        if self._queue:
            self._begin(self._queue[0])
        elif self._idle is not None:
            self._runtime.call_soon(self._idle)
        try:
            commit.done(result)
        except Exception as error:
            self._runtime.log("error", "cluster.engine_callback_failed", traceback=error)

    def _reconnected(self, connected: bool) -> None:
        if connected and self._queue and not self._queue[0].answer:
            self._stop(self._queue[0])
            self._attempt(self._queue[0])
