"""An engine in memory, for tests and the simulator: one node's connection to a `SimulatedLog`.

All times are virtual. See `simulated_log` for the log and its faults.
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final, TypeVar

from hookmq.model.runtime import Runtime, Timer
from hookmq_cluster.batch_publish import check_commit
from hookmq_cluster.engine import Appended, Entry, Refused, Stored, Unavailable
from simulated_log import QUIET, Commit, Faults, SimulatedLog, matches, quiet

__all__ = ["QUIET", "Commit", "Faults", "LateAnswers", "SimulatedEngine", "SimulatedLog", "quiet"]

ANSWER: Final = 1.0
"""Seconds until an engine regards a request as unanswered."""
GIVE_UP: Final = 20.0
"""Seconds for which an engine repeats a commit that has a key."""

Result = Appended | Refused | Unavailable
Answer = TypeVar("Answer")


@dataclass(slots=True, eq=False)
class _Request:
    """A commit that waits for its turn or its answer. `attempt` is the number of the current attempt."""

    entries: tuple[Entry, ...]
    key: str
    done: Callable[[Result], None]
    attempt: int = 0
    decided: bool = False
    begun: float = 0.0
    timer: Timer | None = None


@dataclass(slots=True, eq=False)
class _Following:
    filters: tuple[str, ...]
    position: int
    receive: Callable[[Stored], None]
    due: bool = False


@dataclass(slots=True, eq=False)
class _Listening:
    subject: str
    receive: Callable[[str, bytes], None]


class SimulatedEngine:
    """One node's engine. `runtime` is the node's; all callbacks are turns of it.

    `cut` and `heal` cut the node off from the log and from all other nodes, `crash` ends the node. What a node had sent
    to the log before a crash can still be appended.
    """

    def __init__(self, log: SimulatedLog, runtime: Runtime, random: Random) -> None:
        self.max_entry = 1_000_000
        self.max_batch = 1000
        self.is_cut = False
        self.crashed = False
        self.number = next(log.numbers)
        self._log = log
        self._runtime = runtime
        self._random = random
        self._seen = 0
        self._connected = True
        self._cuts = 0
        self._queue: deque[_Request] = deque()
        self._following: list[_Following] = []
        self._listening: list[_Listening] = []
        self._watching: list[Callable[[bool], None]] = []
        self._closing: Callable[[], None] | None = None
        self._arrivals: dict[int, float] = {}
        """When the last message to each receiver arrives, so that later ones do not overtake it."""
        log.engines.append(self)

    # hookmq_cluster.engine.Engine --------------------------------------------------------------------------------

    def commit(
        self, entries: Sequence[Entry], done: Callable[[Result], None], key: str = ""
    ) -> None:
        """Append `entries`; see `Engine.commit`."""
        check_commit(entries, self.max_batch, self.max_entry)
        self._queue.append(_Request(tuple(entries), key, done))
        if len(self._queue) == 1:
            self._begin()

    def last(
        self,
        subject: str,
        done: Callable[[Stored | None | Unavailable], None],
        exact: bool = False,
    ) -> None:
        """Read the last message of a subject; see `Engine.last`."""

        def read() -> Stored | None | Unavailable:
            if not exact:
                return self._log.last_in(subject, self._log.seen_by_follower(0))
            return self._log.last_in(subject, self._log.change())

        def read_done(answer: Stored | None | Unavailable) -> None:
            if isinstance(answer, Stored):
                self._seen = max(self._seen, answer.sequence)
            done(answer)

        self._ask(read, read_done, leader=exact)

    def read(
        self, filters: Sequence[str], after: int, done: Callable[[list[Stored] | Unavailable], None]
    ) -> None:
        """Read a page; see `Engine.read`."""

        def read() -> list[Stored] | Unavailable:
            return self._log.page_in(filters, after, self._log.seen_by_follower(self._seen))

        def read_done(answer: list[Stored] | Unavailable) -> None:
            if not isinstance(answer, Unavailable) and answer:
                self._seen = max(self._seen, answer[-1].sequence)
            done(answer)

        self._ask(read, read_done, leader=True)

    def follow(
        self, filters: Sequence[str], after: int, receive: Callable[[Stored], None]
    ) -> Callable[[], None]:
        """Follow subjects; see `Engine.follow`."""
        following = _Following(tuple(filters), after, receive)
        self._following.append(following)
        self._pump_later(following)

        def end() -> None:
            if following in self._following:
                self._following.remove(following)

        return end

    def trim(self, subject: str, before: int, done: Callable[[Unavailable | None], None]) -> None:
        """Delete the oldest messages of a subject; see `Engine.trim`."""
        self._ask(lambda: self._log.trim(subject, before), done, leader=True)

    def send(self, subject: str, data: bytes) -> None:
        """Send a message that is not stored; see `Engine.send`."""
        if self.is_cut or self.crashed:
            return
        for receiver in self._log.engines:
            if receiver.crashed or not receiver.listens(subject):
                continue
            now = self._log.runtime.now()
            arrival = max(
                now + self._log.travel() + self._log.travel(),
                self._arrivals.get(receiver.number, 0.0),
            )
            self._arrivals[receiver.number] = arrival
            if self._log.delivers(self, receiver):
                # Timers that are due at the same time run in the order in which they were made.
                self._log.runtime.call_later(
                    arrival - now, partial(receiver.arrive, subject, bytes(data), receiver.cuts())
                )

    def listen(self, subject: str, receive: Callable[[str, bytes], None]) -> Callable[[], None]:
        """Receive messages that are not stored; see `Engine.listen`."""
        listening = _Listening(subject, receive)
        self._listening.append(listening)

        def end() -> None:
            if listening in self._listening:
                self._listening.remove(listening)

        return end

    def connected(self) -> bool:
        """Return whether the node believes that it is connected."""
        return self._connected

    def on_connection(self, call: Callable[[bool], None]) -> None:
        """Call `call` when the node notices a change; see `Engine.on_connection`."""
        self._watching.append(call)

    def close(self, done: Callable[[], None]) -> None:
        """End the connection once all commits have a result."""
        self._closing = done
        if not self._queue:
            self._close()

    # faults ------------------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Cut the node off. Requests and messages under way in either direction are lost."""
        if not self.is_cut:
            self.is_cut = True
            self._cuts += 1
            self._log.runtime.call_later(
                self._log.draw(self._log.faults.notice), partial(self._notice, self._cuts)
            )

    def heal(self) -> None:
        """Connect the node again."""
        if not self.is_cut:
            return
        self.is_cut = False
        self._notice(self._cuts, cut=True)
        self._cuts += 1
        self._log.runtime.call_later(
            self._log.draw(self._log.faults.notice), partial(self._back, self._cuts)
        )

    def crash(self) -> None:
        """End the node: no callback is called any more."""
        self.crashed = True
        self._log.engines.remove(self)
        for request in self._queue:
            if request.timer is not None:
                request.timer.cancel()

    # what the log and other engines call -------------------------------------------------------------------------

    def nudge(self, subjects: Collection[str] | None = None) -> None:
        """Look for new messages of `subjects`, or of all."""
        for following in self._following:
            if subjects is None or any(
                matches(one, subject) for one in following.filters for subject in subjects
            ):
                self._pump_later(following)

    def listens(self, subject: str) -> bool:
        """Return whether anything here listens to `subject`."""
        return any(matches(one.subject, subject) for one in self._listening)

    def cuts(self) -> int:
        """Return how often the node was cut off and connected again."""
        return self._cuts

    def arrive(self, subject: str, data: bytes, cuts: int) -> None:
        """Receive a message that is not stored. It is lost if the node was cut off since it was sent."""
        if not self.is_cut and cuts == self._cuts:
            self._turn(partial(self._receive, subject, data))

    def _receive(self, subject: str, data: bytes) -> None:
        for listening in list(self._listening):
            if listening in self._listening and matches(listening.subject, subject):
                listening.receive(subject, data)

    # parts -------------------------------------------------------------------------------------------------------

    def _turn(self, call: Callable[[], None]) -> None:
        def run() -> None:
            if not self.crashed:
                call()

        if not self.crashed:
            self._runtime.call_soon(run)

    def _begin(self) -> None:
        request = self._queue[0]
        request.begun = self._runtime.now()
        self._attempt(request)

    def _attempt(self, request: _Request) -> None:
        log, faults = self._log, self._log.faults
        request.attempt += 1
        request.timer = self._runtime.call_later(ANSWER, partial(self._unknown, request))
        if not self.is_cut and not log.happens(faults.lost_request):
            late = ANSWER + log.draw(10.0) if log.happens(faults.late) else 0.0
            arrive = partial(self._arrive, request, request.attempt, self._cuts)
            log.runtime.call_later(log.travel() + late, arrive)

    def _arrive(self, request: _Request, attempt: int, cuts: int) -> None:
        """Decide a commit at the log. A request that a cut overtakes is lost, or only its answer is."""
        log = self._log
        if not log.available or (cuts != self._cuts and log.happens(0.5)):
            return
        if request.key and request.decided:
            return  # a late attempt whose result is known by another attempt
        result = log.append(request.entries, request.key)
        if not log.happens(log.faults.lost_answer):
            log.runtime.call_later(
                log.travel(), partial(self._answer, request, attempt, cuts, result)
            )

    def _answer(self, request: _Request, attempt: int, cuts: int, result: Result) -> None:
        if not self.is_cut and cuts == self._cuts:
            self._turn(partial(self._answered, request, attempt, result))

    def _answered(self, request: _Request, attempt: int, result: Result) -> None:
        if self._queue and self._queue[0] is request and attempt == request.attempt:
            self._finish(request, result)

    def _unknown(self, request: _Request) -> None:
        if self.crashed:
            return
        if not request.key or self._runtime.now() - request.begun > GIVE_UP - ANSWER:
            self._finish(request, Unavailable("the engine did not answer"))
        else:
            self._attempt(request)

    def _finish(self, request: _Request, result: Result) -> None:
        if request.timer is not None:
            request.timer.cancel()
        request.decided = not isinstance(result, Unavailable)
        if isinstance(result, Appended):
            self._seen = max(self._seen, result.last)
        self._queue.popleft()
        if self._queue:
            self._begin()
        elif self._closing is not None:
            self._close()
        request.done(result)

    def _ask(
        self,
        read: Callable[[], Answer],
        done: Callable[[Answer | Unavailable], None],
        leader: bool,
    ) -> None:
        """Call `read` at the log, and `done` with its result, or with Unavailable if the answer does not come."""
        log, faults = self._log, self._log.faults
        open_ = [True]

        def finish(answer: Answer | Unavailable) -> None:
            if open_ and not self.crashed:
                open_.clear()
                timer.cancel()
                done(answer)

        def arrive() -> None:
            if (leader and not log.available) or cuts != self._cuts:
                return
            answer = read()
            if not log.happens(faults.lost_answer):
                log.runtime.call_later(log.travel(), partial(deliver, answer))

        def deliver(answer: Answer) -> None:
            if not self.is_cut and cuts == self._cuts:
                self._turn(partial(finish, answer))

        cuts = self._cuts
        timer = self._runtime.call_later(
            ANSWER, partial(finish, Unavailable("the engine did not answer"))
        )
        if not self.is_cut and not log.happens(faults.lost_request):
            log.runtime.call_later(log.travel(), arrive)

    def _pump_later(self, following: _Following) -> None:
        if following.due or self.is_cut or self.crashed:
            return
        following.due = True
        delay = self._log.travel() + self._log.draw(self._log.faults.lag)
        self._log.runtime.call_later(delay, partial(self._pump, following))

    def _pump(self, following: _Following) -> None:
        following.due = False
        if not self.is_cut:
            page = self._log.page_in(following.filters, following.position, self._log.change())
            self._turn(partial(self._deliver, following, page))

    def _deliver(self, following: _Following, page: list[Stored]) -> None:
        for message in page:
            if following not in self._following:
                return
            if message.sequence > following.position:
                following.position = message.sequence
                self._seen = max(self._seen, message.sequence)
                following.receive(message)
        if page:
            self._pump_later(following)

    def _notice(self, cuts: int, cut: bool = False) -> None:
        if self._connected and self._cuts == cuts and (cut or self.is_cut):
            self._connected = False
            self._turn(partial(self._tell, False))

    def _back(self, cuts: int) -> None:
        if not self._connected and self._cuts == cuts:
            self._connected = True
            self._turn(partial(self._tell, True))
            self.nudge()

    def _tell(self, connected: bool) -> None:
        for call in list(self._watching):
            call(connected)

    def _close(self) -> None:
        done, self._closing = self._closing, None
        if self in self._log.engines:
            self._log.engines.remove(self)
        self._following.clear()
        self._listening.clear()
        if done is not None:
            self._turn(done)


class LateAnswers:
    """Keeps an engine's answers to commits that begin with `subject`, until `give`."""

    def __init__(self, engine: SimulatedEngine, subject: str) -> None:
        self._engine = engine
        self._subject = subject
        self._commit = engine.commit
        self._held: list[Callable[[], None]] = []
        engine.commit = self._take  # type: ignore[method-assign]

    def _take(
        self, entries: Sequence[Entry], done: Callable[[Result], None], key: str = ""
    ) -> None:
        if entries[0].subject == self._subject:
            self._commit(entries, lambda result: self._held.append(partial(done, result)), key)
        else:
            self._commit(entries, done, key)

    def give(self) -> None:
        """Pass on the answers, and keep no more of them."""
        self._engine.commit = self._commit  # type: ignore[method-assign]
        held, self._held = self._held, []
        for answer in held:
            answer()
