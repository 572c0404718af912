"""Test the reports about a query: one line per batch, metrics, JSON, and the progress recorded in its checkpoint."""

import io
import json
import logging
import queue
from pathlib import Path
from typing import Any

import pytest
from landing import land, query
from mqtt_pipelines import checkpoints, run
from mqtt_pipelines.progress import Batch, Progress, Reporter, batch
from mqtt_pipelines.sinks import Written
from pyspark.sql import SparkSession
from pyspark_mqtt.errors import MqttError
from pyspark_mqtt.offsets import Offsets
from sinking import delta

LOG = "0" * 32


def told(**more: Any) -> dict[str, Any]:
    """Return a progress report like Spark's JSON."""
    return {
        "id": "7a",
        "name": "silver",
        "timestamp": "2026-11-20T12:00:00.000Z",
        "batchId": 3,
        "batchDuration": 2000,
        "numInputRows": 5000,
        "sources": [
            {
                "endOffset": {"log_id": LOG, "0": 100, "1": 50},
                "latestOffset": {"log_id": LOG, "0": 130, "1": 50},
            }
        ],
        "stateOperators": [
            {
                "numRowsTotal": 12,
                "numRowsDroppedByWatermark": 2,
                "customMetrics": {"numDroppedDuplicateRows": 7},
            }
        ],
        "eventTime": {"watermark": "2026-11-20T11:50:00.000Z"},
        "durationMs": {"addBatch": 1900, "walCommit": 20},
        **more,
    }


def test_a_batch_in_a_line() -> None:
    line = "silver batch 3: 5000 rows in 2.0 s, 2500 rows/s, lag 30 (0: 30, 1: 0), 7 duplicates, 2 too late"
    assert batch(told()).line() == line
    plain = batch(told(name=None, sources=[{"endOffset": {"logOffset": 2}}], stateOperators=[]))
    assert plain.line() == "7a batch 3: 5000 rows in 2.0 s, 2500 rows/s"


@pytest.mark.parametrize(
    "source",
    [
        {},
        {"endOffset": None, "latestOffset": None},
        {"endOffset": "7", "latestOffset": "9"},
        {"endOffset": "{", "latestOffset": "{"},
        {"endOffset": {"log_id": LOG, "0": 1}, "latestOffset": {"log_id": "other", "0": 9}},
    ],
)
def test_no_lag_where_the_source_does_not_tell(source: dict[str, Any]) -> None:
    assert batch(told(sources=[source])).lag == {}


def test_lag_of_offsets_that_are_text() -> None:
    source = {
        "endOffset": f'{{"log_id":"{LOG}","0":4}}',
        "latestOffset": f'{{"log_id":"{LOG}","0":9}}',
    }
    assert batch(told(sources=[source, source])).lag == {0: 10}


def test_metrics_and_json(tmp_path: Path) -> None:
    files = Progress(prometheus=str(tmp_path / "p.prom"), json=str(tmp_path / "p.json"), lines=True)
    said = io.StringIO()
    reporter = Reporter('pl"ant', files, said)
    reporter.tell(batch(told()))
    reporter.tell(batch(told(batchId=4, numInputRows=1_234_567)))
    [silver] = [query_of("silver")]
    reporter.written(silver, 4, Written(0, True))
    reporter.tell(Batch("gold", 0, 0, 0.5, "2026-11-20T12:00:00.000Z"))
    text = (tmp_path / "p.prom").read_text()
    one = 'app="pl\\"ant",query="silver"'
    for line in (
        f"mqtt_pipelines_read_rows_total{{{one}}} 1239567",
        f"mqtt_pipelines_batches_total{{{one}}} 2",
        f"mqtt_pipelines_repeated_batches_total{{{one}}} 1",
        f"mqtt_pipelines_late_rows_total{{{one}}} 4",
        f"mqtt_pipelines_duplicate_rows_total{{{one}}} 14",
        f"mqtt_pipelines_batch{{{one}}} 4",
        f"mqtt_pipelines_rows_per_second{{{one}}} 617283.5",
        f'mqtt_pipelines_lag_rows{{{one},partition="0"}} 30',
        f"mqtt_pipelines_state_rows{{{one}}} 12",
        "# TYPE mqtt_pipelines_lag_rows gauge",
    ):
        assert line in text.splitlines()
    lines = [json.loads(line) for line in (tmp_path / "p.json").read_text().splitlines()]
    assert [(row["query"], row["batch"], row["rows"]) for row in lines] == [
        ("silver", 3, 5000),
        ("silver", 4, 1_234_567),
        ("gold", 0, 0),
    ]
    assert lines[0]["lag"] == {"0": 30, "1": 0}
    assert lines[0]["phases"] == {"addBatch": 1900, "walCommit": 20}
    assert said.getvalue().splitlines()[2:] == [
        "hookmq-pipelines: silver batch 4 was there already: not written again",
        "hookmq-pipelines: gold batch 0: 0 rows in 0.5 s, 0 rows/s",
    ]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["p.json", "p.prom"]


def query_of(name: str) -> Any:
    from mqtt_pipelines.query import Query

    frame: Any = None
    return Query(name, frame, delta(Path()), "", 0.0)


def test_a_file_that_cannot_be_written_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nowhere = str(tmp_path / "none" / "p")
    reporter = Reporter("p", Progress(prometheus=nowhere, lines=False))
    with caplog.at_level(logging.WARNING, "mqtt_pipelines"):
        for _ in range(3):
            reporter.tell(batch(told()))
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        f"{nowhere} cannot be written, the queries go on"
    ]


def test_spark_tells_it(spark: SparkSession, tmp_path: Path) -> None:
    land(tmp_path / "landed", [0, 1])
    heard: queue.SimpleQueue[str] = queue.SimpleQueue()

    class Told(Reporter):
        def onQueryTerminated(self, event: Any) -> None:
            super().onQueryTerminated(event)
            heard.put("end")

    said = io.StringIO()
    reporter = Told("p", Progress(prometheus=str(tmp_path / "p.prom")), said)
    spark.streams.addListener(reporter)
    try:
        asked = query(
            spark, tmp_path / "landed", delta(tmp_path), tmp_path / "checkpoints" / "rows"
        )
        run.start(spark, asked, "p", True, reporter.written).awaitTermination()
        assert heard.get(timeout=60) == "end"
    finally:
        spark.streams.removeListener(reporter)
    lines = said.getvalue().splitlines()
    assert [line.partition(" rows in")[0] for line in lines] == [
        "hookmq-pipelines: rows batch 0: 20",
        "hookmq-pipelines: rows batch 1: 20",
    ]
    text = (tmp_path / "p.prom").read_text()
    assert 'mqtt_pipelines_written_rows_total{app="p",query="rows"} 40' in text
    assert 'mqtt_pipelines_up{app="p",query="rows"} 0' in text
    # What Spark itself keeps of it:
    assert checkpoints.queries(str(tmp_path / "checkpoints")) == ["rows"]
    done = checkpoints.committed(f"file://{tmp_path}/checkpoints/rows")
    assert done == checkpoints.Committed(1, None)


def test_a_checkpoint_says_how_far_it_is(tmp_path: Path) -> None:
    assert checkpoints.queries(str(tmp_path / "none")) == []
    assert checkpoints.committed(str(tmp_path)) is None
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    offsets = f'v1\n{{"batchWatermarkMs":0}}\n{{"log_id":"{LOG}","0":12,"1":7}}'
    for batch_id in (9, 10):
        (tmp_path / "offsets" / str(batch_id)).write_text(offsets)
    (tmp_path / "offsets" / "11").write_text("v1")  # Planned, not done.
    (tmp_path / "commits" / "9").write_text("v1\n{}")
    (tmp_path / "commits" / "10").write_text("v1\n{}")
    (tmp_path / "commits" / ".11.tmp").write_text("")
    done = checkpoints.committed(str(tmp_path))
    assert done is not None
    assert (done.batch, done.offsets) == (10, Offsets(LOG, {0: 12, 1: 7}))
    (tmp_path / "offsets" / "10").write_text("v1\n{}\nnonsense")
    with pytest.raises(MqttError, match="is not an offset log of Spark"):
        checkpoints.committed(str(tmp_path))
