"""Show how far queries and tables lag behind the broker, by comparing offsets in the log, in checkpoints
and in tables.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark_mqtt.client import Client
from pyspark_mqtt.offsets import Log
from pyspark_mqtt.options import reading

from mqtt_pipelines import checkpoints, sources
from mqtt_pipelines.sinks import open_sink
from mqtt_pipelines.sinks.delta import DeltaSink
from mqtt_pipelines.sinks.iceberg import IcebergSink
from mqtt_pipelines.sinks.ledger import mark

if TYPE_CHECKING:
    from mqtt_pipelines.conf import Conf

COLUMNS: Final = ("query", "batch", "partition", "latest", "next", "lag", "table", "note")


def broker(conf: "Conf") -> Log | None:
    """Ask the broker for a description of the log. Return None if the pipeline reads files.

    This call blocks. Raises MqttError if the broker does not respond.
    """
    if not conf.source.mqtt:
        return None
    client = Client(reading(sources.options(conf.source)))
    try:
        return client.log()
    finally:
        client.close()


def rows(conf: "Conf") -> list[dict[str, Any]]:
    """Return one row for each partition of each query that has a checkpoint. `COLUMNS` names the columns. This call
    blocks.
    """
    log = broker(conf)
    queries = checkpoints.queries(conf.checkpoints)
    return [row for query in queries for row in _lag(conf, query, log)]


def _lag(conf: "Conf", query: str, log: Log | None) -> Iterable[dict[str, Any]]:
    """Yield one row for each partition that a query reads."""
    done = checkpoints.committed(f"{conf.checkpoints}/{query}")
    empty: dict[str, Any] = dict.fromkeys(COLUMNS) | {"query": query, "note": ""}
    if done is None:
        yield empty | {"note": "no batch is done yet"}
        return
    row = empty | {"batch": done.batch}
    if done.offsets is None or log is None:
        yield row | {"note": "does not read the broker's stream"}
        return
    if done.offsets.log_id != log.log_id:
        yield row | {"note": f"read log {done.offsets.log_id}; the broker's is {log.log_id}"}
        return
    noted = _noted(conf, query)
    for partition, latest in sorted(log.latest.items()):
        at = done.offsets.next.get(partition, 0)
        last = noted(log.log_id, partition)
        note = "" if at >= log.earliest[partition] else "what comes next is gone from the broker"
        yield row | {
            "partition": partition,
            "latest": latest,
            "next": at,
            "lag": max(0, latest - at),
            "table": last,
            "note": note,
        }


def _noted(conf: "Conf", query: str) -> Any:
    """Return a function of a log and a partition. It returns the last offset in the query's table, or None if that is
    unknown.
    """
    found = getattr(conf.tables, query, None)
    sink = None if found is None else open_sink(found)
    state = sink.look() if isinstance(sink, DeltaSink | IcebergSink) else None
    return lambda log_id, partition: (
        None if state is None else state.get(mark(f"{conf.name}.{query}", log_id, partition))
    )


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format rows as a text table with a header line."""
    texts = [list(COLUMNS)] + [
        ["-" if row[name] is None else str(row[name]) for name in COLUMNS] for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(text, widths, strict=True)).rstrip()
        for text in texts
    )
