"""Test that batches and streams return the same rows. Each message is in silver, is a dead letter, or is counted as a
duplicate or as late.
"""

from collections import Counter
from datetime import datetime
from pathlib import Path

from mqtt_pipelines import schemas
from mqtt_pipelines.transforms.bronze import bronze
from mqtt_pipelines.transforms.gold import Gold, gold
from mqtt_pipelines.transforms.parse import Device, EventTime, Silver
from mqtt_pipelines.transforms.quality import dead_letters
from mqtt_pipelines.transforms.silver import silver
from pyspark.sql import DataFrame, SparkSession
from rows import Log, Message, Stream, at, batch, epoch_ms, frame

BY = Silver(
    schema="celsius double, battery int, at bigint",
    device=Device(topic_level=1),
    event_time=EventTime(field="at"),
    late=60.0,
    ahead=10.0,
    slack=10.0,
)
GOLD = Gold(metrics=("celsius", "battery"), window=10.0)


def reading(
    log: Log,
    device: str,
    second: float,
    celsius: object = 1.0,
    *,
    behind: float = 0.0,
    **more: object,
) -> Message:
    """Return a message that the broker received at `second`, with a value that was measured `behind` seconds earlier."""
    payload = {"celsius": celsius, "battery": int(second) % 7, "at": epoch_ms(second - behind)}
    return log.message(payload, second, topic=f"plant/{device}/state", **more)  # type: ignore[arg-type]


def day() -> list[list[Message]]:
    """Return batches of messages from two partitions, with every kind of error."""
    a, b = Log(0), Log(1)
    batches = [
        [
            reading(a, "d1", 0, 20.0, message_id="m1"),
            reading(a, "d1", 0.5, 20.0, behind=0.5, message_id="m1"),  # sent again, in this batch
            reading(a, "d1", 1, 21.0),
            reading(a, "d1", 1, 21.0),  # the same again without an id: another message
            reading(b, "d2", 2, 30.0, message_id="m1"),  # an id that another device has, too
            reading(b, "d2", 3, 31.0, message_id="m2"),
            b.message("not JSON", 4),
            b.message(b"\xff", 4),
        ],
        [
            reading(a, "d1", 20, 22.0, message_id="m3"),
            reading(b, "d2", 21, 31.0, behind=18, message_id="m2"),  # sent again, a batch later
            reading(b, "d2", 22, 32.0, behind=60),  # just in time: before all there was
            reading(a, "d1", 30, 99.0, behind=61),  # late
            reading(a, "d1", 30, 98.0, behind=-11),  # from the future
            reading(a, "d1", 31, "warm"),
        ],
        [
            reading(a, "d1", 120, 23.0, behind=60),  # as old as may be, after the watermark moved
            reading(a, "d1", 121, 24.0),
            reading(b, "d2", 121, None),  # no value: in silver, not in gold
            reading(a, "d1", 125, 22.0, behind=105, message_id="m3"),  # sent again much later: late
        ],
        [reading(a, "d1", 200, 25.0), reading(b, "d2", 200, -33.5)],
    ]
    return batches


def flat(batches: list[list[Message]]) -> list[Message]:
    return [message for messages in batches for message in messages]


def windows(raw: DataFrame) -> DataFrame:
    return gold(silver(raw, BY), GOLD)


def test_all_of_a_day(spark: SparkSession, tmp_path: Path) -> None:
    batches = day()
    messages = flat(batches)

    streams = {
        "bronze": Stream(spark, tmp_path / "bronze", bronze),
        "silver": Stream(spark, tmp_path / "silver", lambda raw: silver(raw, BY)),
        "dead": Stream(spark, tmp_path / "dead", lambda raw: dead_letters(raw, BY)),
    }
    found = {name: stream.add(*batches).run() for name, stream in streams.items()}
    assert len(streams["silver"].progress) >= len(batches)

    assert found["bronze"] == batch(spark, messages, bronze)
    assert found["bronze"][0].__fields__ == schemas.BRONZE.names
    assert bronze(frame(spark, [])).schema == schemas.BRONZE
    key = Counter((row.log_id, row.partition, row.offset) for row in found["bronze"])
    assert key == Counter((m["log_id"], m["partition"], m["offset"]) for m in messages)

    assert found["silver"] == batch(spark, messages, lambda raw: silver(raw, BY))
    values = sorted((row.partition, row.offset, row.device, row.celsius) for row in found["silver"])
    assert values == [
        (0, 0, "d1", 20.0), (0, 2, "d1", 21.0), (0, 3, "d1", 21.0), (0, 4, "d1", 22.0), (0, 8, "d1", 23.0),
        (0, 9, "d1", 24.0), (0, 11, "d1", 25.0),
        (1, 0, "d2", 30.0), (1, 1, "d2", 31.0), (1, 5, "d2", 32.0), (1, 6, "d2", None), (1, 7, "d2", -33.5),
    ]  # fmt: skip

    assert found["dead"] == batch(spark, messages, lambda raw: dead_letters(raw, BY))
    assert Counter(row.reason for row in found["dead"]) == {
        "bad_json": 1, "not_utf8": 1, "late": 2, "future": 1, "wrong_type": 1,
    }  # fmt: skip

    duplicates = streams["silver"].counted("numDroppedDuplicateRows")
    dropped = streams["silver"].counted("numRowsDroppedByWatermark")
    assert (duplicates, dropped) == (2, 0)
    assert len(messages) == len(found["silver"]) + len(found["dead"]) + duplicates + dropped


def watermark(stream: Stream) -> datetime:
    """Return the last watermark."""
    text = stream.progress[-1]["eventTime"]["watermark"]
    return datetime.fromisoformat(text).replace(tzinfo=None)


def test_windows_are_given_when_they_are_closed(spark: SparkSession, tmp_path: Path) -> None:
    batches = day()
    messages = flat(batches)
    everything = batch(spark, messages, windows)
    assert all(row["count"] > 0 for row in everything)
    first = [row for row in everything if row.window_start == at(0) and row.device == "d1"]
    assert [(row.metric, row["count"], row.min, row.avg, row.max) for row in first] == [
        ("battery", 3, 0.0, 2 / 3, 1.0),
        ("celsius", 3, 20.0, 62 / 3, 21.0),
    ]
    assert not [
        r for r in everything if (r.device, r.metric, r.window_start) == ("d2", "celsius", at(120))
    ]

    stream = Stream(spark, tmp_path, windows).add(*batches)
    given = stream.run()
    assert watermark(stream) == at(200 - BY.watermark)
    closed = [row for row in everything if row.window_end <= watermark(stream)]
    assert given == closed
    # What AvailableNow withholds: windows whose end is not a watermark's delay behind the newest event.
    withheld = [row for row in everything if row not in closed]
    assert {row.window_start for row in withheld} == {at(120), at(200)}
    assert stream.counted("numRowsDroppedByWatermark") == 0

    # They arrive once each, when the device continues. The continued query is a new start.
    later = [reading(Log(0), "d1", 1000, 1.0, offset=100)]
    assert stream.add(later).run() == [
        row for row in batch(spark, messages + later, windows) if row.window_end <= at(910)
    ]
    assert len(stream.run()) == len(everything)


def test_the_same_device_and_time(spark: SparkSession, tmp_path: Path) -> None:
    from dataclasses import replace

    by = replace(BY, deduplicate=("device", "event_time"))
    a = Log(0)
    batches = [
        [reading(a, "d1", 0, 1.0), reading(a, "d1", 1, 2.0, behind=1), reading(a, "d2", 0, 3.0)],
        [reading(a, "d1", 5, 4.0, behind=5), reading(a, "d1", 6, 5.0)],
    ]
    stream = Stream(spark, tmp_path, lambda raw: silver(raw, by)).add(*batches)
    rows = stream.run()
    assert rows == batch(spark, flat(batches), lambda raw: silver(raw, by))
    assert sorted(row.celsius for row in rows) == [1.0, 3.0, 5.0]
    assert stream.counted("numDroppedDuplicateRows") == 2


def test_settings_that_may_change(spark: SparkSession, tmp_path: Path) -> None:
    """After settings for fields or times change, a query continues from its checkpoint and keeps its state."""
    from dataclasses import replace

    stream = Stream(spark, tmp_path, lambda raw: silver(raw, BY).drop("new"))
    log = Log()
    assert len(stream.add([reading(log, "d1", 0, message_id="a")]).run()) == 1
    by = replace(BY, schema=f"{BY.schema}, new string", late=30.0, ahead=5.0, slack=0.0)
    stream.transform = lambda raw: silver(raw, by).drop("new")
    later = [reading(log, "d1", 1, behind=1, message_id="a"), reading(log, "d1", 32, behind=31)]
    assert len(stream.add([*later, reading(log, "d1", 33, behind=30)]).run()) == 2
    assert stream.counted("numDroppedDuplicateRows") == 1


def test_a_partition_that_is_read_too_far_ahead(spark: SparkSession, tmp_path: Path) -> None:
    """If one partition is ahead by more than the slack, messages in another partition are dropped and counted, even if
    they arrived in time.
    """
    a, b = Log(0), Log(1)
    batches = [
        [reading(a, "d1", 0), reading(a, "d1", 100)],
        [reading(a, "d1", 100)],  # Rows are dropped by the watermark of the batch before.
        [reading(b, "d2", 19), reading(b, "d2", 20), reading(b, "d2", 21)],
    ]
    stream = Stream(spark, tmp_path, lambda raw: silver(raw, BY)).add(*batches)
    rows = stream.run()
    assert sorted((row.device, row.event_time) for row in rows) == [
        ("d1", at(0)), ("d1", at(100)), ("d1", at(100)), ("d2", at(20)), ("d2", at(21)),
    ]  # fmt: skip
    assert stream.counted("numRowsDroppedByWatermark") == 1
    assert len(flat(batches)) == len(rows) + 1
