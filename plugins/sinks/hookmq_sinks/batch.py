"""Batches of records, which a driver writes in one step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hookmq_sinks.record import Position, Record
from hookmq_sinks.record_run import RecordRun, RunRecords


@dataclass(frozen=True, slots=True)
class Batch:
    """Records in offset order, and the position that the target reaches once they are stored.

    `records` is empty if all records of a batch were rejected. Only a driver with `holds_position` gets such a batch,
    so that it can store the position.

    `runs` holds the same messages as columns, if the sink neither decodes nor transforms payloads and has no key. It is
    empty otherwise. A driver that uses `runs` instead of `records` needs no object for each message.
    """

    records: Sequence[Record]
    position: Position

    @property
    def runs(self) -> tuple[RecordRun, ...]:
        """The messages as columns; see the class."""
        return self.records.runs if isinstance(self.records, RunRecords) else ()

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)
