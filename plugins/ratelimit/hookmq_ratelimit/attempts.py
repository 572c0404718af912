"""Attempts to come in whose outcome is not known yet.

An attempt takes a token of every `auth_failures` bucket it counts against before any credential is looked at. A wrong
credential keeps the tokens, anything else gives them back. An attempt that finds no token waits while earlier ones are
undecided, since they may give theirs back.
"""

from collections.abc import Sequence

from hookmq_ratelimit.buckets import Bucket


class Attempt:
    """One attempt, and the tokens that it holds."""

    __slots__ = ("_fulls", "buckets")

    def __init__(self, buckets: Sequence[Bucket], now: float) -> None:
        self.buckets = tuple(buckets)
        self._fulls: list[tuple[float, ...]] = []
        for bucket in buckets:
            bucket.use(now, 1)
            bucket.trials.undecided(now)  # forgets those that lapsed
            self._fulls.append(tuple(cell.full for cell in bucket.cells))
            bucket.trials.open[self] = now

    def settle(self, now: float, wrong: bool) -> None:
        """End the attempt: keep its tokens if the credential was `wrong`, else return what of them has not come back
        by itself."""
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
