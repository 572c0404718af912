"""Test the jobs with the configurations that they ship with. The broker is killed between two runs, and every message
is accounted for.
"""

import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from broker import TOKEN, WAIT, Broker, running
from deltalake import DeltaTable
from mqtt_pipelines import schemas
from mqtt_pipelines.build import build
from mqtt_pipelines.conf import Conf, load
from mqtt_pipelines.run import run
from mqtt_pipelines.sources import open_batch
from mqtt_pipelines.transforms.gold import gold
from mqtt_pipelines.transforms.quality import dead_letters
from mqtt_pipelines.transforms.silver import silver
from pyspark.sql import Row, SparkSession
from pyspark_mqtt.publisher import Message
from rows import ordered

HOOKMQ = Path(sys.executable).with_name("hookmq")
CONF = Path(__file__).parents[1] / "conf"
MANUAL = Path(__file__).parents[2] / "docs" / "how-to" / "spark.md"
BAD = [b"", b"\xff", b"warm", b'{"battery": 1}', b'{"celsius": "hot"}', b'{"celsius": 1, "at": 5}']


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with running(tmp_path, stream={"name": "telemetry"}) as started:
        yield started


def now() -> int:
    return int(time.time() * 1000)


def fleet(first: int, count: int) -> list[Message]:
    """Return messages from seven devices. Every third message is sent twice, and some are not readings."""
    found = []
    for n in range(first, first + count):
        payload = b'{"celsius": %d.5, "battery": %d, "at": %d}' % (n, n % 100, now())
        message = Message(f"plant/d{n % 7}/state", payload, headers=(("message-id", f"id-{n}"),))
        found += [message, message] if n % 3 == 0 else [message]
    return [*found, *(Message("plant/d1/state", payload) for payload in BAD)]


def configured(broker: Broker, job: str, *options: str) -> Conf:
    """Return the configuration that ships with a job, with changes for the test."""
    folder = broker.folder / job
    tables = ("bronze", "silver", "dead_letter", "gold")
    text = (CONF / f"{job}.yaml").read_text()
    paths = [f"tables.{name}.path={folder}/{name}" for name in tables if f"  {name}:" in text]
    given = [
        f"source.mqtt.url=http://127.0.0.1:{broker.api_port}",
        f"checkpoints={folder}/checkpoints",
    ]
    return load(CONF / f"{job}.yaml", [*given, *paths, *options], [job], {"SPARK_TOKEN": TOKEN})


def rows(spark: SparkSession, folder: Path) -> list[Row]:
    return spark.read.parquet(str(folder)).collect()


def keys(found: list[Row]) -> Counter[tuple[str, int, int]]:
    return Counter((row.log_id, row.partition, row.offset) for row in found)


def test_from_the_broker_to_the_tables(spark: SparkSession, broker: Broker) -> None:
    folder = broker.folder

    def once(conf: Conf, *jobs: str) -> None:
        run(spark, build(spark, conf, jobs), conf.name, once=True)

    # bronze and silver, and again after the broker was killed
    for start in (0, 60):
        broker.publish(fleet(start, 60))
        once(configured(broker, "bronze"), "bronze")
        once(configured(broker, "silver"), "silver")
        broker.kill()
        broker.start()
    sent = 2 * (60 + 20 + len(BAD))
    bronze = rows(spark, folder / "bronze" / "bronze")
    assert len(bronze) == sent
    assert set(keys(bronze).values()) == {1}
    assert len({row.log_id for row in bronze}) == 1
    assert {row.ingest_date for row in bronze} == {row.timestamp.date() for row in bronze}
    assert len({row.partition for row in bronze}) > 1

    good = rows(spark, folder / "silver" / "silver")
    assert good[0].__fields__ == [
        "device", "event_time", "message_id", "celsius", "battery", "at", *schemas.SILVER_AFTER,
    ]  # fmt: skip
    assert sorted(row.celsius for row in good) == [n + 0.5 for n in range(120)]
    assert all(row.message_id == f"id-{int(row.celsius)}" for row in good)
    bad = rows(spark, folder / "silver" / "dead_letter")
    assert Counter(row.reason for row in bad) == {
        "empty": 2, "not_utf8": 2, "bad_json": 2, "missing_field": 2, "wrong_type": 2, "late": 2,
    }  # fmt: skip
    duplicates = Counter(row.message_id for row in good).total() // 3
    assert sent == len(good) + len(bad) + duplicates
    assert not keys(good) & keys(bad)

    # the dead letters alone, and silver from the bronze table: the same rows
    conf = configured(broker, "dead_letter")
    once(conf, "dead_letter")
    assert keys(rows(spark, folder / "dead_letter" / "dead_letter")) == keys(bad)
    assert conf.silver is not None
    batch = dead_letters(open_batch(spark, conf.source), conf.silver)
    assert keys(batch.collect()) == keys(bad)

    # bronze from what was landed as Parquet: the same rows
    landed = folder / "landed"
    command = [str(HOOKMQ), "spark", "export", str(folder / "streams"), str(landed), "--tail"]
    subprocess.run(command, check=True, capture_output=True, timeout=WAIT)
    text = (CONF / "bronze.yaml").read_text()
    head, rest = text.split("  # The options of")
    (folder / "landed.yaml").write_text(
        f"{head}  files: {landed}/telemetry/*\n\ncheckpoints:{rest.partition('checkpoints:')[2]}"
    )
    places = [f"tables.bronze.path={folder}/again/bronze", f"checkpoints={folder}/again/c"]
    once(load(folder / "landed.yaml", places, ["bronze"]), "bronze")
    assert ordered(rows(spark, folder / "again" / "bronze")) == ordered(bronze)

    text = (CONF / "silver.yaml").read_text()
    head, rest = text.split("  mqtt:\n")
    again = (
        f"{head}  files: {folder}/bronze/bronze\n" + rest.partition("  # files: data/bronze\n")[2]
    )
    (folder / "again.yaml").write_text(again)
    places = [f"tables.{name}.path={folder}/again/{name}" for name in ("silver", "dead_letter")]
    conf = load(folder / "again.yaml", [*places, f"checkpoints={folder}/again/c"], ["silver"])
    once(conf, "silver")
    assert ordered(rows(spark, folder / "again" / "silver")) == ordered(good)
    assert keys(rows(spark, folder / "again" / "dead_letter")) == keys(bad)


def consumers_of_the_manual() -> list[str]:
    """Return the consumers from the manual's example about retention."""
    found = re.search(r"^ +consumers: \[(.+)\]$", MANUAL.read_text(), re.MULTILINE)
    assert found is not None
    return found[1].split(", ")


def test_retention_follows_the_query_whose_name_the_manual_gives(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = {
        "name": "telemetry", "partitions": 1, "consumers": consumers_of_the_manual(), "segment_size": 4096,
        "retention_bytes": 8192, "retention_time": 0, "max_bytes": "1MiB",
    }  # fmt: skip
    with running(tmp_path, stream=stream) as broker:

        def first_offset() -> int:
            command = [str(HOOKMQ), "spark", "status", str(tmp_path / "streams"), "--json"]
            told = subprocess.run(command, check=True, capture_output=True, timeout=WAIT)
            return int(json.loads(told.stdout)["partitions"]["0"]["earliest"])

        broker.publish(fleet(0, 200))
        assert first_offset() == 0  # much more than `retention_bytes`, but nobody has read it
        conf = configured(broker, "bronze")
        run(spark, build(spark, conf, ["bronze"]), conf.name, once=True)
        deadline = time.monotonic() + WAIT
        while not first_offset():
            assert time.monotonic() < deadline, "retention did not move"
            broker.publish(fleet(200, 20))  # the end of a segment starts retention


def test_gold_is_what_a_batch_makes_of_the_closed_windows(
    spark: SparkSession, broker: Broker
) -> None:
    # The time of an event is that at which the broker got it, so that none is late and windows close by themselves.
    options = (
        "silver.event_time.field=", "silver.late=0s", "silver.ahead=0s", "silver.slack=0s", "gold.window=50ms",
    )  # fmt: skip
    found: list[tuple[Any, ...]] = []
    for start in (0, 40):
        broker.publish(fleet(start, 40))
        conf = configured(broker, "gold", *options)
        assert conf.silver is not None
        assert conf.gold is not None
        assert conf.tables.gold is not None
        run(spark, build(spark, conf, ["gold"]), conf.name, once=True)
        kept = silver(open_batch(spark, conf.source), conf.silver)
        [(newest,)] = kept.selectExpr("max(event_time)").collect()
        watermark = newest - timedelta(seconds=conf.silver.watermark)
        whole = gold(kept, conf.gold).collect()
        closed = [tuple(row) for row in whole if row.window_end <= watermark]
        assert len(closed) < len(whole)
        table = DeltaTable(conf.tables.gold.path).to_pyarrow_table() if closed else None
        found = [] if table is None else [
            tuple(v.replace(tzinfo=None) if hasattr(v, "tzinfo") else v for v in row.values())
            for row in table.select(schemas.GOLD.names).to_pylist()
        ]  # fmt: skip
        assert sorted(found) == sorted(closed)
        broker.kill()
        broker.start()
    # All of the first round is closed by the second, which came after the broker's restart.
    assert sum(row[4] for row in found if row[1] == "celsius") >= 40
