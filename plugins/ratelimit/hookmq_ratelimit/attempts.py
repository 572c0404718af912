"""Connection attempts whose credentials have not been checked yet.

An attempt takes a token from every `auth_failures` bucket that it counts against, before any plugin checks its
credentials. If a credential is wrong, the tokens are used up; after any other outcome they are returned. An attempt
that finds no token waits while earlier attempts are undecided, because those may return their tokens.
"""

from collections.abc import Sequence

from hookmq_ratelimit.buckets import Bucket


class Attempt:
    """A connection attempt and the tokens it has taken."""

    __slots__ = ("_fulls", "buckets")

    def __init__(self, buckets: Sequence[Bucket], now: float) -> None:
        self.buckets = tuple(buckets)
        self._fulls: list[tuple[float, ...]] = []
        for bucket in buckets:
            bucket.use(now, 1)
            bucket.trials.undecided(now)  # removes lapsed attempts
            self._fulls.append(tuple(cell.full for cell in bucket.cells))
            bucket.trials.open[self] = now

    def settle(self, now: float, wrong: bool) -> None:
        """End the attempt. Use up its tokens if the credential was `wrong`; otherwise return those that have not been
        refilled."""
        for bucket, fulls in zip(self.buckets, self._fulls, strict=True):
            trials = bucket.trials
            trials.open.pop(self, None)
            if wrong:
                if not trials.open:
                    trials.wake(len(trials.waiting))
                continue
            for cell, full in zip(bucket.cells, fulls, strict=True):
                cell.full -= min(max(full - now, 0.0), cell.interval)
            trials.wake(1)
