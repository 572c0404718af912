"""Merge small files and delete unused ones. Each version of a table keeps its files until the version expires, so
readers are not disturbed.
"""

from __future__ import annotations

import datetime
import json
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyspark_mqtt.errors import MqttError

from mqtt_pipelines.sinks import parts
from mqtt_pipelines.sinks.append import MOST, TRIES, WAIT
from mqtt_pipelines.sinks.delta import DeltaSink
from mqtt_pipelines.sinks.files import LOG, FilesSink
from mqtt_pipelines.sinks.folders import column
from mqtt_pipelines.sinks.iceberg import IcebergSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHORTEST = 3600.0
"""Minimum time, in seconds, to keep files. The files of a running batch do not belong to the table yet."""
MANIFEST, BEGUN = "_manifest.json", "_compacting.json"

Report = dict[str, Any]
"""A report, shown to users or printed as JSON."""


def compact_delta(
    sink: DeltaSink,
    file_size: int,
    keep: float,
    dry_run: bool = False,
    wait: Callable[[float], None] = time.sleep,
) -> Report:
    """Merge small files within each partition. Delete files that no version from the last `keep` seconds uses.

    This call blocks. The rows and the notes about batches remain unchanged. With `dry_run`, it only counts files.
    Raises MqttError if the table cannot be read or changed.
    """
    from deltalake.exceptions import CommitFailedError, DeltaError

    _long_enough(keep)
    state = sink.look()
    if state is None:
        raise MqttError(f"{sink.name} is not there.")
    small = sum(size < file_size // 2 for size in _sizes(state.table))
    report: Report = {"table": sink.name, "small_files": small, "dry_run": dry_run}
    for failures in range(1, TRIES + 1):
        if dry_run:
            break
        try:
            metrics = state.table.optimize.compact(target_size=file_size)
            report["files_added"] = metrics["numFilesAdded"]
            report["files_removed"] = metrics["numFilesRemoved"]
            break
        except CommitFailedError:
            if failures == TRIES:
                raise MqttError(
                    f"{sink.name}: others changed its files {TRIES} times in a row: run it again later."
                ) from None
            wait(min(MOST, WAIT * 2**failures))
            state = sink.look() or state
    try:
        gone = state.table.vacuum(
            retention_hours=math.ceil(keep / 3600), dry_run=dry_run, full=True
        )
    except DeltaError as error:
        raise MqttError(f"{sink.name}: old files were not deleted: {error}") from None
    report["files_deleted"] = len(gone)
    return report


def _sizes(table: Any) -> list[int]:
    found: list[int] = table.get_add_actions().column("size_bytes").to_pylist()
    return found


def compact_iceberg(
    sink: IcebergSink, file_size: int, keep: float, dry_run: bool = False
) -> Report:
    """Expire snapshots older than `keep` seconds, and delete data files that no snapshot uses. This call blocks.

    pyiceberg cannot merge small files. The report therefore gives their number and names tools that can merge them. The
    manifests of expired snapshots remain. Raises MqttError if the table cannot be read or changed.
    """
    _long_enough(keep)
    state = sink.look()
    if state is None:
        raise MqttError(f"{sink.name} is not there.")
    table = state.table
    oldest = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=keep)
    head = table.current_snapshot()
    old = [
        one.snapshot_id
        for one in table.snapshots()
        if one.timestamp_ms < oldest.timestamp() * 1000
        and (head is None or one.snapshot_id != head.snapshot_id)
    ]
    small = sum(task.file.file_size_in_bytes < file_size // 2 for task in table.scan().plan_files())
    report: Report = {
        "table": sink.name,
        "small_files": small,
        "snapshots_expired": len(old),
        "dry_run": dry_run,
    }
    if small > 1:
        report["note"] = (
            "pyiceberg does not write small files together: use rewrite_data_files of Iceberg's jar for Spark, or "
            "Trino's optimize, or fewer and larger batches"
        )
    if old and not dry_run:
        table.maintenance.expire_snapshots().by_ids(old).commit()
        table.refresh()
    known = set(table.inspect.all_files().column("file_path").to_pylist())
    report["files_deleted"] = _sweep(f"{table.location()}/data", sink, known, oldest, dry_run)
    return report


def _sweep(
    root: str, sink: IcebergSink, known: set[str], oldest: datetime.datetime, dry_run: bool
) -> int:
    """Delete old files in a folder that the table does not know. Return the number of deleted files."""
    from pyarrow import fs

    system, path = parts.filesystem(root, sink.options)
    found = system.get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True))
    gone = 0
    for one in found:
        name = f"{root}/{one.path.removeprefix(path).lstrip('/')}"
        if one.is_file and name not in known and one.mtime is not None and one.mtime < oldest:
            gone += 1
            if not dry_run:
                system.delete_file(one.path)
    return gone


def compact_files(
    spark: SparkSession, sink: FilesSink, into: str, file_size: int, dry_run: bool = False
) -> Report:
    """Copy the rows that Spark's file sink has committed to a new folder, as large files. This call blocks.

    The sink's folder remains unchanged, so readers and a running query are not disturbed. `into` is complete once it
    contains a manifest, which records the last batch. Copying the same batch again does nothing. Raises MqttError if
    the copy fails.
    """
    folder = sink.table.path
    batch, files = committed_files(spark, folder)
    if batch < 0:
        raise MqttError(f"{sink.name} holds nothing that Spark's file sink has written.")
    size = sum(bytes_ for _, bytes_ in files)
    report: Report = {
        "table": sink.name,
        "into": into,
        "batches": batch,
        "small_files": sum(bytes_ < file_size // 2 for _, bytes_ in files),
        "dry_run": dry_run,
    }
    done = _read(spark, f"{into}/{MANIFEST}")
    if done is not None:
        if (done["source"], done["batches"]) == (folder, batch):
            return report | {"rows": done["rows"], "files_added": 0}
        raise MqttError(
            f"{into} holds batches up to {done['batches']} of {done['source']}: name a folder that is not there yet."
        )
    if _exists(spark, into) and _read(spark, f"{into}/{BEGUN}") is None:
        raise MqttError(f"{into} is there, and not ours: name a folder that is not there yet.")
    if dry_run:
        return report
    _write(spark, f"{into}/{BEGUN}", {"source": folder})
    frame = spark.read.option("basePath", folder).parquet(*(path for path, _ in files))
    data = f"{into}/data"
    writer = frame.coalesce(max(1, math.ceil(size / file_size))).write.mode("overwrite")
    names = (column(name) for name in sink.table.partition_by)
    by = zip(sink.table.partition_by, names, strict=True)
    writer.partitionBy(*(own if own in frame.columns else name for name, own in by)).parquet(data)
    rows, kept = frame.count(), spark.read.parquet(data).count()
    if rows != kept:
        raise MqttError(
            f"{into} has {kept} rows and {folder} {rows}: do not use it, and run this again."
        )
    made = [name for name in _names(spark, data) if name.endswith(".parquet")]
    manifest = {"source": folder, "batches": batch, "rows": rows, "files": sorted(made)}
    _write(spark, f"{into}/{MANIFEST}", manifest)
    return report | {"rows": rows, "files_added": len(made)}


def committed_files(spark: SparkSession, folder: str) -> tuple[int, list[tuple[str, int]]]:
    """Return the number of the last batch in a Spark file-sink folder (-1 if there is none), and all committed files
    with their sizes in bytes.
    """
    names = _names(spark, f"{folder}/{LOG}", deep=False)
    compacts = [int(n.removesuffix(".compact")) for n in names if n.endswith(".compact")]
    start = max(compacts, default=-1)
    numbers = sorted(int(name) for name in names if name.isdecimal() and int(name) > start)
    logs = ([f"{start}.compact"] if start >= 0 else []) + [str(number) for number in numbers]
    files: dict[str, int] = {}
    for name in logs:
        for line in _text(spark, f"{folder}/{LOG}/{name}").splitlines()[1:]:
            entry = json.loads(line)
            if entry["action"] == "add":
                files[entry["path"]] = entry["size"]
            else:
                files.pop(entry["path"], None)
    return max([start, *numbers]), list(files.items())


def _long_enough(keep: float) -> None:
    if keep < SHORTEST:
        raise MqttError(
            f"Files must be kept for at least an hour, not {keep:g} s: those of a batch that runs are in no table yet."
        )


# Use Spark's file systems, because the folder may be in any of them.


def _system(spark: SparkSession, path: str) -> tuple[Any, Any]:
    context: Any = spark.sparkContext
    found = context._jvm.org.apache.hadoop.fs.Path(path)
    return found.getFileSystem(context._jsc.hadoopConfiguration()), found


def _exists(spark: SparkSession, path: str) -> bool:
    system, found = _system(spark, path)
    return bool(system.exists(found))


def _names(spark: SparkSession, folder: str, deep: bool = True) -> list[str]:
    """Return the relative paths of all files in a folder and its subfolders."""
    system, found = _system(spark, folder)
    if not system.exists(found):
        return []
    root = system.makeQualified(found).toString()
    names = []
    every = system.listFiles(found, deep)
    while every.hasNext():
        names.append(every.next().getPath().toString().removeprefix(root).lstrip("/"))
    return names


def _text(spark: SparkSession, path: str) -> str:
    system, found = _system(spark, path)
    stream = system.open(found)
    try:
        jvm: Any = spark.sparkContext._jvm
        return bytes(jvm.org.apache.commons.io.IOUtils.toByteArray(stream)).decode()
    finally:
        stream.close()


def _read(spark: SparkSession, path: str) -> Any:
    return json.loads(_text(spark, path)) if _exists(spark, path) else None


def _write(spark: SparkSession, path: str, content: object) -> None:
    system, found = _system(spark, path)
    stream = system.create(found, True)
    try:
        stream.write((json.dumps(content, indent=1) + "\n").encode())
    finally:
        stream.close()
