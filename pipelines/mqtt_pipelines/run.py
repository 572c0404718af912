"""Run a job's queries until they are done, one of them fails, or a signal arrives."""

import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark import SparkConf, SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from mqtt_pipelines.query import Query
from mqtt_pipelines.sinks import Sink, Written
from mqtt_pipelines.sinks.fork import Fork
from mqtt_pipelines.worker_python import use_this_python

if TYPE_CHECKING:
    from mqtt_pipelines.conf import Conf

log = logging.getLogger("mqtt_pipelines")
FILE_MANAGER = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
ON_FILES: Mapping[str, str | int | bool] = {
    "spark.sql.streaming.checkpointFileManagerClass": FILE_MANAGER,
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": False,
}
"""Settings for checkpoints on a local disk.

Spark's default file manager starts the program `readlink` for each rename. Spark's checksums are not needed, because
Hadoop's local file system has its own.
"""
SHUFFLED = 4
"""Maximum number of tasks after a shuffle on one machine. With Spark's default of 200, starting the tasks would take far
longer than the work of a small batch."""
QUERY_ID = "sql.streaming.queryId"
WAIT = 0.2
"""Seconds between two checks of the running queries."""
GRACE = 30.0
"""Seconds that a batch may take to end when the queries are stopped."""

BUSY = "Python worker failed to connect back"
"""Spark's error on a machine that is too busy to start Python."""
STARTS = 5
"""Number of attempts to start a query that fails with `BUSY`."""

Observer = Callable[[Query, int, Written], None]
"""A callback for each batch of a `Sink`, with the query, the batch id and the result."""


def session(conf: "Conf") -> SparkSession:
    """Return the session that ``spark-submit`` prepared, or create one from the configuration. Its time zone is UTC.

    Raises PipelineError if `PYSPARK_PYTHON` names a Python that cannot be used.
    """
    builder = SparkSession.builder.appName(f"mqtt-pipelines {conf.name}")
    submitted: set[str] = set()
    given: dict[str, str | int | bool] = {}
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has set this variable.
        SparkContext._ensure_initialized()
        submitted = {name for name, _ in SparkConf().getAll()}
    else:
        builder = builder.master(conf.spark.master)
        builder = builder.config(
            "spark.ui.showConsoleProgress", "false"
        )  # The pipeline reports its own progress.
        use_this_python()
        if conf.spark.master.startswith("local"):
            given["spark.sql.shuffle.partitions"] = max(1, min(SHUFFLED, cores(conf.spark.master)))
    if _local(conf):
        given.update(ON_FILES)
    given.update(conf.spark.settings)
    for name, value in given.items():
        if name not in submitted:
            builder = builder.config(name, str(value).lower() if isinstance(value, bool) else value)
    return builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()


def cores(master: str) -> int:
    """Return how many tasks a master such as `local[2]` can run at the same time on this machine."""
    found = re.match(r"local(?:\[(\d+|\*)|\Z)", master)
    if found is None or found[1] == "*":
        return os.cpu_count() or 1
    return int(found[1] or 1)


def _local(conf: "Conf") -> bool:
    """Return whether all checkpoints and Parquet folders are on a local disk."""
    tables = [getattr(conf.tables, name) for name in conf.tables.__slots__]
    folders = [one.path for one in tables if one is not None and one.format == "files"]
    return not any("://" in one.removeprefix("file://") for one in [conf.checkpoints, *folders])


def start(
    spark: SparkSession, query: Query, app: str, once: bool, observe: Observer | None = None
) -> StreamingQuery:
    """Start a query of the pipeline `app`. With `once`, the query ends once it has read the messages that exist now."""
    sink = query.sink
    if isinstance(sink, Fork):
        sink.check(spark, query.checkpoint)
    writer = (
        query.frame.writeStream
        if isinstance(sink, Sink)
        else sink.writer(query.frame, query.checkpoint)
    )
    writer = writer.queryName(query.name).option("checkpointLocation", query.checkpoint)
    if once:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{query.trigger} seconds")
    if not isinstance(sink, Sink):
        return writer.start()

    def write(batch: DataFrame, batch_id: int) -> None:
        query_id = spark.sparkContext.getLocalProperty(QUERY_ID)
        written = sink.write(batch, batch_id, f"{app}.{query.name}.{query_id}")
        if observe is not None:
            observe(query, batch_id, written)

    return writer.foreachBatch(write).start()


def run(
    spark: SparkSession,
    queries: Sequence[Query],
    app: str,
    *,
    once: bool = False,
    observe: Observer | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Run queries until they end. This call blocks. If one query fails, stop the others and raise Spark's exception.

    Set `stop` to stop the queries between two batches. A batch in progress is completed unless it takes longer than
    GRACE.
    """
    stop = stop or threading.Event()
    running: list[StreamingQuery] = []
    try:
        # Start them one after the other. All at once would be too slow on a busy machine.
        for query in queries:
            if stop.is_set():
                break
            running.append(_begun(spark, query, app, once, observe, stop))
        while any(one.isActive for one in running) and not stop.wait(WAIT):
            for one in running:
                if error := one.exception():
                    raise error
        for one in running:
            if not stop.is_set() and (error := one.exception()):
                raise error
    finally:
        for one in running:
            _stop(one)


def _begun(
    spark: SparkSession,
    query: Query,
    app: str,
    once: bool,
    observe: Observer | None,
    stop: threading.Event,
) -> StreamingQuery:
    """Start a query, and wait until it has opened its source.

    Spark starts a Python process, which must respond within seconds. If the machine is too busy for that, the query is
    started again.
    """
    for left in reversed(range(STARTS)):
        begun = start(spark, query, app, once, observe)
        while begun.isActive and "Initializing" in str(begun.status["message"]):
            if stop.wait(WAIT):
                break
        if BUSY not in str(begun.exception() or "") or not left:
            break
        log.warning("Python was too slow to start for query %s: once more", query.name)
    return begun


def _stop(query: StreamingQuery) -> None:
    """Stop a query between batches. `stop()` would interrupt a batch, so first wait a limited time for the
    current one.
    """
    before, until = _last(query), time.monotonic() + GRACE
    while (
        query.isActive
        and query.status["isTriggerActive"]
        and _last(query) == before
        and time.monotonic() < until
    ):
        time.sleep(WAIT)
    query.stop()


def _last(query: StreamingQuery) -> int:
    """Return the number of the last batch that a query completed."""
    progress = query.lastProgress
    return -1 if progress is None else progress.batchId


def on_signals(stop: threading.Event) -> None:
    """Make SIGTERM and SIGINT set `stop`. A second SIGINT ends the process immediately."""

    def handle(number: int, _: object) -> None:
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
