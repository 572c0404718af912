"""Write the first events from an address and only count the rest, so that an attacker cannot fill the disk."""

from collections import OrderedDict
from dataclasses import dataclass

from hookmq_security_log.catalog import ALERT, KINDS, SUPPRESSED
from hookmq_security_log.record import Record, SecurityEvent, record_of


@dataclass(slots=True)
class _Repeats:
    """Events in the current period that share a name and source."""

    began: float
    written: int = 0
    counted: int = 0
    since: float = 0.0
    last: SecurityEvent | None = None


class Aggregator:
    """Decides which events are written.

    In each `period`, the first `burst` events with the same name and source are written one by one. The rest are
    combined into one record at the end of the period. In total, at most `rate` records per second are written, and any
    others are only counted. `sources` limits memory: if there are more sources, the oldest are written at once. `now`
    is a monotonic time.
    """

    def __init__(self, burst: int, period: float, rate: float, sources: int) -> None:
        self._burst = burst
        self._period = period
        self._rate = rate
        self._sources = sources
        self._repeats: OrderedDict[tuple[str, str], _Repeats] = OrderedDict()
        self._tokens = rate
        self._filled = 0.0
        self._omitted = 0
        self.suppressed = 0
        """Records that were not written because of `rate`."""

    def __len__(self) -> int:
        return len(self._repeats)

    def add(self, event: SecurityEvent, now: float) -> list[Record]:
        """Count an event. Return the records that must be written now."""
        key = (event.action, event.source)
        found: list[Record] = []
        entry = self._repeats.get(key)
        if entry is not None and now - entry.began >= self._period:
            del self._repeats[key]
            self._close(entry, now, found)
            entry = None
        if entry is None:
            while len(self._repeats) >= self._sources:
                self._close(self._repeats.popitem(last=False)[1], now, found)
            entry = self._repeats[key] = _Repeats(now)
        if entry.written < self._burst:
            entry.written += 1
            self._write(record_of(event), now, found)
            return found
        if not entry.counted:
            entry.since = event.time
        entry.counted += 1
        entry.last = event
        return found

    def due(self, now: float, time: float, end: bool = False) -> list[Record]:
        """Return a record for each period that has ended, and one that counts suppressed records. With `end`, all
        periods end now. `time` is the current time in epoch seconds.
        """
        found: list[Record] = []
        while self._repeats:
            entry = next(
                iter(self._repeats.values())
            )  # entries are in the order in which they began
            if not end and now - entry.began < self._period:
                break
            self._repeats.popitem(last=False)
            self._close(entry, now, found)
        if self._omitted:
            count, self._omitted = self._omitted, 0
            message = f"{count} records were not written because of max_rate"
            found.append(record_of(SecurityEvent(SUPPRESSED, time, message), count, time))
        return found

    def _close(self, entry: _Repeats, now: float, found: list[Record]) -> None:
        if entry.last is not None:
            self._write(record_of(entry.last, entry.counted, entry.since), now, found)

    def _write(self, record: Record, now: float, found: list[Record]) -> None:
        self._tokens = min(self._rate, self._tokens + (now - self._filled) * self._rate)
        self._filled = now
        if self._tokens < 1:
            self._omitted += 1
            self.suppressed += 1
            return
        self._tokens -= 1
        found.append(record)


class Alerts:
    """Counts hostile events by source, and reports any source that causes `events` of them within `period` seconds.

    A source is reported once per period. `sources` limits memory: if there are more, the oldest is forgotten.
    """

    def __init__(self, events: int, period: float, sources: int) -> None:
        self._events = events
        self._period = period
        self._sources = sources
        self._counts: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, event: SecurityEvent, now: float) -> SecurityEvent | None:
        """Count an event. Return an alert if the event reaches the limit."""
        if not KINDS[event.action].hostile or not event.host:
            return None
        began, count = self._counts.get(event.source, (now, 0))
        if now - began >= self._period:
            del self._counts[event.source]
            began, count = now, 0
        if not count and len(self._counts) >= self._sources:
            self._counts.popitem(last=False)
        self._counts[event.source] = (began, count + 1)
        if count + 1 != self._events:
            return None
        message = f"{self._events} hostile events in {now - began:.0f} s, the last: {event.action}"
        return SecurityEvent(ALERT, event.time, message, event.host, event.port, event.fields)
