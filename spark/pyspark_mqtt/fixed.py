"""Create columns whose values are the same or consecutive in all rows of a block. Each is created once per task, and
then shared.

pyarrow is imported when the first column is created, as in ``pyspark_mqtt.arrow``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 1 << 14
"""Smallest number of rows for which a column is created."""


class FixedColumns:
    """The columns that a task's blocks share."""

    def __init__(self) -> None:
        self._repeated: dict[tuple[str, bytes], pa.Array] = {}
        self._bytes: dict[int, pa.Buffer] = {}
        self._steps: pa.Array | None = None

    def repeated(self, kind: pa.DataType, value: bytes, count: int) -> pa.Array:
        """Return a column of ``count`` rows that all contain ``value``, given as Arrow bytes."""
        import pyarrow as pa

        key = (str(kind), value)
        found = self._repeated.get(key)
        if found is None or len(found) < count:
            found = self._repeated[key] = pa.repeat(scalar(kind, value), max(count, ROWS))
        return found.slice(0, count)

    def offsets(self, base: int, count: int) -> pa.Array:
        """Return a column of ``count`` consecutive offsets, starting at ``base``."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self._steps is None or len(self._steps) < count:
            one, start = (scalar(pa.int64(), n.to_bytes(8, "little", signed=True)) for n in (1, -1))
            ones = pa.repeat(one, max(count, ROWS))
            self._steps = pc.cumulative_sum(ones, start=start)
        first = scalar(pa.int64(), base.to_bytes(8, "little", signed=True))
        return pc.add(self._steps.slice(0, count), first)

    def small(self, kind: pa.DataType, data: pa.Buffer, count: int) -> pa.Array:
        """Return the ``qos`` or ``retain`` column, given as bytes. Usually, all rows have the same value."""
        import pyarrow as pa

        if not count or data.size != count:
            return pa.Array.from_buffers(pa.int8(), count, [None, data]).cast(kind)
        value: int = memoryview(data)[0]
        same = self._bytes.get(value)
        if same is None or same.size < count:
            same = self._bytes[value] = pa.py_buffer(bytes((value,)) * max(count, ROWS))
        if not data.equals(same.slice(0, count)):
            return pa.Array.from_buffers(pa.int8(), count, [None, data]).cast(kind)
        if pa.types.is_boolean(kind):
            return self.repeated(kind, bytes((value != 0,)), count)
        number = int.from_bytes(bytes((value,)), "little", signed=True)
        return self.repeated(kind, number.to_bytes(4, "little", signed=True), count)


def scalar(kind: pa.DataType, data: bytes) -> pa.Scalar:
    """Decode one value from its bytes. ``pa.scalar`` would import pandas if it is installed, which takes a second in
    each new worker."""
    import pyarrow as pa

    buffers = [None, pa.py_buffer(data)]
    if pa.types.is_string(kind):
        buffers.insert(1, pa.py_buffer(bytes(4) + len(data).to_bytes(4, "little")))
    return pa.Array.from_buffers(kind, 1, buffers)[0]
