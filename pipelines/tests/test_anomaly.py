"""Test how outliers are detected and reported as alerts. Streams are tested in test_jobs_stateful.py."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from mqtt_pipelines import schemas
from mqtt_pipelines.settings import PipelineError
from mqtt_pipelines.transforms import stateful
from mqtt_pipelines.transforms.anomaly import Anomaly, Publish, Scores, alerts, messages
from mqtt_pipelines.transforms.parse import Device, Silver
from mqtt_pipelines.transforms.silver import silver
from mqtt_pipelines.transforms.stateful import PROVIDER, prepare
from pyspark.sql import DataFrame, SparkSession
from rows import Log, Message, at, batch, frame

SILVER = Silver(schema="celsius double, open boolean", device=Device(topic_level=1))
BY = Anomaly(metrics=("celsius", "open"), warmup=5, threshold=4.0, alpha=0.2, least=0.1)


@pytest.fixture(autouse=True)
def rocksdb(spark: SparkSession) -> Iterator[None]:
    prepare(spark)
    yield
    spark.conf.unset(PROVIDER)


def day() -> list[Message]:
    """Return the messages of two devices. One is steady except for two values. The other varies constantly."""
    log, random = Log(), Random(7)
    found = []
    for second in range(60):
        celsius = 20 + random.random()
        if second in (30, 45):
            celsius = 35.0 if second == 30 else -5.0
        found.append(
            log.message({"celsius": celsius, "open": second == 50}, second, topic="plant/d1/s")
        )
        wild = {"celsius": None if second == 9 else random.gauss(0, 10)}
        found.append(log.message(wild, second, topic="plant/d/2"))
    return found


def found(raw: DataFrame, by: Anomaly = BY) -> DataFrame:
    return alerts(silver(raw, SILVER), by)


@pytest.mark.parametrize("method", ["ewma", "window"])
def test_values_that_are_far(spark: SparkSession, method: str) -> None:
    by = replace(BY, method=method, window=20)  # type: ignore[arg-type]
    given = day()
    whole = batch(spark, given, lambda raw: found(raw, by))
    assert {(row.device, row.metric, row.event_time) for row in whole if row.device == "d1"} == {
        ("d1", "celsius", at(30)), ("d1", "celsius", at(45)), ("d1", "open", at(50)),
    }  # fmt: skip
    [hot] = [row for row in whole if row.event_time == at(30) and row.device == "d1"]
    assert hot.value == 35.0
    assert 20 < hot.expected < 21
    assert hot.score > 4
    assert (hot.topic, hot.partition, hot.offset) == ("plant/d1/s", 0, 60)
    assert hot.timestamp == at(30)
    # A device that jumps is as it is.
    assert len([row for row in whole if row.device == "d"]) <= 1
    assert found(frame(spark, [])).schema == schemas.ALERTS


def test_messages(spark: SparkSession) -> None:
    made = messages(found(frame(spark, day())), "alerts/{device}/{metric}").collect()
    by_topic = {row.topic: row for row in made}
    assert {"alerts/d1/celsius", "alerts/d1/open"} <= set(by_topic)
    told = json.loads(by_topic["alerts/d1/open"].payload)
    assert told["device"] == "d1"
    assert told["value"] == 1.0
    assert told["event_time"].startswith("2026-11-20T12:00:50")
    assert by_topic["alerts/d1/open"].asDict().keys() == {
        "topic", "payload", "log_id", "partition", "offset", "metric",
    }  # fmt: skip
    # No topic can hold what a filter means something by.
    odd = [{**one, "topic": "plant/+#/s"} for one in day() if one["topic"] == "plant/d1/s"]
    assert {r.topic for r in messages(found(frame(spark, odd)), "a/{device}").collect()} == {"a/__"}


def test_scores_without_spark() -> None:
    """The scores follow the definitions of mean and deviation. A lasting shift first causes an alert, and then becomes
    normal.
    """

    def run(by: Anomaly, values: Sequence[float | None]) -> list[tuple[int, float, float]]:
        scores = Scores(by)
        state = scores.begin()
        rows: list[Any] = [
            {"value": v, "event_at": n, "topic": "t", "partition": 0, "offset": n, "log_id": "l", "at": n}
            for n, v in enumerate(values)
        ]  # fmt: skip
        return [(row[2], row[4], row[5]) for row in scores.rows(["d", "m"], state, rows[::-1])]

    window = Anomaly(metrics=("m",), method="window", window=4, warmup=4, threshold=3.0)
    [(at_, mean, score)] = run(window, [9.0, 1.0, 3.0, 1.0, 3.0, None, math.nan, 6.0])
    assert (at_, mean, score) == (7, 2.0, 4.0)
    ewma = Anomaly(metrics=("m",), alpha=0.1, warmup=10, threshold=3.0, least=0.5)
    shifted = run(ewma, [1.0, 2.0] * 20 + [50.0, 51.0] * 200)
    assert shifted[0][0] == 40
    assert shifted[0][1] == pytest.approx(1.5, abs=0.2)
    assert 1 < len(shifted) < 100
    assert run(ewma, [5.0] * 100 + [5.9]) == []
    assert len(run(ewma, [5.0] * 100 + [7.0])) == 1


@pytest.mark.parametrize(
    ("metrics", "message"),
    [(("nope",), "'nope', which is not a column of silver"), (("device",), "must be a number")],
)
def test_metrics_that_are_none(spark: SparkSession, metrics: tuple[str, ...], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        found(frame(spark, []), replace(BY, metrics=metrics))


@pytest.mark.parametrize("topic", ["", "a/#", "{nope}", "a/{device"])
def test_topics_that_are_none(topic: str) -> None:
    with pytest.raises(ValueError, match="expected a topic such as"):
        Publish(mqtt={"brokerUrl": "mqtt://h"}, topic=topic)
    with pytest.raises(
        ValueError, match=r"mqtt: Unknown option (?i:brokerUri): did you mean brokerUrl\?"
    ):
        Publish(mqtt={"brokerUri": "mqtt://h"})


@pytest.mark.parametrize("missing", ["pandas", "google.protobuf"])
def test_what_spark_needs(
    spark: SparkSession, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stateful, "_importable", lambda name: name != missing)
    with pytest.raises(PipelineError, match=rf"{missing} cannot be .*pipelines\[stateful\]"):
        prepare(spark)
    monkeypatch.undo()
    assert not stateful._importable("nothing.of.this")
