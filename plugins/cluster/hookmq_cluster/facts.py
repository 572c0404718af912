"""What plugins share between nodes: one entry of the log for each fact. Implements `hookmq_toolkit.shared_facts`."""

from collections.abc import Callable
from functools import partial
from math import ceil
from typing import Final, NamedTuple

from hookmq.plugin import Runtime
from hookmq_toolkit.shared_facts import MAX_FACT, FactChanged

from hookmq_cluster.engine import TOMBSTONE, Appended, Engine, Entry, Refused, Stored, Unavailable
from hookmq_cluster.filling import ask
from hookmq_cluster.frames import FrameError, decode_value, encode_value
from hookmq_cluster.names import Names

VERSION: Final = 1
_FORGET: Final = 1000
"""Facts that have ended are forgotten if there are at least this many facts."""
_RETRY: Final = 1.0
"""Seconds until a fact is written again after the log did not answer."""


class Fact(NamedTuple):
    """A fact, or that it was withdrawn if `value` is None. `until` is in epoch seconds."""

    space: str
    key: str
    value: bytes | None
    until: float


def encode_fact(fact: Fact) -> bytes:
    """Return the stored form of a fact."""
    return encode_value((VERSION, *fact))


def decode_fact(data: bytes) -> Fact:
    """Return the fact in `data`. Raises FrameError if it is damaged or has another version."""
    value = decode_value(data)
    if type(value) is not tuple or len(value) != 5 or value[0] != VERSION:
        raise FrameError("not a fact of a known version")
    _, space, key, content, until = value
    if not (type(space) is str and type(key) is str and type(until) is float):
        raise FrameError("expected version, space, key, value, end")
    if content is not None and type(content) is not bytes:
        raise FrameError("the value of a fact is not bytes")
    return Fact(space, key, content, until)


def fact_entry(names: Names, now: float, fact: Fact) -> Entry:
    """Return the entry of the log for a fact. The log deletes it when it ends. `now` is in epoch seconds."""
    subject = names.fact(fact.space, fact.key)
    return Entry(subject, encode_fact(fact), replace=True, ttl=max(1, ceil(fact.until - now)))


class ClusterFacts:
    """The facts of a cluster. Call `start` first."""

    _runtime: Runtime
    _names: Names

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._facts: dict[tuple[str, str], Fact] = {}
        self._most = _FORGET
        self._unwritten: dict[tuple[str, str], Fact] = {}
        self._followers: list[tuple[str, FactChanged]] = []
        self._end: Callable[[], None] | None = None

    async def start(self, engine: Engine, names: Names, runtime: Runtime) -> None:
        """Read all facts, then follow the log. Raises StoreError if the log does not answer."""
        self._runtime, self._names = runtime, names
        after = 0
        while True:
            page: list[Stored] = await ask(runtime, partial(engine.read, (names.facts,), after))
            if not page:
                break
            for stored in page:
                self._receive(stored)
            after = page[-1].sequence
        self._engine = engine
        self._end = engine.follow((names.facts,), after, self._receive)

    def close(self) -> None:
        """Stop following the log."""
        if self._end is not None:
            self._end()
            self._end = self._engine = None

    # hookmq_toolkit.shared_facts.SharedFacts ---------------------------------------------------------------------

    def follow(self, space: str, changed: FactChanged) -> Callable[[], None]:
        """Report all facts of a space; see `SharedFacts.follow`."""
        self._forget()
        now = self._runtime.time()
        follower = (space, changed)
        self._followers.append(follower)
        for fact in list(self._facts.values()):
            if fact.space == space:
                changed(fact.key, fact.value, fact.until - now)

        def end() -> None:
            if follower in self._followers:
                self._followers.remove(follower)

        return end

    def put(self, space: str, key: str, value: bytes, seconds: float) -> None:
        """Share a fact; see `SharedFacts.put`."""
        size = len(key.encode(errors="surrogatepass")) + len(value)
        if size > MAX_FACT:
            raise ValueError(f"a fact of {size} bytes; possible: up to {MAX_FACT}")
        self._change(Fact(space, key, value, float(self._runtime.time() + seconds)))

    def withdraw(self, space: str, key: str) -> None:
        """Withdraw a fact; see `SharedFacts.withdraw`."""
        self._change(Fact(space, key, None, float(self._runtime.time() + TOMBSTONE)))

    # parts -------------------------------------------------------------------------------------------------------

    def _change(self, fact: Fact) -> None:
        self._unwritten[fact.space, fact.key] = fact
        self._write(fact)

    def _write(self, fact: Fact) -> None:
        one = (fact.space, fact.key)
        engine = self._engine
        if engine is None or self._unwritten.get(one) is not fact:
            return
        now = self._runtime.time()
        if fact.until <= now:
            del self._unwritten[one]
            return

        def written(result: Appended | Refused | Unavailable) -> None:
            if isinstance(result, Appended):
                if self._unwritten.get(one) is fact:
                    del self._unwritten[one]
            else:
                self._runtime.log("warning", "cluster.fact_delayed", reason=result.reason)
                self._runtime.call_later(_RETRY, partial(self._write, fact))

        engine.commit((fact_entry(self._names, now, fact),), written)

    def _forget(self) -> None:
        """Forget the facts that have ended. Nothing reports their end."""
        now = self._runtime.time()
        self._facts = {one: fact for one, fact in self._facts.items() if fact.until > now}
        self._most = max(_FORGET, 2 * len(self._facts))

    def _receive(self, stored: Stored) -> None:
        try:
            fact = decode_fact(stored.data)
        except FrameError as error:
            self._runtime.log(
                "error", "cluster.fact_invalid", subject=stored.subject, reason=str(error)
            )
            return
        if fact.value is None:
            self._facts.pop((fact.space, fact.key), None)
        else:
            self._facts[fact.space, fact.key] = fact
            if len(self._facts) >= self._most:
                self._forget()
        left = fact.until - self._runtime.time()
        if left <= 0:
            return
        for space, changed in list(self._followers):
            if space == fact.space:
                try:
                    changed(fact.key, fact.value, left)
                except Exception as error:
                    self._runtime.log("error", "cluster.fact_failed", space=space, traceback=error)
