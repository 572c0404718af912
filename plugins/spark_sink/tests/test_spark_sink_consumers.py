"""Test how declared consumers are compared with those that commit, and where the differences are reported."""

from pathlib import Path
from typing import Any

import pytest
from hookmq.plugin import Context, MetricRegistry, StoreError
from hookmq_spark_sink import files
from hookmq_spark_sink.config import Access, ApiConfig, SparkSinkConfig, StreamConfig
from hookmq_spark_sink.consumers import SILENT_AFTER, ConsumerState, notes, states
from hookmq_spark_sink.metrics import register
from hookmq_spark_sink.plugin import SparkSinkPlugin

UNDECLARED = "spark_sink.undeclared_consumer"
SILENT = "spark_sink.silent_consumer"


def commit(kept: Any, **offsets: int) -> None:
    """Commit an offset of partition 0 for each consumer."""
    stream = kept.stream
    known = {name: files.Consumer({0: one}, 7.0) for name, one in offsets.items()}
    files.write_consumers(stream.folder, stream.log.id, known)


def logged(kept: Any) -> list[tuple[str, str]]:
    """Return the logged events about consumers, each with its consumer."""
    return [
        (event, fields["consumer"])
        for _, event, fields in kept.runtime.logged
        if event in (UNDECLARED, SILENT)
    ]


def test_states() -> None:
    known = {"a": files.Consumer({0: 3, 1: 9}, 5.0), "x": files.Consumer({0: 1}, 6.0)}
    assert states(("a", "b"), known, [2, 0], [10, 9]) == [
        ConsumerState("a", True, 7, 5.0),
        ConsumerState("b", True, 17, 0.0),
        ConsumerState("x", False, 17, 6.0),
    ]


def test_an_undeclared_consumer_is_logged_once(keep: Any) -> None:
    kept = keep(consumers=("bronze",))
    kept.publish(b"1")
    commit(kept, **{"plant.bronze": 1})
    kept.look()
    kept.look()
    assert logged(kept) == [(UNDECLARED, "plant.bronze")]


def test_a_silent_consumer_is_logged_once_the_stream_has_messages_for_a_while(keep: Any) -> None:
    kept = keep(consumers=("bronze", "silver"))
    kept.runtime.advance(SILENT_AFTER)
    kept.look()
    assert logged(kept) == []  # no messages
    kept.publish(b"1")
    commit(kept, silver=0)
    kept.look()
    kept.look()
    assert logged(kept) == [(SILENT, "bronze")]


def test_a_consumer_has_time_to_commit(keep: Any) -> None:
    kept = keep(consumers=("bronze",))
    kept.publish(b"1")
    kept.runtime.advance(SILENT_AFTER - 1)
    kept.look()
    assert logged(kept) == []


def test_without_declared_consumers_nothing_is_logged(keep: Any) -> None:
    kept = keep()
    kept.publish(b"1")
    commit(kept, etl=1)
    kept.runtime.advance(SILENT_AFTER)
    kept.look()
    assert logged(kept) == []


def test_metrics(keep: Any) -> None:
    kept = keep(consumers=("bronze",))
    kept.publish(b"1", b"2")
    commit(kept, etl=1)
    registry = MetricRegistry()
    register(
        registry, lambda: [kept.stream], list, lambda: None, lambda: kept.runtime.time() + 60, list
    )
    found = {name: value for name, value in registry.values().items() if "consumer=" in name}
    prefix, labels = "spark_sink_consumer_", '{consumer="%s",stream="all"}'
    behind = {name: found.pop(name) for name in list(found) if "lag_seconds" in name}
    assert len(behind) == 2
    assert all(60 <= value < 62 for value in behind.values())
    assert found == {
        f"{prefix}lag{labels % 'bronze'}": 2,
        f"{prefix}lag{labels % 'etl'}": 1,
        f"{prefix}declared{labels % 'bronze'}": 1,
        f"{prefix}declared{labels % 'etl'}": 0,
        f"{prefix}committed_time_seconds{labels % 'bronze'}": 0,
        f"{prefix}committed_time_seconds{labels % 'etl'}": 7,
    }


def test_notes(keep: Any, tmp_path: Path) -> None:
    assert notes("all", tmp_path / "none", ("bronze",)) == []
    kept = keep(consumers=("bronze",))
    commit(kept, **{"plant.bronze": 0})
    assert notes("all", kept.stream.folder, ("bronze",)) == [
        "stream all: the consumer bronze has never committed, so all messages are kept for it",
        "stream all: plant.bronze commits but is not in consumers, so messages are not kept for it",
    ]
    assert notes("all", kept.stream.folder, ("plant.bronze",)) == []
    (kept.stream.folder / "consumers.json").write_text("?")
    assert notes("all", kept.stream.folder, ("bronze",)) == []


def test_the_plugin_names_the_address_for_readers(keep: Any) -> None:
    kept = keep(consumers=("bronze",))
    access = (Access(token="0123456789abcdef"),)
    config = SparkSinkConfig(
        path=kept.path,
        streams=(StreamConfig("all", ("#",), consumers=("bronze",)),),
        api=ApiConfig(access=access),
    )
    assert SparkSinkPlugin(config, Context("spark_sink")).notes == [
        "readers connect to http://127.0.0.1:1890",
        "stream all: the consumer bronze has never committed, so all messages are kept for it",
    ]


def test_a_damaged_list_of_declared_consumers_is_replaced(keep: Any) -> None:
    kept = keep(consumers=("bronze",))
    path = kept.stream.folder / "declared.json"
    path.write_text("?")
    kept.open(consumers=("silver",))
    assert files.read_declared(kept.stream.folder) == ("silver",)


@pytest.mark.parametrize("text", ['{"format": 1}', '{"format": 1, "consumers": 3}', "[]"])
def test_an_invalid_list_of_declared_consumers_is_refused(keep: Any, text: str) -> None:
    kept = keep()
    (kept.stream.folder / "declared.json").write_text(text)
    with pytest.raises(StoreError):
        files.read_declared(kept.stream.folder)
