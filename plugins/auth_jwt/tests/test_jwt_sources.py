"""Test fetching keys from a URL on a virtual clock. Events occur in arbitrary order."""

from typing import Any

from hookmq_auth_jwt.config import FetchConfig, JwtConfig
from hookmq_auth_jwt.fetch import FetchFailed
from hookmq_auth_jwt.sources import UrlSource
from hookmq_testing import VirtualRuntime
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tokens import jwk, jwks

SETTINGS = FetchConfig(refresh=60.0, max_age=300.0, miss_interval=10.0, max_waiting=5)
SETS = {
    kids: jwks(*[jwk("Ed25519", f"k{n}", n) for n in kids]) for kids in [(), (0,), (1,), (0, 1), (2,)]
}  # fmt: skip


class Fetching(RuleBasedStateMachine):
    """A state machine that compares the key source with a model. The model consists of the last response and
    its time.
    """

    @initialize()
    def begin(self) -> None:
        self.runtime = VirtualRuntime()
        config = JwtConfig(jwks_url="https://idp.example/keys", jwks=SETTINGS)
        self.source = UrlSource(config.sources[0], config)
        self.source.fetch = self.fetch
        self.pending: list[Any] = []
        self.running = 0
        self.starts: list[float] = []
        self.good: tuple[float, tuple[int, ...]] | None = None
        self.gone: list[frozenset[str]] = []
        self.waiters: list[Any] = []
        self.ended = False
        self.source.begin(self.runtime, lambda *args, **fields: None, self.changed)
        self.wait(self.source.refresh())
        self.runtime.run_until_idle()

    def changed(self, source: Any, gone: frozenset[str]) -> None:
        self.gone.append(gone)

    async def fetch(self, url: str, config: Any) -> bytes:
        self.running += 1
        assert self.running == 1, "one fetch at a time"
        self.starts.append(self.runtime.now())
        event = self.runtime.event()
        self.pending.append(event)
        try:
            answer = await event
        finally:
            self.running -= 1
        if isinstance(answer, Exception):
            raise answer
        return bytes(answer)

    def wait(self, promise: Any) -> None:
        if promise is not None:
            self.waiters.append(promise)

    @rule(kids=st.sampled_from(sorted(SETS)))
    def answer(self, kids: tuple[int, ...]) -> None:
        if self.pending and not self.ended:
            self.pending.pop().set(SETS[kids])
            self.runtime.run_until_idle()
            self.good = (self.runtime.now(), kids)
            self.all_woken()

    @rule(what=st.sampled_from([FetchFailed("dead"), OSError("x"), b"garbage", b'{"keys": 1}']))
    def fail(self, what: Any) -> None:
        if self.pending and not self.ended:
            self.pending.pop().set(what)
            self.runtime.run_until_idle()
            assert self.source.fails
            self.all_woken()

    def all_woken(self) -> None:
        assert all(one.done() for one in self.waiters)
        self.waiters.clear()

    @rule(seconds=st.sampled_from([0.5, 3.0, 11.0, 70.0, 400.0]))
    def pass_time(self, seconds: float) -> None:
        self.runtime.advance(seconds)

    @rule()
    def miss(self) -> None:
        before = len(self.starts)
        recent = self.starts and self.runtime.now() - self.starts[-1] < SETTINGS.miss_interval
        promise = self.source.missed()
        self.runtime.run_until_idle()
        self.wait(promise)
        if recent:
            assert len(self.starts) == before, "not so soon"
        if self.ended:
            assert promise is None

    @rule()
    def reload(self) -> None:
        self.wait(self.source.refresh())
        self.runtime.run_until_idle()
        assert len(self.waiters) <= SETTINGS.max_waiting

    @rule()
    def end(self) -> None:
        if len(self.starts) > 3 and not self.ended:
            self.ended = True
            self.source.end()
            self.runtime.run_until_idle()
            assert self.running == 0
            self.all_woken()
            self.pending.clear()
            self.count = len(self.starts)

    @invariant()
    def the_keys_are_those_of_the_last_good_answer(self) -> None:
        if not hasattr(self, "source"):
            return
        now = self.runtime.now()
        expected: tuple[str, ...] = ()
        if self.good is not None and now - self.good[0] <= SETTINGS.max_age:
            expected = tuple(f"k{n}" for n in self.good[1])
        assert tuple(key.kid for key in self.source.keys(now)) == expected

    @invariant()
    def it_never_rests_for_ever(self) -> None:
        if hasattr(self, "source") and not self.ended:
            assert self.running or self.runtime.next_timer() is not None
        if getattr(self, "ended", False):
            assert len(self.starts) == self.count


Fetching.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestFetching = Fetching.TestCase
