"""Write a batch's Parquet files on the executors. The driver receives only their names and sizes, not the rows.

If a task runs twice or a driver is killed, files that no table refers to are left behind. Readers do not see these
files. ``hookmq-pipelines compact`` removes them once they are old.

This module runs on executors, so it imports only pyarrow, and only when it is needed.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark_mqtt.errors import MqttError

from mqtt_pipelines.sinks.ledger import KEY, Span, spans

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

SCHEMA = "path string, size long, rows long, values string, stats string, spans string"
OPEN = 32
"""Maximum number of files that a task keeps open.

If there are more partition values, the least recently used file is completed.
"""
HELD = 64 << 20
"""Maximum bytes that a task buffers across all its files. Spark's own batches are too small for good row groups."""
INDEXED = 32
"""Number of leading columns with statistics, as in Delta by default."""
TEXT = 64
"""Maximum length of a text that is used as a bound."""
S3 = {
    "access_key": ("aws_access_key_id", "s3.access-key-id"),
    "secret_key": ("aws_secret_access_key", "s3.secret-access-key"),
    "session_token": ("aws_session_token", "s3.session-token"),
    "region": ("aws_region", "aws_default_region", "s3.region"),
    "endpoint_override": ("aws_endpoint_url", "aws_endpoint", "s3.endpoint"),
}
"""pyarrow's names for S3 options, by their names in delta-rs and pyiceberg."""
S3_ENVIRONMENT = {
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "endpoint_override": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
}
"""Environment variables that pyarrow does not read by itself."""


@dataclass(frozen=True, slots=True)
class Part:
    """A file that has been written."""

    path: str
    """The file's path, relative to the root."""
    size: int
    rows: int
    values: Mapping[str, str | None]
    """The partition values, in Delta's format."""
    stats: str
    """Delta's statistics, as JSON."""
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """Where and how to write a batch's files."""

    root: str
    """A folder or URL. Each file in it gets a unique name."""
    schema: pa.Schema
    partition_by: tuple[str, ...] = ()
    keep_partition_columns: bool = False
    """Whether files contain the partition columns, as in Iceberg but not in Delta."""
    file_size: int = 128 << 20
    """Approximate size of a file in bytes."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Storage options, with the names that delta-rs or pyiceberg use."""


def write(batch: DataFrame, target: Target) -> list[Part]:
    """Write a batch's rows on the executors. This call blocks, and computes the batch once."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        try:
            parts = list(_Task(target).run(batches))
        except OSError as error:
            raise MqttError(
                f"Files cannot be written to {target.root} ({error}): a full disk, or rights that are missing on a node? "
                "Nothing is lost; after a restart, the query continues with this batch."
            ) from None
        rows = [
            {
                "path": part.path,
                "size": part.size,
                "rows": part.rows,
                "values": json.dumps(part.values),
                "stats": part.stats,
                "spans": json.dumps([[s.log_id, s.partition, s.first, s.last] for s in part.spans]),
            }
            for part in parts
        ]
        kinds = {"size": pa.int64(), "rows": pa.int64()}
        names = [column.split()[0] for column in SCHEMA.split(", ")]
        schema = pa.schema([(name, kinds.get(name, pa.string())) for name in names])
        yield pa.RecordBatch.from_pylist(rows, schema)

    found = batch.mapInArrow(run, SCHEMA).collect()
    return [
        Part(
            row["path"],
            row["size"],
            row["rows"],
            json.loads(row["values"]),
            row["stats"],
            tuple(Span(*span) for span in json.loads(row["spans"])),
        )
        for row in found
    ]


def filesystem(root: str, options: Mapping[str, str]) -> tuple[Any, str]:
    """Return pyarrow's file system for a folder or URL, and the path within that file system. Raises MqttError if it
    cannot be reached.
    """
    from pyarrow import fs

    given = {name.lower(): value for name, value in options.items()}
    if "://" not in root:
        return fs.LocalFileSystem(), root
    scheme, _, rest = root.partition("://")
    try:
        if scheme in ("s3", "s3a", "s3n"):
            chosen = {
                name: next(given[key] for key in keys if key in given)
                for name, keys in S3.items()
                if any(key in given for key in keys)
            }
            for name, variables in S3_ENVIRONMENT.items():
                if found := next(filter(None, map(os.environ.get, variables)), None):
                    chosen.setdefault(name, found)
            return fs.S3FileSystem(**chosen), rest
        if scheme in ("file", "gs", "gcs", "hdfs", "viewfs"):
            placed: tuple[Any, str] = fs.FileSystem.from_uri(root)
            return placed
        import fsspec  # type: ignore[import-untyped]

        return fs.PyFileSystem(fs.FSSpecHandler(fsspec.filesystem(scheme, **options))), rest
    except (ImportError, ValueError) as error:
        raise MqttError(
            f"{root}: files cannot be written there from an executor ({error}); s3, gs, hdfs and file need pyarrow "
            "alone, others fsspec and its package for them, on every node."
        ) from None


def remove(target: Target, parts: Iterable[Part]) -> None:
    """Delete files that no table refers to. If a file cannot be deleted, leave it."""
    system, root = filesystem(target.root, target.options)
    for part in parts:
        try:
            system.delete_file(f"{root}/{part.path}")
        except OSError:
            continue


def spans_of(rows: pa.Table) -> list[Span]:
    """Return the first and last offset for each log and partition. Rows without a key are ignored."""
    groups = rows.group_by(list(KEY[:2])).aggregate([("offset", "min"), ("offset", "max")])
    return [
        Span(group["log_id"], group["partition"], group["offset_min"], group["offset_max"])
        for group in groups.to_pylist()
        if None not in group.values()
    ]


class _Task:
    """The output of a task, with one open file for each combination of partition values."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.system, self.root = filesystem(target.root, target.options)
        self.open: dict[tuple[str | None, ...], _File] = {}
        self.keyed = set(KEY) <= set(target.schema.names)

    def run(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Part]:
        import pyarrow as pa

        for batch in batches:
            if not batch.num_rows:
                continue
            columns = {
                name: batch.column(name).cast(self.target.schema.field(name).type)
                for name in self.target.schema.names
            }
            rows = pa.table(list(columns.values()), schema=self.target.schema)
            for values, some in _by_values(rows, self.target.partition_by):
                one = self.open.pop(values, None)
                if one is None and len(self.open) >= OPEN:
                    yield self.open.pop(next(iter(self.open))).close()
                one = self.open[values] = one or _File(self, values)  # moves to the end of the dict
                one.add(some)
            if sum(one.held_bytes for one in self.open.values()) >= min(
                HELD, self.target.file_size
            ):
                for values, one in list(self.open.items()):
                    one.flush()
                    if one.stream.tell() >= self.target.file_size:
                        yield self.open.pop(values).close()
        for one in self.open.values():
            yield one.close()


class _File:
    """A Parquet file that is currently being written."""

    def __init__(self, task: _Task, values: tuple[str | None, ...]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        target = task.target
        self.task = task
        self.values = {
            name: value or None for name, value in zip(target.partition_by, values, strict=True)
        }
        self.spans: list[Span] = []
        self.held: list[pa.Table] = []
        self.held_bytes = 0
        self.kept = [
            name
            for name in target.schema.names
            if target.keep_partition_columns or name not in target.partition_by
        ]
        folders = [
            f"{name}={re.sub(r'[^A-Za-z0-9_.-]', '_', value or '__null__')[:100]}"
            for name, value in self.values.items()
        ]
        self.path = "/".join([*folders, f"part-{uuid.uuid4()}.zstd.parquet"])
        full = f"{task.root}/{self.path}"
        task.system.create_dir(full.rpartition("/")[0], recursive=True)
        self.stream = task.system.open_output_stream(full)
        self.found: list[Any] = []
        self.writer = pq.ParquetWriter(
            self.stream,
            pa.schema([target.schema.field(name) for name in self.kept]),
            compression="zstd",
            metadata_collector=self.found,
        )

    def add(self, rows: pa.Table) -> None:
        """Buffer rows."""
        if self.task.keyed:
            self.spans = spans([*self.spans, *spans_of(rows)])
        self.held.append(rows.select(self.kept))
        self.held_bytes += rows.nbytes

    def flush(self) -> None:
        """Write the buffered rows."""
        import pyarrow as pa

        if self.held:
            self.writer.write_table(pa.concat_tables(self.held))
            self.held, self.held_bytes = [], 0

    def close(self) -> Part:
        """Finish the file, and return a description of it."""
        self.flush()
        self.writer.close()
        size = int(self.stream.tell())
        self.stream.close()
        metadata = self.found[0]
        return Part(
            self.path,
            size,
            metadata.num_rows,
            self.values,
            json.dumps(_stats(metadata, self.kept[:INDEXED])),
            tuple(self.spans),
        )


def _by_values(
    rows: pa.Table, columns: Sequence[str]
) -> Iterator[tuple[tuple[str | None, ...], pa.Table]]:
    """Group the rows by the values of `columns`, and yield each group. The values are converted to text."""
    import pyarrow as pa

    if not columns:
        yield (), rows
        return
    # Rows are chosen by their number, not by comparing values: NaN equals nothing, and 0.0 equals -0.0.
    numbered = rows.select(columns).append_column("", pa.array(range(rows.num_rows), pa.int64()))
    groups = numbered.group_by(list(columns), use_threads=False).aggregate([("", "list")])
    if groups.num_rows == 1:
        yield tuple(_text(groups[name][0]) for name in columns), rows
        return
    for number in range(groups.num_rows):
        values = tuple(_text(groups[name][number]) for name in columns)
        yield values, rows.take(groups["_list"][number].values)


def _text(scalar: Any) -> str | None:
    """Return a partition value as text, or None for null. An empty text becomes '', which Delta interprets as null."""
    import datetime

    try:
        value = scalar.as_py()
    except (OverflowError, ValueError):  # a time that Python cannot represent
        return str(scalar.value)
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime.datetime):
        plain = value.astimezone(datetime.UTC) if value.tzinfo else value
        return plain.replace(tzinfo=None).isoformat(" ", "microseconds")
    return str(value)


def _stats(metadata: Any, columns: Sequence[str]) -> dict[str, Any]:
    """Return statistics for a file in Delta's format: bounds and null counts for the columns that have them in the
    footer.
    """
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    bounded = set(columns)
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for index in range(row_group.num_columns):
            column = row_group.column(index)
            name = column.path_in_schema
            if name not in columns:
                continue
            found = column.statistics
            if found is None or not found.has_null_count:
                bounded.discard(name)
                nulls.pop(name, None)
                continue
            if name in bounded:
                nulls[name] = nulls.get(name, 0) + found.null_count
            if found.null_count == row_group.num_rows:
                continue  # A column that contains only nulls has no bounds.
            if not found.has_min_max:
                bounded.discard(name)
                continue
            try:
                low, high = _bound(found.min, False), _bound(found.max, True)
            except (OverflowError, ValueError):  # a time that Python cannot represent
                low = high = None
            if low is None or high is None:
                bounded.discard(name)
            else:
                least[name] = min(least.get(name, low), low)
                most[name] = max(most.get(name, high), high)
    return {
        "numRecords": metadata.num_rows,
        "minValues": {name: value for name, value in least.items() if name in bounded},
        "maxValues": {name: value for name, value in most.items() if name in bounded},
        "nullCount": nulls,
    }


def _bound(value: Any, upper: bool) -> Any:
    """Return a bound in Delta's format, or None for unsupported types."""
    import datetime
    import math

    if isinstance(value, datetime.datetime):
        # Bounds are in milliseconds: round the lower bound down and the upper bound up.
        rest = value.microsecond % 1000
        value += datetime.timedelta(microseconds=(1000 - rest if upper and rest else -rest))
        plain = value.replace(tzinfo=None).isoformat(timespec="milliseconds")
        return plain + ("Z" if value.tzinfo else "")
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value if len(value) <= TEXT else None
    return value if isinstance(value, bool | int) else None
