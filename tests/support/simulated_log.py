"""A replicated log in memory, for tests and the simulator, with faults that a seed draws.

The log also carries the messages that are not stored. It has a runtime of its own, since it outlives the nodes. What it
does at one instant, such as `SimulatedLog.append`, a majority has decided. Only travel, followers that lag and lost
answers make it look different to a node. All times are virtual.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import heappop, heappush
from itertools import count
from math import inf
from random import Random
from typing import Final, NamedTuple, Protocol

from hookmq.model.runtime import Runtime
from hookmq_cluster.engine import Appended, Entry, Refused, Stored


class Reader(Protocol):
    """An engine, as the log sees it."""

    crashed: bool
    number: int
    """Different for each engine of a log."""

    def nudge(self, subjects: Collection[str]) -> None:
        """Look for new messages of `subjects`."""

    def listens(self, subject: str) -> bool:
        """Return whether anything here listens to `subject`."""

    def cuts(self) -> int:
        """Return how often the engine was cut off and connected again."""

    def arrive(self, subject: str, data: bytes, cuts: int) -> None:
        """Receive a message that is not stored, which was sent when `cuts` had this value."""


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong by itself. Probabilities are per message or request, times in seconds.

    - `latency`: the longest time of an ordinary travel to the log or back. One in `slow_one_in` takes up to 50 times as
      long; 0 means none.
    - `lost_request`: the log never gets a request. `lost_answer`: the log did what it was asked for, and no node hears of
      it.
      `late`: the log gets a request up to 10 s after the engine stopped waiting for the answer.
    - `lost_message`: a message that is not stored is lost without any notice, as while servers reconnect to each other.
    - `lag`: by how much a follower lags at most.
    - `notice`: the longest time until a node notices that it is cut off, or no longer cut off.
    - `page`: the largest number of messages in one page of `read`.
    """

    latency: float = 0.002
    slow_one_in: int = 0
    lost_request: float = 0.0
    lost_answer: float = 0.0
    late: float = 0.0
    lost_message: float = 0.0
    lag: float = 0.0
    notice: float = 0.0
    page: int = 100

    @classmethod
    def drawn(cls, random: Random) -> "Faults":
        """Return faults for one run. Each kind is absent in about half of the runs."""

        def maybe(value: float) -> float:
            return random.choice((0.0, random.uniform(0.0, value)))

        return cls(
            latency=random.choice((0.0005, 0.002, 0.02)),
            slow_one_in=random.choice((0, 16, 64)),
            lost_request=maybe(0.05),
            lost_answer=maybe(0.05),
            late=maybe(0.03),
            lost_message=maybe(0.02),
            lag=maybe(1.0),
            notice=maybe(3.0),
            page=random.choice((1, 3, 100)),
        )


QUIET: Final = Faults()
"""No faults, only latency."""


class Commit(NamedTuple):
    """One commit in the log's history, for checks: its key, its first and its last sequence."""

    key: str
    first: int
    last: int


@dataclass(slots=True)
class _Record:
    """A message with the numbers of the changes that stored and deleted it."""

    stored: Stored
    born: int
    died: float = inf


@lru_cache(maxsize=10_000)
def matches(filter_: str, subject: str) -> bool:
    """Return whether `subject` matches `filter_`, by the rules of NATS."""
    wanted, have = filter_.split("."), subject.split(".")
    if wanted[-1] == ">":
        return len(have) >= len(wanted) and all(
            one in ("*", other) for one, other in zip(wanted[:-1], have, strict=False)
        )
    return len(wanted) == len(have) and all(
        one in ("*", other) for one, other in zip(wanted, have, strict=True)
    )


class SimulatedLog:
    """The log. `runtime` is its clock: a runtime that no test kills.

    `commits` is the history of all commits. `available` says whether a majority is there.
    """

    def __init__(self, runtime: Runtime, random: Random, faults: Faults = QUIET) -> None:
        self.runtime = runtime
        self.faults = faults
        self.available = True
        self.commits: list[Commit] = []
        self.engines: list[Reader] = []
        self.numbers = count()
        """The numbers of the engines."""
        self._random = random
        self._records: list[_Record] = []
        self._of_subject: dict[str, list[int]] = {}
        self._of_filter: dict[str, list[list[int]]] = {}
        """The sequences of each subject that matches a filter, as in `_of_subject`."""
        self._keys: dict[str, Appended] = {}
        self._changes: list[float] = []
        self._ends: list[tuple[float, int]] = []
        self._broken: set[tuple[int, int]] = set()
        """The senders and receivers between which messages are lost."""

    # what a test or a check does ---------------------------------------------------------------------------------

    @property
    def sequence(self) -> int:
        """The last sequence."""
        return len(self._records)

    def append(self, entries: Sequence[Entry], key: str = "") -> Appended | Refused:
        """Decide one commit now. All conditions refer to the log before it."""
        self._expire()
        if key in self._keys:
            return self._keys[key]
        for entry in entries:
            if entry.expect is not None:
                subject, wanted = entry.expect
                last = self._last(subject, self.change())
                found = last.sequence if last is not None else 0
                if found != wanted:
                    return Refused(subject, f"its last sequence is {found}, not {wanted}")
        change = self._change()
        now = self.runtime.time()
        first = len(self._records) + 1
        for entry in entries:
            if entry.replace:
                self._delete(entry.subject, len(self._records) + 1, change)
            sequence = len(self._records) + 1
            self._records.append(
                _Record(Stored(entry.subject, sequence, bytes(entry.data), now), change)
            )
            self._index(entry.subject).append(sequence)
            if entry.ttl:
                heappush(self._ends, (self.runtime.now() + entry.ttl, sequence))
        answer = Appended(len(self._records))
        self.commits.append(Commit(key, first, answer.last))
        if key:
            self._keys[key] = answer
        subjects = {entry.subject for entry in entries}
        for engine in self.engines:
            engine.nudge(subjects)
        return answer

    def trim(self, subject: str, before: int) -> None:
        """Delete all messages of `subject`, which may have wildcards, with sequences below `before`, now."""
        self._expire()
        change = self._change()
        for one in [subject] if "*" not in subject else list(self._of_subject):
            if matches(subject, one):
                self._delete(one, before, change)

    def messages(self, filters: Sequence[str], after: int = 0) -> list[Stored]:
        """Return all messages of `filters` that are there now."""
        self._expire()
        return list(self._view(filters, after, self.change()))

    def stop(self) -> None:
        """Lose the majority: no commit, and no read from the leader, until `start`. Other messages still arrive."""
        self.available = False

    def start(self) -> None:
        """Have a majority again."""
        self.available = True

    def break_route(self, one: Reader, other: Reader, one_way: bool = False) -> None:
        """Lose all messages that are not stored between two nodes, until `mend_route`. Neither notices it. If `one_way`,
        messages from `other` to `one` still arrive.
        """
        self._broken.add((one.number, other.number))
        if not one_way:
            self._broken.add((other.number, one.number))

    def mend_route(self, one: Reader, other: Reader) -> None:
        """End `break_route`."""
        self._broken -= {(one.number, other.number), (other.number, one.number)}

    def mend_routes(self) -> None:
        """End `break_route` for all nodes."""
        self._broken.clear()

    def history(self) -> Iterator[Stored]:
        """Yield all messages that were ever stored, in order."""
        return (record.stored for record in self._records)

    # what an engine does -----------------------------------------------------------------------------------------

    def travel(self) -> float:
        """Draw the seconds of one travel to the log or back."""
        faults = self.faults
        slow = faults.slow_one_in and self._random.randrange(faults.slow_one_in) == 0
        return self._random.random() * faults.latency * (50 if slow else 1)

    def happens(self, probability: float) -> bool:
        """Draw whether a fault happens."""
        return probability > 0.0 and self._random.random() < probability

    def draw(self, longest: float) -> float:
        """Draw seconds."""
        return self._random.random() * longest if longest else 0.0

    def change(self) -> int:
        """Return the number of the last change."""
        return len(self._changes)

    def seen_by_follower(self, at_least: int) -> int:
        """Draw the last change that a follower has, which has all messages up to the sequence `at_least`."""
        self._expire()
        when = self.runtime.now() - self.draw(self.faults.lag)
        change = bisect_right(self._changes, when)
        if at_least:
            change = max(change, self._records[at_least - 1].born)
        return change

    def last_in(self, subject: str, change: int) -> Stored | None:
        """Return the last message of `subject` after `change`."""
        self._expire()
        return self._last(subject, change)

    def page_in(self, filters: Sequence[str], after: int, change: int) -> list[Stored]:
        """Return the first messages above `after`, as after `change`."""
        self._expire()
        found: list[Stored] = []
        size = 0
        for one in self._view(filters, after, change):
            found.append(one)
            size += len(one.data)
            if len(found) == self.faults.page or size > 1_000_000:
                break
        return found

    def delivers(self, sender: Reader, receiver: Reader) -> bool:
        """Draw whether a message that is not stored gets from one node to the other."""
        return (sender.number, receiver.number) not in self._broken and not self.happens(
            self.faults.lost_message
        )

    # parts -------------------------------------------------------------------------------------------------------

    def _change(self) -> int:
        self._changes.append(self.runtime.now())
        return len(self._changes)

    def _expire(self) -> None:
        now = self.runtime.now()
        while self._ends and self._ends[0][0] <= now:
            _, sequence = heappop(self._ends)
            record = self._records[sequence - 1]
            if record.died == inf:
                record.died = self._change()

    def _delete(self, subject: str, before: int, change: int) -> None:
        sequences = self._of_subject.get(subject, [])
        for sequence in sequences[: bisect_left(sequences, before)]:
            record = self._records[sequence - 1]
            if record.died == inf:
                record.died = change

    def _last(self, subject: str, change: int) -> Stored | None:
        for sequence in reversed(self._of_subject.get(subject, [])):
            record = self._records[sequence - 1]
            if record.born <= change < record.died:
                return record.stored
        return None

    def _index(self, subject: str) -> list[int]:
        """Return the sequences of a subject. It may be new."""
        found = self._of_subject.get(subject)
        if found is None:
            found = self._of_subject[subject] = []
            for filter_, lists in self._of_filter.items():
                if matches(filter_, subject):
                    lists.append(found)
        return found

    def _matching(self, filter_: str) -> list[list[int]]:
        """Return the sequences of each subject that matches a filter."""
        found = self._of_filter.get(filter_)
        if found is None:
            found = self._of_filter[filter_] = [
                one for subject, one in self._of_subject.items() if matches(filter_, subject)
            ]
        return found

    def _view(self, filters: Sequence[str], after: int, change: int) -> Iterator[Stored]:
        sequences: set[int] = set()
        for filter_ in filters:
            for one in self._matching(filter_):
                if one and one[-1] > after:
                    sequences.update(one[bisect_right(one, after) :])
        for sequence in sorted(sequences):
            record = self._records[sequence - 1]
            if record.born > change:
                return
            if change < record.died:
                yield record.stored


def quiet(faults: Faults) -> Faults:
    """Return `faults` without those that lose anything: for the end of a run, when everything must settle."""
    return replace(
        faults, slow_one_in=0, lost_request=0.0, lost_answer=0.0, late=0.0, lost_message=0.0
    )
