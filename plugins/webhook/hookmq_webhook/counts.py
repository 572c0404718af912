"""Count attempts and their results, and add up the counters of several processes."""

from collections.abc import Mapping, Sequence
from typing import Any

from hookmq.plugin import Exemplar, Histogram

from hookmq_webhook.failures import word_of
from hookmq_webhook.queues import Numbered

_FAILURE = "failure "
_STATUS = "status_"


class Counts:
    """Counters of a dispatcher."""

    def __init__(self) -> None:
        self.delivered = 0
        self.attempts = 0
        self.failed = 0
        self.failures: dict[str, int] = {}
        """Number of failed requests by the word of their reason; see `hookmq_webhook.failures`."""
        self.given_up = 0
        self.durations = Histogram()

    def timed(self, seconds: float, time: float, events: Sequence[Numbered]) -> None:
        """Count a request that ended at `time`, in epoch seconds. If one of its messages has a sampled trace, the trace
        becomes an exemplar.
        """
        self.durations.add(seconds)
        for one in events:
            trace = one.event.trace
            if trace is not None and int(trace[-2:], 16) & 1:
                self.durations.exemplify(Exemplar(seconds, trace.split("-")[1], time))
                break

    def fail(self, reason: str) -> None:
        """Count a failed request."""
        self.failed += 1
        word = word_of(reason)
        self.failures[word] = self.failures.get(word, 0) + 1

    @property
    def plain(self) -> dict[str, float]:
        """The counters by name."""
        made: dict[str, float] = {
            "delivered": self.delivered, "attempts": self.attempts, "failed": self.failed, "given_up": self.given_up,
        }  # fmt: skip
        return made | {_FAILURE + word: count for word, count in self.failures.items()}

    @property
    def plain_durations(self) -> tuple[list[int], float, list[tuple[float, str, float]]]:
        """The histogram: its counts, its sum and its exemplars."""
        found = self.durations
        exemplars = [(one.value, one.trace_id, one.time) for one in found.exemplars or () if one]
        return list(found.counts), found.sum, exemplars


class Totals:
    """The counters of an instance since the broker started. They include those of processes that have died."""

    def __init__(self) -> None:
        self._before: dict[str, float] = {}
        self._now: dict[str, float] = {}
        self._durations_before: tuple[Sequence[int], float] = ((), 0.0)
        self.durations = Histogram()

    def take(self, counts: Mapping[str, float], durations: Any) -> None:
        """Take the present counters of the process."""
        self._now = dict(counts)
        before, total = self._durations_before
        found, added, exemplars = durations
        histogram = self.durations
        if before:
            histogram.counts = [a + b for a, b in zip(before, found, strict=True)]
        else:
            histogram.counts = list(found)
        histogram.sum = total + added
        for one in exemplars:
            histogram.exemplify(Exemplar(*one))

    def end(self) -> None:
        """Record that the process has ended, so that the next one counts from 0."""
        names = {*self._before, *self._now}
        self._before = {name: self[name] for name in names}
        self._now = {}
        self._durations_before = (list(self.durations.counts), self.durations.sum)

    def __getitem__(self, name: str) -> int:
        """Return a counter: 0 if it is unknown."""
        return int(self._before.get(name, 0) + self._now.get(name, 0))

    def _named(self, prefix: str) -> dict[str, int]:
        names = sorted(
            name.removeprefix(prefix)
            for name in {*self._before, *self._now}
            if name.startswith(prefix)
        )
        return {name: self[prefix + name] for name in names}

    @property
    def failures(self) -> dict[str, int]:
        """Number of failed requests by the word of their reason."""
        return self._named(_FAILURE)

    @property
    def statuses(self) -> dict[str, int]:
        """Number of responses by status."""
        return self._named(_STATUS)


__all__ = ["Counts", "Totals"]
