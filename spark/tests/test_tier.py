"""Test that retention of a real broker moves messages to Parquet, where Spark reads them by day."""

import json
import random
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

from broker import WAIT, running
from pyspark.sql import SparkSession
from pyspark_mqtt.client import Client
from pyspark_mqtt.offsets import Log
from pyspark_mqtt.options import reading
from pyspark_mqtt.publisher import Message

COUNT = 900


def until(holds: Callable[[], bool]) -> None:
    last = time.monotonic() + WAIT
    while not holds():
        assert time.monotonic() < last
        time.sleep(0.05)


def test_no_message_is_removed_before_it_is_in_parquet(spark: SparkSession, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    stream: dict[str, Any] = {
        "retention_time": "100ms", "segment_size": "32KiB", "compression": "none",
        "tier": {"target": str(lake), "file_size": "64KiB", "python": sys.executable},
    }  # fmt: skip
    draw = random.Random(1)
    sent = [draw.randbytes(600) for _ in range(COUNT)]
    with running(tmp_path, stream=stream, check_every="200ms") as broker:

        def look() -> Log:
            client = Client(reading(broker.read))
            try:
                return client.log()
            finally:
                client.close()

        def publish(payloads: list[bytes]) -> None:
            broker.publish(Message(f"plant/d{n % 7}", one, 1) for n, one in enumerate(payloads))

        publish(sent[: COUNT // 2])
        until(lambda: sum(look().earliest.values()) > 100)
        broker.kill()
        broker.start()  # and the process of the tier with it
        before = sum(look().earliest.values())
        publish(sent[COUNT // 2 :])
        until(lambda: sum(look().earliest.values()) > before + 100)
        log = look()
        live = spark.read.format("mqtt").options(**broker.read).load()
        columns = spark.read.parquet(f"{lake}/all/*").drop("date").schema
        new = spark.read.format("mqtt").schema(columns).options(**broker.read).load().cache()
        assert new.count() > 0  # messages move to the lake all the time, so read the log first
        old = spark.read.parquet(f"{lake}/all/*").where("date >= '2026-01-01'").drop("date")
        both = old.unionByName(new).dropDuplicates(["log_id", "partition", "offset"])
        assert both.count() == COUNT
        left = {(row.partition, row.offset): bytes(row.payload) for row in live.collect()}
    tier = spark.read.parquet(f"{lake}/all/{log.log_id}")
    moved = {(row.partition, row.offset): bytes(row.payload) for row in tier.collect()}
    assert tier.count() == len(moved)
    places = {(p, n) for p, end in log.latest.items() for n in range(end)}
    assert left.keys() | moved.keys() == places
    removed = {(p, n) for p, end in log.earliest.items() for n in range(end)}
    assert removed <= moved.keys()
    assert sorted((moved | left).values()) == sorted(sent)
    days = {row.date for row in tier.select("date").distinct().collect()}
    assert days <= {date.fromtimestamp(time.time() - 86400), date.fromtimestamp(time.time())}
    [manifest, *_] = sorted((lake / "all" / log.log_id / "_manifest").iterdir())
    assert json.loads(manifest.read_text())["gaps"] == []
