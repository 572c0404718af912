"""Limits on connection attempts and on wrong credentials."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from hookmq.plugin import ClientInfo, Deny, Promise, ReasonCode, Runtime

from hookmq_ratelimit.addresses import short
from hookmq_ratelimit.attempts import Attempt
from hookmq_ratelimit.buckets import Bucket
from hookmq_ratelimit.limit_table import LimitTable

FAILED: Final = frozenset(
    {
        ReasonCode.BAD_USER_NAME_OR_PASSWORD,
        ReasonCode.NOT_AUTHORIZED,
        ReasonCode.BAD_AUTHENTICATION_METHOD,
    }
)
"""The reason codes for a wrong credential. This plugin's own refusals use other codes."""
PATIENCE: Final = 4.0
"""Seconds that an attempt waits for earlier attempts. The hook's timeout is longer."""


class LoginGuard:
    """Decides whether a connection may proceed to authentication. `id` is the plugin id.

    `over` is called with each bucket that refuses a client, and returns the verdict. `size` limits the number of user
    addresses that are remembered.
    """

    def __init__(
        self, table: LimitTable, id: str, size: int, over: Callable[[Bucket, ClientInfo], Deny]
    ) -> None:
        self._table = table
        self._attempt = f"{id}.attempt"
        """The key of a client's `Attempt` in its state."""
        self._size = size
        self._over = over
        self.known: OrderedDict[tuple[str, str], None] = OrderedDict()
        """Pairs of a user and a network from which the user was accepted."""

    def decide(self, client: ClientInfo, runtime: Runtime) -> Deny | Awaitable[Deny | None] | None:
        """Count a connection attempt, and return a refusal if it exceeds a limit. Return an awaitable if the attempt
        must wait.
        """
        table, now = self._table, runtime.now()
        wanted = [table.bucket(one, client, now) for one in table.concerned("connections")]
        for bucket in wanted:
            if bucket.delay(now, 1) > 0.0:
                return self._over(bucket, client)
        guarded = self._guarded(client, now)
        used_up = self._reserve(client, guarded, now, True)
        if used_up is not None and not used_up.trials.undecided(now):
            return self._over(used_up, client)
        for one in wanted:
            one.use(now, 1)
        return None if used_up is None else self._wait(client, guarded, used_up, runtime)

    def accepted(self, client: ClientInfo, vouched: bool, now: float) -> None:
        """Return an accepted client's tokens to their buckets. Remember its address if its user name is `vouched` for."""
        attempt: Attempt | None = client.state.pop(self._attempt, None)
        if attempt is not None:
            attempt.settle(now, False)
        table = self._table
        if (
            client.username
            and vouched
            and any(one.per == "user" for one in table.concerned("auth_failures"))
        ):
            known = (short(client.username), table.network(client))
            self.known[known] = None
            self.known.move_to_end(known)
            if len(self.known) > self._size:
                self.known.popitem(last=False)

    def failed(self, client: ClientInfo, code: ReasonCode, counts: bool, now: float) -> None:
        """Settle a refused client's attempt. If `counts` is True, count a wrong credential."""
        wrong = code in FAILED
        attempt: Attempt | None = client.state.pop(self._attempt, None)
        if attempt is not None:
            attempt.settle(now, wrong)
        if not wrong or not counts:
            return
        settled = () if attempt is None else attempt.buckets
        table = self._table
        for allowance in table.concerned("auth_failures"):
            user = short(client.username or "")
            key = table.network(client) if allowance.per == "ip" else user
            if not key or any((b.limit.name, b.key) == (allowance.name, key) for b in settled):
                continue
            bucket = table.bucket_of(allowance, key, now)
            # Limit the debt: many simultaneous failures must not lock an address out for hours.
            if bucket.delay(now, 1) <= bucket.limit.rates[-1].per_seconds:
                bucket.use(now, 1)

    def _guarded(self, client: ClientInfo, now: float) -> list[Bucket]:
        """Return the `auth_failures` buckets that an attempt of `client` counts against."""
        table = self._table
        found = []
        for allowance in table.concerned("auth_failures"):
            if allowance.per != "user":
                found.append(table.bucket(allowance, client, now))
                continue
            user = short(client.username or "")
            # Guesses from elsewhere do not lock a user out at addresses where it was accepted before.
            if user and (user, table.network(client)) not in self.known:
                found.append(table.bucket_of(allowance, user, now))
        return found

    def _reserve(
        self, client: ClientInfo, guarded: list[Bucket], now: float, last: bool
    ) -> Bucket | None:
        """Take a token from each bucket, or return the first bucket that has none.

        Tokens are taken before any plugin checks the credentials. Otherwise, many guesses sent at once would all be
        checked before the first one was counted. With `last`, attempts that are already waiting are served first.
        """
        for bucket in guarded:
            if bucket.delay(now, 1) > 0.0 or (last and bucket.trials.waiting):
                return bucket
        if guarded:
            client.state[self._attempt] = Attempt(guarded, now)
        return None

    async def _wait(
        self, client: ClientInfo, guarded: list[Bucket], used_up: Bucket, runtime: Runtime
    ) -> Deny | None:
        """Wait for earlier attempts to be decided. They return their tokens if their credentials are right."""
        until = runtime.now() + PATIENCE
        while True:
            trials, promise = used_up.trials, runtime.promise()
            trials.waiting[promise] = None
            timer = runtime.call_later(until - runtime.now(), partial(_wake, promise))
            try:
                await promise
            except BaseException:
                if promise not in trials.waiting:
                    trials.wake(1)  # it was this attempt's turn
                raise
            finally:
                timer.cancel()
                trials.waiting.pop(promise, None)
            now = runtime.now()
            late = self._reserve(client, guarded, now, False)
            if late is not used_up:
                trials.wake(1)  # there may be tokens for another one
            if late is None:
                return None
            if now >= until or not late.trials.undecided(now):
                return self._over(late, client)
            used_up = late


def _wake(promise: Promise) -> None:
    if not promise.done():
        promise.set_result(None)
