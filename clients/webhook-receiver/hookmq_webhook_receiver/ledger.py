"""Tell new events from repeated events by their sequence numbers, and list missing events."""

from collections import OrderedDict

from hookmq_webhook_receiver.events import Received


class _Stretch:
    """The received events of one source and epoch: all events from `since` to `highest`, except `gaps`."""

    def __init__(self, first: int) -> None:
        self.since = self.highest = first
        self.gaps: dict[int, None] = {}


class Ledger:
    """Distinguishes new events from repeated events, and lists missing events.

    Events with different keys may overtake each other, so a missing event may still arrive. If more
    than `window` events are missing, the oldest count as lost. If a lost event arrives later, it
    counts as new. A new event is never mistaken for a repeated event.

    The ledger holds at most `window` numbers for each of the last `sources` pairs of source and
    epoch. It does not survive a restart. To detect repeated events after a restart, store their ids
    in a database.
    """

    def __init__(self, window: int = 10_000, sources: int = 100) -> None:
        self.lost = 0
        """Number of missing events that are no longer expected."""
        self._window = window
        self._sources = sources
        self._known: OrderedDict[tuple[str, str], _Stretch] = OrderedDict()

    def take(self, event: Received) -> bool:
        """Record `event`. Return True if it is new, or False if it has arrived before."""
        key = (event.source, event.epoch)
        number = event.sequence
        stretch = self._known.get(key)
        if stretch is None:
            self._known[key] = _Stretch(number)
            if len(self._known) > self._sources:
                self._known.popitem(last=False)
            return True
        self._known.move_to_end(key)
        if number > stretch.highest:
            self._beyond(stretch, number)
            return True
        if number in stretch.gaps:
            del stretch.gaps[number]
            return True
        return number < stretch.since

    def missing(self) -> list[tuple[str, str, int]]:
        """Return the source, epoch and sequence of each missing event that may still arrive."""
        return [(*key, n) for key, stretch in self._known.items() for n in stretch.gaps]

    def _beyond(self, stretch: _Stretch, number: int) -> None:
        following = stretch.highest + 1
        stretch.highest = number
        first = max(following, number - self._window)
        if first > following:
            self.lost += first - following
            stretch.since = first
        stretch.gaps.update(dict.fromkeys(range(first, number)))
        while len(stretch.gaps) > self._window:
            oldest = next(iter(stretch.gaps))
            del stretch.gaps[oldest]
            self.lost += 1
            stretch.since = max(stretch.since, oldest + 1)
