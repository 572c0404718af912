"""Compare a stream's declared consumers with those that have committed offsets."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from hookmq.plugin import StoreError

from hookmq_spark_sink import files

SILENT_AFTER: Final = 600.0
"""Seconds that a stream with messages must be open before a declared consumer that has never committed is reported."""


class ConsumerState(NamedTuple):
    """A consumer that the stream declares, or that has committed offsets.

    `lag` is the number of records that the consumer has not committed. `updated` is the time of its last commit in
    epoch seconds, or 0 if it has never committed.
    """

    name: str
    declared: bool
    lag: int
    updated: float
    behind_at: float | None = None
    """Approximate time of the oldest message that it has not committed, in epoch seconds. None if there is none, or if
    it is unknown."""
    dead_letters: int | None = None
    """The number of dead letters that it has reported. None if it has not made any report."""

    @property
    def silent(self) -> bool:
        """Whether the consumer is declared but has never committed."""
        return self.declared and not self.updated


def states(
    declared: Iterable[str],
    known: Mapping[str, files.Consumer],
    earliest: Iterable[int],
    latest: Iterable[int],
    time: Callable[[int, int], int | None] = lambda partition, offset: None,
) -> list[ConsumerState]:
    """Return the consumers, declared ones first. `earliest` and `latest` map partitions to offsets.

    `time` returns the time of the message at a partition's offset in microseconds, or None if it is unknown.
    """
    names = tuple(declared)
    ends = list(enumerate(zip(earliest, latest, strict=True)))
    found = []
    for name in dict.fromkeys((*names, *known)):
        one = known.get(name)
        offsets = one.offsets if one else {}
        at = {place: max(first, offsets.get(place, 0)) for place, (first, _) in ends}
        lag = sum(max(0, last - at[place]) for place, (_, last) in ends)
        times = [time(place, at[place]) for place, (_, last) in ends if last > at[place]]
        behind_at = min((found for found in times if found is not None), default=None)
        found.append(
            ConsumerState(
                name,
                name in names,
                lag,
                one.updated if one else 0.0,
                None if behind_at is None else behind_at / 1e6,
                one.reported.dead_letters if one and one.reported else None,
            )
        )
    return found


def notes(stream: str, folder: Path, declared: tuple[str, ...]) -> list[str]:
    """Return warnings about a stream's consumers, for checks before the broker starts. Reads two small files.

    The result is empty if the stream does not exist yet. It is also empty if the stream cannot be read, because the
    broker reports that problem when it starts.
    """
    try:
        described = files.read_description(folder)
        known = {} if described is None else files.read_consumers(folder, described.log_id)
    except StoreError:
        return []
    if described is None or not declared:
        return []
    found = [
        f"stream {stream}: the consumer {name} has never committed, so all messages are kept for it"
        for name in declared
        if name not in known or not known[name].updated
    ]
    found += [
        f"stream {stream}: {name} commits but is not in consumers, so messages are not kept for it"
        for name, one in known.items()
        if name not in declared and one.updated
    ]
    return found


class ConsumerWatch:
    """Logs consumers that a stream does not declare, and declared consumers that never commit. Logs each of them once."""

    def __init__(self, declared: tuple[str, ...], log: Callable[..., None]) -> None:
        self._declared = declared
        self._log = log
        self._logged: set[str] = set()

    def look(self, committed: Iterable[str], messages: bool, seconds: float) -> None:
        """Compare the declared consumers with those that have `committed`.

        `messages` is True if the stream has messages, and `seconds` is how long it has been open. If no consumers are
        declared, nothing is logged, because then no reader expects messages to be kept for it.
        """
        if not self._declared:
            return
        names = set(committed)
        for name in sorted(names - set(self._declared) - self._logged):
            self._logged.add(name)
            self._log("warning", "spark_sink.undeclared_consumer", consumer=name)
        if messages and seconds >= SILENT_AFTER:
            for name in self._declared:
                if name not in names and name not in self._logged:
                    self._logged.add(name)
                    self._log("warning", "spark_sink.silent_consumer", consumer=name)
