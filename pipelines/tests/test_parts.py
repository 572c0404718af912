"""Test the files that a task writes: their names, values, statistics and sizes. Spark is not needed."""

import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from landing import LOG, SCHEMA, messages
from mqtt_pipelines.sinks import parts
from mqtt_pipelines.sinks.ledger import Span
from mqtt_pipelines.sinks.parts import Part, Target
from pyspark_mqtt.errors import MqttError


def written(target: Target, *tables: pa.Table) -> list[Part]:
    def batches() -> Iterator[pa.RecordBatch]:
        for table in tables:
            yield from table.to_batches()

    return list(parts._Task(target).run(batches()))


def test_a_file_for_each_day_with_what_the_commit_needs_to_know(tmp_path: Path) -> None:
    made = written(Target(str(tmp_path), SCHEMA, ("ingest_date",)), messages(0), messages(1))
    assert {part.values["ingest_date"] for part in made} == {"2026-11-20", "2026-11-21"}
    assert sum(part.rows for part in made) == 40
    rows: list[dict[str, Any]] = []
    for part in made:
        file = tmp_path / part.path
        assert part.path.startswith(f"ingest_date={part.values['ingest_date']}/part-")
        assert (file.stat().st_size, "ingest_date" in pq.read_schema(file).names) == (
            part.size,
            False,
        )
        rows += pq.ParquetFile(file).read().to_pylist()
    first = made[0]
    assert first.spans == (Span(LOG, 0, 0, 13), Span(LOG, 1, 0, 12))
    stats = json.loads(first.stats)
    assert (stats["numRecords"], stats["minValues"]["offset"]) == (first.rows, 0)
    assert stats["maxValues"]["topic"] == "sensors/1"
    assert (stats["nullCount"]["topic"], "payload" in stats["minValues"]) == (0, False)
    assert sorted(row["timestamp"] for row in rows) == sorted(
        messages(0)["timestamp"].to_pylist() + messages(1)["timestamp"].to_pylist()
    )


def test_bounds_hold_what_milliseconds_and_short_texts_cannot_say(tmp_path: Path) -> None:
    stamp = datetime.datetime(2026, 11, 20, 1, 2, 3, 999_001, datetime.UTC)
    schema = pa.schema(
        {"t": pa.timestamp("us", "UTC"), "s": pa.string(), "n": pa.int32(), "f": pa.float64()}
    )
    table = pa.table({"t": [stamp], "s": ["x" * 65], "n": [None], "f": [1.5]}, schema=schema)
    [part] = written(Target(str(tmp_path), schema), table)
    stats = json.loads(part.stats)
    assert stats["minValues"] == {"t": "2026-11-20T01:02:03.999Z", "f": 1.5}
    assert stats["maxValues"] == {"t": "2026-11-20T01:02:04.000Z", "f": 1.5}
    assert stats["nullCount"] == {"t": 0, "s": 0, "n": 1, "f": 0}


def test_values_are_as_delta_writes_them_and_folders_are_harmless(tmp_path: Path) -> None:
    schema = pa.schema({"s": pa.string(), "b": pa.bool_(), "i": pa.int32(), "v": pa.int32()})
    table = pa.table(
        {"s": ["../x y", None, ""], "b": [True, None, False], "i": [1, 2, None], "v": [1, 2, 3]},
        schema=schema,
    )
    made = written(Target(str(tmp_path), schema, ("s", "b", "i")), table)
    values = {tuple(part.values.values()) for part in made}
    assert values == {("../x y", "true", "1"), (None, None, "2"), (None, "false", None)}
    for part in made:
        assert ".." not in part.path.split("/")
        assert (tmp_path / part.path).is_file()


def test_a_file_ends_when_it_is_large_and_few_are_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = written(Target(str(tmp_path), SCHEMA, file_size=1), messages(0), messages(1))
    assert [part.rows for part in made] == [20, 20]
    monkeypatch.setattr(parts, "OPEN", 1)
    made = written(Target(str(tmp_path), SCHEMA, ("ingest_date",)), messages(0), messages(1))
    assert sum(part.rows for part in made) == 40
    assert len(made) == 4


def test_nothing_is_written_for_nothing(tmp_path: Path) -> None:
    assert written(Target(str(tmp_path), SCHEMA), messages(0).slice(0, 0)) == []
    assert list(tmp_path.iterdir()) == []


def test_where_files_cannot_go(tmp_path: Path) -> None:
    with pytest.raises(MqttError, match=r"nowhere://x: .* on every node"):
        parts.filesystem("nowhere://x", {})
    system, path = parts.filesystem("s3://b/x", {"AWS_REGION": "eu-1", "AWS_ENDPOINT_URL": "h"})
    assert (system.type_name, path, system.region) == ("s3", "b/x", "eu-1")
    parts.remove(Target(str(tmp_path), SCHEMA), [Part("gone", 0, 0, {}, "", ())])


def test_values_that_equal_nothing_or_more_than_themselves(tmp_path: Path) -> None:
    """Each row is in exactly one file, although NaN does not equal itself, and 0.0 equals -0.0."""
    values = [float("nan"), 0.0, -0.0, None, float("inf"), float("nan")]
    text = ["", None, "", "x", "x", ""]
    table = pa.table({"v": values, "t": text, "n": list(range(6))})
    made = written(Target(str(tmp_path), table.schema, ("v", "t")), table)
    assert sum(part.rows for part in made) == len(values)
    found = [
        n for part in made for n in pq.ParquetFile(tmp_path / part.path).read()["n"].to_pylist()
    ]
    assert sorted(found) == list(range(6))
    assert {tuple(part.values.values()) for part in made} == {
        ("nan", None), ("0.0", None), ("-0.0", None), (None, "x"), ("inf", "x"),
    }  # fmt: skip


def test_times_that_python_does_not_have(tmp_path: Path) -> None:
    schema = pa.schema({"t": pa.timestamp("us", "UTC"), "d": pa.date32(), "n": pa.int32()})
    columns = [[-(2**62), 2**62, 0], [-(10**6), 10**7, 0], [1, 2, 3]]
    arrays = [pa.array(one, pa.int64() if n < 1 else pa.int32()) for n, one in enumerate(columns)]
    table = pa.table(
        [one.cast(field.type) for one, field in zip(arrays, schema, strict=True)], schema
    )
    for by in ((), ("t",), ("d",)):
        made = written(Target(str(tmp_path), schema, by), table)
        assert sum(part.rows for part in made) == 3
    [part] = written(Target(str(tmp_path), schema), table)
    assert json.loads(part.stats)["minValues"] == {"n": 1}
