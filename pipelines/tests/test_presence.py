"""Test the periods in which devices were online. The result does not depend on which batches contain the connects and
disconnects.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from mqtt_pipelines import schemas
from mqtt_pipelines.transforms.filters import matches, pattern
from mqtt_pipelines.transforms.parse import Device
from mqtt_pipelines.transforms.presence import Lifecycle, Presence, Sessions, presence
from mqtt_pipelines.transforms.stateful import PROVIDER, prepare
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as f
from rows import Log, Message, Stream, at, batch, frame

BY = Presence(
    device=Device(topic_level=1),
    gap=60.0,
    slack=50.0,
    lifecycle=Lifecycle(topics=("plant/+/status",), online=("online", "1"), offline=("OFFLINE",)),
)


@pytest.fixture(autouse=True)
def rocksdb(spark: SparkSession) -> Iterator[None]:
    prepare(spark)
    yield
    spark.conf.unset(PROVIDER)


def status(log: Log, device: str, said: str | bytes, second: float) -> Message:
    return log.message(said, second, topic=f"plant/{device}/status")


def data(log: Log, device: str, second: float) -> Message:
    return log.message("{}", second, topic=f"plant/{device}/state")


def told(rows: list[Row]) -> list[tuple[object, ...]]:
    """Return the rows, with times in seconds after the start."""
    zero = at(0)

    def seconds(value: object) -> float | None:
        return None if value is None else (value - zero).total_seconds()  # type: ignore[operator]

    return sorted(
        (r.device, seconds(r.online_at), seconds(r.offline_at), r.seconds, r.messages, r.how)
        for r in rows
    )


def test_coming_going_and_silence(spark: SparkSession, tmp_path: Path) -> None:
    a, b = Log(0), Log(1)
    batches = [
        [
            status(a, "d1", "online", 0), data(b, "d1", 1), data(b, "d1", 2), data(b, "d2", 3),
            status(a, "d3", " Online\n", 4), status(a, "d3", "perhaps", 5), status(a, "d3", b"\xff", 5),
        ],
        # The other partition was read further: d1's data of second 25 is there before it went and came at 20 and 21.
        [data(b, "d1", 25), data(b, "d2", 63)],
        [
            status(a, "d1", "offline", 20), status(a, "d1", "1", 21), status(a, "d4", "offline", 22),
            data(b, "d1", 50), data(b, "d2", 124),
        ],
        [
            data(b, "d5", 200), data(b, "$SYS", 201), status(a, "d5", "offline", 261), data(b, "d5", 262),
            data(b, "d6", 400),
        ],
    ]  # fmt: skip
    messages = [message for part in batches for message in part]
    expected = [
        ("$SYS", 201.0, 201.0, 0.0, 1, "gap"),
        ("d1", 0.0, 20.0, 20.0, 2, "lifecycle"),
        ("d1", 21.0, 50.0, 29.0, 2, "gap"),
        ("d2", 3.0, 63.0, 60.0, 2, "gap"),
        ("d2", 124.0, 124.0, 0.0, 1, "gap"),
        ("d3", 4.0, 4.0, 0.0, 0, "gap"),
        ("d5", 200.0, 200.0, 0.0, 1, "gap"),
        ("d5", 262.0, 262.0, 0.0, 1, "gap"),
    ]
    whole = batch(spark, messages, lambda raw: presence(raw, BY))
    assert told(whole) == [*expected, ("d6", 400.0, None, None, 1, None)]
    assert presence(frame(spark, []), BY).schema == schemas.PRESENCE
    assert batch(spark, [], lambda raw: presence(raw, BY)) == []

    stream = Stream(spark, tmp_path, lambda raw: presence(raw, BY)).add(*batches[:3])
    # Up to second 74: the newest but for the slack. Silence is known when it was long enough by then.
    assert told(stream.run()) == [expected[1], expected[5]]
    assert told(stream.add(*batches[3:]).run()) == expected
    assert stream.counted("numRowsDroppedByWatermark") == 0
    [kept] = stream.progress[-1]["stateOperators"]
    assert kept["numRowsTotal"] == 1  # d6; those that are gone are not kept


def test_only_what_is_said(spark: SparkSession) -> None:
    log = Log()
    said = Lifecycle(topics=("$SYS/#",), field="state", device=Device(client_id=True))
    by = replace(BY, gap=0.0, lifecycle=said)
    messages = [
        data(log, "client", 1),
        log.message({"state": "online"}, 2, topic="$SYS/x"),
        data(log, "client", 3),
        data(log, "client", 5000),
        log.message({"state": "offline"}, 6000, topic="$SYS"),
        data(log, "client", 6001),
    ]
    found = batch(spark, messages, lambda raw: presence(raw, by))
    assert told(found) == [("client", 2.0, 6000.0, 5998.0, 2, "lifecycle")]


def test_any_batches_give_the_same() -> None:
    """The periods do not depend on the batches. One day of a device's messages is split into random batches with late
    watermarks. Spark is not needed.
    """
    for seed in range(60):
        random = Random(seed)
        sessions = Sessions(gap=10)
        events: list[Any] = [
            {
                "at": random.randrange(300),
                "log_id": None,
                "partition": n % 2,
                "offset": n,
                "kind": random.choice([0, 1, 2, 2, 2]),
            }
            for n in range(60)
        ]
        events.sort(key=lambda one: one["at"])
        state = sessions.begin()
        list(sessions.rows(["d"], state, list(events)))
        whole = [*sessions.wake(["d"], state, 300), *sessions.end(["d"], state, 300)]

        found: list[Any] = []
        state, left, watermark = sessions.begin(), list(events), 0
        while left:
            count = random.randrange(1, 20)
            part, left = left[:count], left[count:]
            random.shuffle(part)
            found += sessions.rows(["d"], state, part)
            # All before it have come.
            watermark = max(watermark, left[0]["at"] if left else 300)
            due = sessions.due(state)
            if due is not None and due < watermark:
                found += sessions.wake(["d"], state, watermark)
        found += sessions.end(["d"], state, 300)
        assert found == whole
        assert sum(row[3] for row in whole) == sum(one["kind"] == 2 for one in events)


@pytest.mark.parametrize(
    ("topic_filter", "yes", "no"),
    [
        ("a/+/c", ["a/b/c", "a//c"], ["a/b/c/d", "a/b", "x/a/b/c", "a/b/c\n"]),
        ("a/#", ["a", "a/", "a/b/c"], ["ab", "b/a"]),
        ("#", ["a", "/", "a\nb"], ["$SYS/x"]),
        ("+/x", ["a/x", "/x"], ["$SYS/x"]),
        ("$SYS/+", ["$SYS/x"], ["XSYS/x"]),
        ("a.b/(+", None, None),
        ("a.b/[c]|d*?\\E", ["a.b/[c]|d*?\\E"], ["aXb/[c]|d*?\\E"]),
        ("a/#/b", None, None),
        ("", None, None),
    ],
)
def test_topic_filters(
    spark: SparkSession, topic_filter: str, yes: list[str] | None, no: list[str] | None
) -> None:
    if yes is None or no is None:
        with pytest.raises(ValueError, match="is not a topic filter"):
            pattern(topic_filter)
        return
    topics = spark.createDataFrame([(one,) for one in [*yes, *no]], "topic string")
    found = topics.where(matches(f.col("topic"), (topic_filter,))).collect()
    assert [row.topic for row in found] == yes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gap": 0.0, "lifecycle": None}, "gap: 0 needs lifecycle"),
        ({"device": Device(field="id")}, "payloads are not read"),
    ],
)
def test_settings_that_do_not_fit(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(BY, **change)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is not a topic filter"):
        Lifecycle(topics=("a/#/b",))
