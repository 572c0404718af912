"""The files of the `file` driver: how rows are appended to the open file, and how that file is completed.

JSON lines are appended as they are. Parquet has its index at the end, so nothing can be appended to it. The open file
therefore is a stream in Arrow's IPC format: a schema, and a record batch for each batch of the sink. When the file is
complete, its rows are written to a Parquet file.
"""

import gzip
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from hookmq_toolkit.durable_files import replacing

from hookmq_sinks.drivers.rows import JsonLines, Parquet, Row, Type
from hookmq_sinks.record import Record

OPEN: Final = ".open"
"""Added to the name of a file that is not complete."""
LINES: Final = ".jsonl"
PARQUET: Final = ".parquet"
_GZIP: Final = ".gz"
_ROWS: Final = 1 << 17
"""The number of rows from which on a row group of a Parquet file ends."""
_MODE: Final = 0o640


class FileFormat(Protocol):
    """The format of new files. Their names end with `suffix`."""

    suffix: str

    def row(self, record: Record) -> Row:
        """Convert a record to a row. Raises RecordError."""

    def encode(self, rows: Sequence[Row], begins: bool) -> bytes:
        """Return the bytes that append rows to the open file. `begins` says whether the file is empty."""

    def continues(self, path: Path) -> bool:
        """Return whether rows can be appended to the open file `path`, which has this format."""


class LinesFormat(JsonLines):
    """JSON lines."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__(fields, "none")

    def encode(self, rows: Sequence[Row], begins: bool) -> bytes:
        """Return the lines."""
        return b"".join(rows)

    def continues(self, path: Path) -> bool:
        """Return True: lines may have any fields."""
        return True


class ParquetFormat(Parquet):
    """Parquet."""

    def __init__(self, fields: Mapping[str, Any], types: Mapping[str, Type]) -> None:
        super().__init__(fields, types, "none")

    def encode(self, rows: Sequence[Row], begins: bool) -> bytes:
        """Return the record batch, after the schema if the file is empty."""
        import pyarrow as pa  # type: ignore[import-untyped]

        schema = self.schema()
        batch = pa.RecordBatch.from_pylist(list(rows), schema=schema).serialize().to_pybytes()
        head: bytes = schema.serialize().to_pybytes() if begins else b""
        return head + batch  # type: ignore[no-any-return]

    def continues(self, path: Path) -> bool:
        """Return whether the file has the same columns."""
        import pyarrow as pa

        with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
            return bool(stream.schema.equals(self.schema()))


def is_complete(folder: Path, name: str) -> bool:
    """Return whether the complete form of the open file `name` exists."""
    return (folder / name).exists() or (folder / (name + _GZIP)).exists()


def complete(folder: Path, name: str, compression: str, sync: bool) -> None:
    """Give the open file its final form and name, in one step. `name` is its name without `OPEN`. Blocks.

    Raises OSError, and ValueError if the file is damaged.
    """
    source, target = folder / (name + OPEN), folder / name
    if name.endswith(LINES) and compression == "gzip":
        target = folder / (name + _GZIP)
    if target.suffix == PARQUET:
        _write_parquet(source, target, compression, sync)
    elif target.suffix == _GZIP:
        with (
            replacing(target, mode=_MODE, sync=sync) as file,
            os.fdopen(os.dup(file), "wb") as raw,
            gzip.open(raw, "wb") as packed,
            source.open("rb") as plain,
        ):
            while part := plain.read(1 << 20):
                packed.write(part)
    else:
        os.replace(source, target)
        return
    source.unlink()


def _write_parquet(source: Path, target: Path, compression: str, sync: bool) -> None:
    """Write the rows of an Arrow stream to a Parquet file, one row group at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    with (
        pa.OSFile(str(source)) as file,
        pa.ipc.open_stream(file) as stream,
        replacing(target, mode=_MODE, sync=sync) as written,
        os.fdopen(os.dup(written), "wb") as plain,
        pq.ParquetWriter(plain, stream.schema, compression=compression) as writer,
    ):
        held: list[Any] = []
        rows = 0
        for batch in stream:
            held.append(batch)
            rows += batch.num_rows
            if rows >= _ROWS:
                writer.write_table(pa.Table.from_batches(held))
                held, rows = [], 0
        if held:
            writer.write_table(pa.Table.from_batches(held))


__all__ = [
    "LINES",
    "OPEN",
    "PARQUET",
    "FileFormat",
    "LinesFormat",
    "ParquetFormat",
    "complete",
    "is_complete",
]
