"""Test the commands that add missing rows, parse dead letters again, and show how far queries lag behind.

The pipeline under test started in the middle of its log.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from fakelog import START, FakeLog, Record, record, serving
from landing import DDL, LOG, faults, keys, messages
from mqtt_pipelines import cli_maintain, maintain, run
from mqtt_pipelines.build import build
from mqtt_pipelines.cli import main
from mqtt_pipelines.conf import load
from mqtt_pipelines.maintain import Added, Same
from mqtt_pipelines.sinks.delta import DeltaState
from mqtt_pipelines.sinks.iceberg import IcebergState
from mqtt_pipelines.sinks.ledger import Span
from mqtt_pipelines.sinks.parts import Part
from pyspark.sql import DataFrame, SparkSession
from sinking import TABLES, held, no_wait, table

each_table = pytest.mark.parametrize("format", TABLES)
WHOLE = [Span(LOG, 0, 0, 99), Span(LOG, 1, 0, 99)]


def frame(spark: SparkSession, *numbers: int) -> DataFrame:
    return spark.createDataFrame(pa.concat_tables([messages(n) for n in numbers]), DDL)


# Offsets


def test_spans_in_pieces() -> None:
    wanted = [Span("a", 1, 0, 4), Span("a", 0, 10, 16)]
    assert list(maintain.cut(wanted, 5)) == [
        [Span("a", 0, 10, 14)],
        [Span("a", 0, 15, 16), Span("a", 1, 0, 2)],
        [Span("a", 1, 3, 4)],
    ]
    assert list(maintain.cut([], 5)) == []
    start, end = maintain.offsets([Span("a", 1, 3, 4)], (1, 0))
    assert json.loads(start) == {"log_id": "a", "0": -2, "1": 3}
    assert json.loads(end) == {"log_id": "a", "0": -2, "1": 5}


def test_what_a_query_has_passed() -> None:
    at = {("a", 0): 5, ("a", 1): 9}
    spans = [Span("a", 0, 2, 7), Span("a", 1, 0, 8), Span("b", 0, 0, 0)]
    behind, ahead = maintain.passed(spans, lambda log_id, p: at.get((log_id, p), 0))
    assert behind == [Span("a", 0, 2, 4), Span("a", 1, 0, 8)]
    assert ahead == [Span("a", 0, 5, 7), Span("b", 0, 0, 0)]


# Tables


@each_table
def test_only_what_is_missing_is_added(spark: SparkSession, tmp_path: Path, format: str) -> None:
    sink = table(format, tmp_path)
    sink.write(frame(spark, 1), 0, "p.rows.a")
    every = frame(spark, 0, 1, 2)

    def killed(piece: Sequence[Span], one: Added) -> None:
        assert (piece, one) == (WHOLE[:1], Added(20, 10))
        raise InterruptedError

    for told, wanted in ((killed, None), (lambda *_: None, Added(20, 40))):
        with suppress(InterruptedError):
            found = maintain.backfill(
                sink, lambda _: every, WHOLE, "p.rows!backfill", size=100, told=told
            )
            assert found == wanted
    some = [Span(LOG, 0, 30, 30)]
    assert maintain.add_missing(sink, frame(spark, 3), some, "p.rows!backfill") == Added(1, 0)
    assert list(faults(held(sink), [*keys([0, 1, 2]), (LOG, 0, 30)])) == []
    # The query's own batches are nothing of that: the next is written, the last is known.
    assert sink.write(frame(spark, 1), 0, "p.rows.a").repeated
    state = sink.look()
    assert state is not None
    assert state.spans() == [Span(LOG, 0, 0, 30), Span(LOG, 1, 0, 29)]


@each_table
def test_two_at_a_time_add_it_once(
    spark: SparkSession, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, other = table(format, tmp_path), table(format, tmp_path)
    sink.write(frame(spark, 1), 0, "p.rows.a")
    state: Any = {"delta": DeltaState, "iceberg": IcebergState}[format]
    right = state.commit

    def commit(self: Any, parts: Sequence[Part], entries: Mapping[str, int], app: str) -> bool:
        monkeypatch.setattr(state, "commit", right)
        found = maintain.add_missing(other, frame(spark, 0), WHOLE, "p.rows!backfill")
        assert found == Added(20, 0)
        done: bool = right(self, parts, entries, app)
        assert not done
        return done

    monkeypatch.setattr(state, "commit", commit)
    both = frame(spark, 0, 2)
    assert maintain.add_missing(sink, both, WHOLE, "p.rows!backfill", wait=no_wait) == Added(20, 20)
    assert list(faults(held(sink), keys([0, 1, 2]))) == []


@each_table
def test_the_same_message_at_another_offset(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    sink = table(format, tmp_path, partition_by=())

    def readings(*rows: tuple[str, str | None, int, int]) -> DataFrame:
        ddl = "device string, message_id string, offset long, at long"
        made = spark.createDataFrame(list(rows), ddl)
        return made.selectExpr(
            "device",
            "message_id",
            "timestamp_seconds(at) as event_time",
            f"'{LOG}' as log_id",
            "0 as partition",
            "offset",
        )

    sink.write(readings(("d1", "m1", 10, 1000), ("d1", None, 11, 1000)), 0, "p.silver.a")
    again = readings(
        ("d1", "m1", 3, 1030), ("d2", "m1", 4, 1030), ("d1", None, 5, 1030), ("d1", "m2", 6, 1030)
    )
    same = Same(("message_id", "device"), "event_time", 60.0)
    assert maintain.add_missing(sink, again, WHOLE, "x", same) == Added(3, 1)
    # Longer ago than `slack`, it is another message with the same id.
    assert maintain.add_missing(
        sink, readings(("d1", "m1", 1, 1100)), WHOLE, "x", Same(same.names, same.time, 30.0)
    ) == Added(1, 0)
    assert sorted(offset for _, _, offset in held(sink)) == [1, 4, 5, 6, 10, 11]


# The command

Command = Callable[..., str]


@pytest.fixture
def log() -> Iterator[FakeLog]:
    with serving(FakeLog({0: [], 1: []})) as served:
        yield served


def grow(log: FakeLog, rows: int) -> None:
    """Add rows to the log. Every third payload does not fit silver's first schema, and every sixth is not JSON."""
    for partition, records in log.partitions.items():
        for _ in range(rows):
            n = len(records)
            payload = b"ERR" if n % 6 == 5 else b'{"fahrenheit": 70.0}' if n % 3 == 2 else b""
            made: Record = record(
                f"plant/d{partition}/state",
                payload or b'{"celsius": %d.5}' % n,
                timestamp=START + n * 1000,
                headers=[("message-id", b"%d" % n)],
            )
            records.append(made)


@pytest.fixture
def command(
    spark: SparkSession,
    log: FakeLog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Command:
    """Return a function that runs a command with Delta tables in this session. The function returns the output or
    raises the error.
    """
    mqtt = {**log.options, "startingOffsets": '{"0": 6, "1": 9}'}
    conf = {
        "version": 1,
        "name": "plant",
        "source": {"mqtt": mqtt},
        "checkpoints": str(tmp_path / "checkpoints"),
        "silver": {"schema": "celsius double not null", "device": {"topic_level": 1}},
        "tables": {
            name: {"path": str(tmp_path / name), "format": "delta"}
            for name in ("bronze", "silver", "dead_letter")
        },
    }
    file = tmp_path / "plant.yaml"
    file.write_text(json.dumps(conf))

    class Shared:
        """The Spark session that all tests share. Commands must not stop it."""

        def __getattr__(self, name: str) -> Any:
            return getattr(spark, name)

        def stop(self) -> None:
            pass

    monkeypatch.setattr(cli_maintain, "_session", lambda _: Shared())

    def execute(*arguments: str, code: int = 0) -> str:
        if arguments[0] == "run":
            jobs = build(spark, load(file, [], arguments[1:]), arguments[1:])
            run.run(spark, jobs, "plant", once=True)
            return ""
        capsys.readouterr()
        found = main([*arguments, "-c", str(file)])
        said = capsys.readouterr()
        assert found == code, said.err
        return said.out if code == 0 else said.err or said.out

    return execute


def rows(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(folder).to_pyarrow_table().to_pylist()
    return found


def places(folder: Path) -> Counter[tuple[int, int]]:
    return Counter((row["partition"], row["offset"]) for row in rows(folder))


def once(*first: int, last: int) -> Counter[tuple[int, int]]:
    return Counter((p, n) for p, start in enumerate(first) for n in range(start, last))


def test_a_table_is_filled_up(command: Command, log: FakeLog, tmp_path: Path) -> None:
    grow(log, 15)
    said = command("backfill", "bronze", code=1)
    assert "bronze has not finished a batch" in said
    assert "holds no query's checkpoint" in command("lag", code=1)
    command("run", "bronze")
    grow(log, 5)
    assert places(tmp_path / "bronze") == once(6, 9, last=15)

    told = [line.split() for line in command("lag").splitlines()]
    assert told[0] == ["query", "batch", "partition", "latest", "next", "lag", "table", "note"]
    assert told[1:] == [
        ["bronze", "0", "0", "20", "15", "5", "14"],
        ["bronze", "0", "1", "20", "15", "5", "14"],
    ]
    assert '"lag": 5' in command("lag", "--json", "--max", "4", code=1)
    command("lag", "--max", "5")

    # Up to where the query is; what comes after is the query's.
    said = command("backfill", "bronze", "--from", '{"0": 2, "1": -2}')
    assert said.splitlines() == ["added: 13", "present: 15"]
    assert places(tmp_path / "bronze") == once(2, 0, last=15)
    command("run", "bronze")
    assert command("backfill", "bronze").splitlines() == ["added: 2", "present: 38"]
    assert places(tmp_path / "bronze") == once(0, 0, last=20)
    said = command("backfill", "bronze", "--from", '{"0": 30, "1": 0}', code=1)
    assert "Option --from names offset 30 of partition 0" in said
    assert "--from must be" in command("backfill", "bronze", "--from", "soon", code=2)


def test_dead_letters_are_run_again(command: Command, log: FakeLog, tmp_path: Path) -> None:
    grow(log, 12)
    command("run", "silver")
    good = {n for n in range(12) if n % 3 != 2}
    silver, dead = tmp_path / "silver", tmp_path / "dead_letter"
    assert places(silver) == Counter(
        (p, n) for p, start in ((0, 6), (1, 9)) for n in good if n >= start
    )
    assert places(dead) == Counter([(0, 8), (0, 11), (1, 11)])
    # Nothing is understood that was not: nothing happens.
    assert command("replay").splitlines() == ["added: 0", "present: 0", "ahead: 0"]
    learnt: tuple[str, ...] = ("-o", "silver.schema=celsius double, fahrenheit double")
    assert "has no column fahrenheit" in command("replay", *learnt, code=1)
    learnt = (*learnt, "-o", "tables.silver.new_columns=add")
    assert command("replay", *learnt).splitlines() == ["added: 1", "present: 0", "ahead: 0"]
    assert command("replay", *learnt).splitlines() == ["added: 0", "present: 1", "ahead: 0"]
    found = {(row["partition"], row["offset"]): row for row in rows(silver)}
    assert (found[0, 8]["fahrenheit"], found[0, 8]["celsius"]) == (70.0, None)
    # What lies before the query's beginning, as silver sees it now; then nothing is left.
    assert command("backfill", "silver", *learnt).splitlines()[0] == "added: 13"
    assert command("backfill", "silver", *learnt).splitlines()[0] == "added: 0"
    assert places(silver) == Counter((p, n) for p in (0, 1) for n in range(12) if n % 6 != 5)


def test_what_cannot_be_done(command: Command) -> None:
    files = ("-o", "tables.silver.format=files", "-o", "tables.bronze.format=files")
    assert "to which only its query can add" in command("replay", *files, code=2)
    assert "to which only its query can add" in command("backfill", "bronze", *files, code=2)
    assert "never under its readers: --into FOLDER" in command("compact", "bronze", *files, code=2)
    assert "--into is for format files" in command("compact", "bronze", "--into", "x", code=2)
    assert (
        "gold is not a table of the configuration, which has bronze, silver, dead_letter"
        in command("compact", "gold", code=2)
    )
    assert "delta" in command("compact", "bronze", code=1)
    assert "at least an hour" in command("compact", "bronze", "--keep", "5m", code=1)
    assert "--keep" in command("compact", "bronze", "--keep", "soon", code=2)
