"""The commands that maintain tables: ``hookmq-pipelines compact``, ``backfill``, ``replay`` and ``lag``.

Each command can be repeated, and can be run while a pipeline is running.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from hookmq.mqtt.errors import HookMQError
from pyspark_mqtt.errors import MqttError
from pyspark_mqtt.offsets import Log, Offsets, bounded, resolve
from pyspark_mqtt.options import READ

from mqtt_pipelines import checkpoints, sources
from mqtt_pipelines.conf import Conf
from mqtt_pipelines.lag import broker
from mqtt_pipelines.settings import Table
from mqtt_pipelines.sinks import open_sink
from mqtt_pipelines.sinks.delta import DeltaSink
from mqtt_pipelines.sinks.files import FilesSink
from mqtt_pipelines.sinks.iceberg import IcebergSink
from mqtt_pipelines.sinks.ledger import Span, mark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from mqtt_pipelines.cli import Add
    from mqtt_pipelines.maintain import Added, Position, Same

FILLED: Final = ("bronze", "silver", "dead_letter")
"""Tables that `backfill` can add to, because each of their rows depends on only one message."""
EDGES: Final = 'earliest, latest or JSON such as {"0": 120, "1": -2}'


class UsageError(HookMQError):
    """The command cannot run with this configuration."""

    exit_code = 2


def register(add: "Add") -> None:
    """Add the maintenance commands."""
    from mqtt_pipelines.cli import add_config

    made = add("compact", "write a table's small files together, delete what is old", compact)
    made.add_argument("table", metavar="TABLE", help="its name in `tables`")
    add_config(made)
    made.add_argument(
        "--file-size",
        type=_size,
        default=128 << 20,
        metavar="SIZE",
        help="of a file, about; 128MiB",
    )
    made.add_argument(
        "--keep",
        type=_seconds,
        default=7 * 86400.0,
        metavar="TIME",
        help="how long versions that are replaced can be read; 7d, at least 1h",
    )
    made.add_argument("--into", metavar="FOLDER", help="for format files: a new folder")
    made.add_argument("--dry-run", action="store_true", help="change nothing")

    made = add("backfill", "add what a table lacks of the log, up to where its query is", backfill)
    made.add_argument("table", choices=FILLED, metavar="TABLE", help=", ".join(FILLED))
    add_config(made)
    made.add_argument("--from", dest="first", default="earliest", metavar="OFFSETS", help=EDGES)
    made.add_argument("--to", dest="last", default="latest", metavar="OFFSETS", help=EDGES)
    made.add_argument(
        "--slice", type=int, default=1_000_000, metavar="N", help="offsets of a commit; 1000000"
    )

    made = add("replay", "run dead letters through silver again, with what it knows by now", replay)
    add_config(made)

    made = add("lag", "how far queries and tables are behind the broker", lag)
    add_config(made)
    made.add_argument("--json", action="store_true", help="a line of JSON for each partition")
    made.add_argument(
        "--max", type=int, metavar="N", help="exit code 1 if a query is further behind than this"
    )


# Arguments and configuration


def _size(text: str) -> int:
    return int(_unit(text, "parse_size"))


def _seconds(text: str) -> float:
    return float(_unit(text, "parse_duration"))


def _unit(text: str, kind: str) -> Any:
    from hookmq.config import units

    try:
        return getattr(units, kind)(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _conf(arguments: argparse.Namespace, jobs: Sequence[str] = ()) -> Conf:
    from mqtt_pipelines.cli import configured

    return configured(arguments, jobs)


def _table(conf: Conf, name: str) -> Table:
    found: Table | None = getattr(conf.tables, name, None)
    if found is None:
        known = [one for one in conf.tables.__slots__ if getattr(conf.tables, one) is not None]
        raise UsageError(
            f"{name} is not a table of the configuration, which has {', '.join(known) or 'none'}"
        )
    return found


def _transactional(conf: Conf, name: str) -> DeltaSink | IcebergSink:
    """Return the sink of a table that accepts additional rows while its query is running. Raises UsageError for any
    other table.
    """
    sink = open_sink(_table(conf, name))
    if not isinstance(sink, DeltaSink | IcebergSink):
        raise UsageError(
            f"{name} has format files, to which only its query can add: use format delta or iceberg"
        )
    return sink


def _session(conf: Conf) -> "SparkSession":
    from mqtt_pipelines import run

    return run.session(conf)


# compact


def compact(arguments: argparse.Namespace) -> int:
    """Run the ``compact`` command."""
    from mqtt_pipelines import compact as work

    conf = _conf(arguments)
    sink = open_sink(_table(conf, arguments.table))
    given = (arguments.file_size, arguments.keep, arguments.dry_run)
    if isinstance(sink, FilesSink):
        if not arguments.into:
            raise UsageError(
                "format files is compacted into a new folder, never under its readers: --into FOLDER"
            )
        spark = _session(conf)
        try:
            report = work.compact_files(
                spark, sink, arguments.into, arguments.file_size, arguments.dry_run
            )
        finally:
            spark.stop()
    elif arguments.into:
        raise UsageError(
            "--into is for format files; tables of other formats are compacted where they are"
        )
    elif isinstance(sink, DeltaSink):
        report = work.compact_delta(sink, *given)
    else:
        assert isinstance(sink, IcebergSink)
        report = work.compact_iceberg(sink, *given)
    for key, value in report.items():
        print(f"{key}: {str(value).lower() if isinstance(value, bool) else value}")
    return 0


# backfill and replay


def position(conf: Conf, query: str, sink: DeltaSink | IcebergSink) -> "Position":
    """Return how far a table's query has read. Raises MqttError if the query has not started."""
    done = checkpoints.committed(f"{conf.checkpoints}/{query}")
    if done is None and query == "dead_letter":  # The query silver writes both tables.
        done = checkpoints.committed(f"{conf.checkpoints}/silver")
    if done is None:
        raise MqttError(
            f"{query} has not finished a batch ({conf.checkpoints}/{query}): run it first. "
            "Then you can add the messages before its position."
        )
    if done.offsets is not None:
        read = done.offsets
        return lambda log_id, partition: read.next.get(partition, 0) if log_id == read.log_id else 0
    state = sink.look()

    def noted(log_id: str, partition: int) -> int:
        """Return the position recorded in the table's notes.

        This is needed for a query that reads files, because its checkpoint contains no log offsets.
        """
        last = None if state is None else state.get(mark(f"{conf.name}.{query}", log_id, partition))
        return 0 if last is None else last + 1

    return noted


def backfill(arguments: argparse.Namespace) -> int:
    """Run the ``backfill`` command."""
    from mqtt_pipelines import maintain

    name = arguments.table
    conf = _conf(arguments, [name])
    sink = _transactional(conf, name)
    if not conf.source.mqtt:
        raise UsageError(
            "backfill reads the broker's stream: give source.mqtt, by --option for instance"
        )
    if arguments.slice < 1:
        raise UsageError("--slice must be at least 1")
    log, wanted, ahead = _wanted(conf, position(conf, name, sink), arguments.first, arguments.last)
    source = replace(conf.source, mqtt=_without_edges(conf.source.mqtt))
    transform, same = _transform(conf, name)
    spark = _session(conf)

    def read(piece: Sequence[Span]) -> "DataFrame":
        return transform(sources.open_batch(spark, source, *maintain.offsets(piece, log.latest)))

    def told(piece: Sequence[Span], one: "Added") -> None:
        parts = ", ".join(f"{span.partition}: {span.first}-{span.last}" for span in piece)
        _say(f"{name} {parts}: {one.added} rows added, {one.present} were there")

    try:
        done = maintain.backfill(
            sink, read, wanted, f"{conf.name}.{name}!backfill", same, arguments.slice, told
        )
    finally:
        spark.stop()
    print(f"added: {done.added}\npresent: {done.present}")
    if ahead:
        _say(f"{ahead} offsets are left to the query {name}, which has not reached them")
    return 0


def _wanted(conf: Conf, at: "Position", first: str, last: str) -> tuple[Log, list[Span], int]:
    """Return the log, the offsets to check, and how many offsets the query has not reached."""
    log = broker(conf)
    assert log is not None
    edges: list[Offsets] = []
    for option, text in (("--from", first), ("--to", last)):
        try:
            given: Any = READ["startingoffsets"].parse(text)
        except ValueError as error:
            raise UsageError(f"{option} {error}") from None
        edges.append(bounded(resolve(given, log, option), log, option, True, []))
    wanted, ahead = [], 0
    for partition, start in edges[0].next.items():
        end = edges[1].next[partition]
        passed = min(end, at(log.log_id, partition))
        ahead += max(0, end - max(start, passed))
        if start < passed:
            wanted.append(Span(log.log_id, partition, start, passed - 1))
    return log, wanted, ahead


def _without_edges(mqtt: Mapping[str, Any]) -> dict[str, Any]:
    edges = ("startingtimestamp", "endingtimestamp", "startingoffsets", "endingoffsets")
    return {name: value for name, value in mqtt.items() if name.lower() not in edges}


@dataclass(frozen=True, slots=True)
class _Job:
    """Converts messages to rows of a table."""

    conf: Conf
    table: str

    def __call__(self, raw: "DataFrame") -> "DataFrame":
        from mqtt_pipelines.transforms.bronze import bronze
        from mqtt_pipelines.transforms.quality import dead_letters
        from mqtt_pipelines.transforms.silver import silver

        if self.table == "bronze":
            return bronze(raw)
        assert self.conf.silver is not None
        return (silver if self.table == "silver" else dead_letters)(raw, self.conf.silver)


def _transform(conf: Conf, table: str) -> "tuple[_Job, Same | None]":
    from mqtt_pipelines.maintain import Same

    by = conf.silver
    if table != "silver" or by is None or not by.deduplicate:
        return _Job(conf, table), None
    names = dict.fromkeys(by.deduplicate)
    if "message_id" in names:
        names = dict.fromkeys((*names, "device"))  # As in silver, ids are unique per device.
    return _Job(conf, table), Same(tuple(names), "event_time", by.watermark)


def replay(arguments: argparse.Namespace) -> int:
    """Run the ``replay`` command."""
    from mqtt_pipelines import maintain
    from mqtt_pipelines.transforms.quality import replayed

    conf = _conf(arguments, ["silver"])
    sink = _transactional(conf, "silver")
    at = position(conf, "silver", sink)
    transform, same = _transform(conf, "silver")
    letters = open_sink(_table(conf, "dead_letter"))
    spark = _session(conf)
    try:
        found, read = _letters(spark, letters)
        done = maintain.replay(
            sink,
            found,
            read,
            lambda dead: transform(replayed(dead)),
            at,
            f"{conf.name}.silver!replay",
            same,
        )
    finally:
        spark.stop()
    print(f"added: {done.added}\npresent: {done.present}\nahead: {done.ahead}")
    return 0


def _letters(
    spark: "SparkSession", sink: object
) -> "tuple[list[Span], Callable[[Sequence[Span]], DataFrame]]":
    """Return the offsets of all dead letters, and a function that reads the dead letters within given spans."""
    from pyspark.sql import functions as f

    from mqtt_pipelines import schemas
    from mqtt_pipelines.sinks.append import within

    if isinstance(sink, FilesSink):
        frame = spark.read.parquet(sink.table.path)
        edges = frame.groupBy("log_id", "partition").agg(f.min("offset"), f.max("offset"))
        return [Span(*row) for row in edges.collect()], lambda piece: frame.where(within(piece))
    assert isinstance(sink, DeltaSink | IcebergSink)
    state = sink.look()
    if state is None:
        raise MqttError(f"{sink.name} is not there: no dead letters were written yet.")

    def read(piece: Sequence[Span]) -> "DataFrame":
        rows = state.keys(schemas.DEAD_LETTER.names, piece)
        return spark.createDataFrame(rows, schemas.DEAD_LETTER)

    return state.spans(), read


# lag


def lag(arguments: argparse.Namespace) -> int:
    """Run the ``lag`` command."""
    from mqtt_pipelines import lag as work

    conf = _conf(arguments)
    rows = work.rows(conf)
    if not rows:
        raise MqttError(f"{conf.checkpoints} holds no query's checkpoint: has the pipeline run?")
    print("\n".join(map(json.dumps, rows)) if arguments.json else work.table(rows))
    worst = max((row["lag"] or 0 for row in rows), default=0)
    return int(arguments.max is not None and worst > arguments.max)


def _say(text: str) -> None:
    print(f"hookmq-pipelines: {text}", file=sys.stderr)
