"""Runs of records: consecutive messages of a sink's log, as columns. A record is made only when a driver asks for it."""

from collections.abc import Iterator, Sequence
from typing import overload

from hookmq.mqtt_api import EMPTY
from hookmq.storage_api import MessageColumns

from hookmq_sinks.record import Record
from hookmq_sinks.record_maker import RecordMaker


class RecordRun:
    """The messages in the rows `start` to `stop - 1` of `columns`. The message in row N has the offset `base + N`.

    `at` is the time when the run was read from the log, on the event loop's clock. `log_id` is the log's name in the
    records' ids.
    """

    __slots__ = ("_maker", "_size", "at", "base", "columns", "log_id", "start", "stop")

    def __init__(
        self, maker: RecordMaker, columns: MessageColumns, base: int, start: int, stop: int, log_id: str, at: float
    ) -> None:  # fmt: skip
        self._maker = maker
        self.columns = columns
        self.base = base
        self.start = start
        self.stop = stop
        self.log_id = log_id
        self.at = at
        self._size = -1

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def first(self) -> int:
        """The offset of the first message."""
        return self.base + self.start

    @property
    def end(self) -> int:
        """The offset after the last message."""
        return self.base + self.stop

    @property
    def size(self) -> int:
        """The size of the payloads and topics."""
        if self._size < 0:
            rows, found = slice(self.start, self.stop), self.columns
            self._size = sum(map(len, found.payloads[rows])) + sum(map(len, found.topics[rows]))
        return self._size

    def size_of(self, row: int) -> int:
        """Return the size of the payload and topic in `row` of the columns."""
        return len(self.columns.payloads[row]) + len(self.columns.topics[row])

    def part(self, start: int, stop: int) -> "RecordRun":
        """Return the run that contains only the rows `start` to `stop - 1` of the columns."""
        return RecordRun(self._maker, self.columns, self.base, start, stop, self.log_id, self.at)

    def record(self, row: int) -> Record:
        """Make the record of `row`. The sink must not decode or transform payloads, and must not have a key."""
        columns, offset = self.columns, self.base + row
        payload = columns.payloads[row]
        record = Record(
            self._maker.id_of(self.log_id, offset), offset, columns.topics[row], payload, payload, None,
            columns.qos[row], row in columns.retained, columns.senders[row], columns.times[row],
            columns.expires.get(row),
        )  # fmt: skip
        properties = columns.properties.get(row, EMPTY)
        if properties is not EMPTY:
            self._maker.add_properties(record, properties)
        return record

    def __iter__(self) -> Iterator[Record]:
        return map(self.record, range(self.start, self.stop))


class RunRecords(Sequence[Record]):
    """The records of several runs, in order. They are made when the first of them is used."""

    __slots__ = ("_made", "runs")

    def __init__(self, runs: Sequence[RecordRun]) -> None:
        self.runs = tuple(runs)
        self._made: list[Record] | None = None

    def _records(self) -> list[Record]:
        if self._made is None:
            self._made = [record for run in self.runs for record in run]
        return self._made

    def __len__(self) -> int:
        return sum(map(len, self.runs))

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        return self._records()[index]

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records())


__all__ = ["RecordRun", "RunRecords"]
