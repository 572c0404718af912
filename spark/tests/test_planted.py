"""Test that the "once" test finds a planted bug: a reader that ignores log_id. Spark is not needed."""

from collections.abc import Iterator

import pytest
from fakelog import FakeLog, record, serving
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark_mqtt import offsets
from pyspark_mqtt.errors import DataLossError
from pyspark_mqtt.options import reading
from pyspark_mqtt.schema import Column
from pyspark_mqtt.stream import MqttStreamReader

OLD, NEW = 40, 60
"""The number of records in a log and in the log that replaces it."""


@pytest.fixture
def log() -> Iterator[FakeLog]:
    made = FakeLog({0: [record("t", b"old %d" % n) for n in range(OLD)]})
    with serving(made):
        yield made


def read(
    reader: MqttStreamReader, start: dict[str, str | int], found: list[bytes]
) -> dict[str, str | int]:
    """Read a batch as Spark does, and return the start of the next one."""
    end = reader.latestOffset(start, ReadAllAvailable())
    for task in reader.partitions(start, end):
        for batch in reader.read(task):
            found += batch.column("payload").to_pylist()
    return end


def lives(log: FakeLog) -> list[bytes]:
    """Return everything that a query with one checkpoint reads from a log and from the log that replaces it."""
    reader = MqttStreamReader(
        reading(log.options | {"startingOffsets": "earliest"}), [Column("payload")]
    )
    found: list[bytes] = []
    try:
        reached = read(reader, reader.initialOffset(), found)
        log.log_id = "f" * 32
        log.partitions = {0: [record("t", b"new %d" % n) for n in range(NEW)]}
        read(reader, reached, found)
    finally:
        reader.stop()
    return found


def test_another_log_is_noticed(log: FakeLog) -> None:
    with pytest.raises(DataLossError, match="is not the log that the checkpoint belongs to"):
        lives(log)


def test_without_log_id_messages_are_lost_without_a_word(
    log: FakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = offsets.Offsets.of

    def same(json: dict[str, str | int]) -> offsets.Offsets:
        return of(json | {"log_id": log.log_id})

    monkeypatch.setattr(offsets.Offsets, "of", same)
    found = lives(log)
    assert found[:OLD] == [b"old %d" % n for n in range(OLD)]
    missing = {b"new %d" % n for n in range(NEW)} - set(found)
    assert len(missing) == OLD  # what the proof counts as lost
