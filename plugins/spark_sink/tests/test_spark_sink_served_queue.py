"""Test streams that serve a queue, in a broker with both plugins."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hookmq.plugin import Context, MetricRegistry, StoreError
from hookmq_queues.plugin import QueuesPlugin
from hookmq_spark_sink import block, files
from hookmq_spark_sink.config import SparkSinkConfig, StreamConfig
from hookmq_spark_sink.metrics import register
from hookmq_spark_sink.plugin import SparkSinkPlugin
from hookmq_spark_sink.queue_reading import QueueReader, QueueView
from hookmq_spark_sink.queue_state import read_queue_state
from hookmq_spark_sink.reading import NotServed, Unavailable, Wanted
from hookmq_spark_sink.served_queue import ServedQueue
from hookmq_testing import DurableStore, Harness, make_plugin
from hookmq_toolkit import queues
from hookmq_toolkit.streams import SERVICE, StreamConsumer, StreamStatus

LOG = {"name": "log", "type": "stream"}
GROUPS = {**LOG, "groups": ["etl"], "retention": {"messages": 10, "wait_for_groups": "2GiB"}}


class Pair:
    """Starts brokers with both plugins, one broker after another. The brokers share their folders and store."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = DurableStore()
        self.harness: Harness

    def start(self, *given: dict[str, Any], plugins: str = "sq", **stream: Any) -> Harness:
        """Start a broker with these queues. `plugins` gives the plugins' order: s for spark_sink, q for queues."""
        config = {
            "path": str(self.path / "spark"),
            "streams": [{"name": "all", "queue": "log", **stream}],
            "check_every": 10,
        }
        owner = {"path": str(self.path / "queues"), "queues": list(given)}
        made = {
            "s": lambda: make_plugin(SparkSinkPlugin, config, "spark_sink"),
            "q": lambda: make_plugin(QueuesPlugin, owner, "queues", use="queues"),
        }
        self.harness = Harness([made[one]() for one in plugins], store=self.store)
        return self.harness

    @property
    def served(self) -> ServedQueue:
        instance = self.harness.hooks.instance("spark_sink")
        assert instance is not None
        assert isinstance(instance.plugin, SparkSinkPlugin)
        [found] = instance.plugin.queues
        return found

    def publish(self, count: int) -> None:
        client = self.harness.connect("p")
        for number in range(count):
            client.publish("$queue/log", b"%d" % number, 1)
        client.drop()
        self.harness.settle()

    def reader(self) -> QueueReader:
        state = read_queue_state(self.path / "spark" / "all")
        assert state is not None
        return QueueReader(self.path / "spark" / "all", state.boot)

    def view(self) -> QueueView:
        return self.reader().refresh()

    def payloads(self) -> list[bytes]:
        view = self.view()
        made = view.blocks(Wanted(0, view.earliest[0], view.latest[0]), 1 << 30)
        return [row["payload"] for one in made for row in block.rows(block.parse(one))]

    def commit(self, name: str, offset: int) -> None:
        reader = self.reader()
        reader.refresh()
        reader.commit(name, {0: offset})
        self.harness.advance(11)

    def manager(self) -> Any:
        return self.harness.handle("spark_sink").services(queues.SERVICE)["queues"]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.harness.close()


@pytest.mark.parametrize("plugins", ["sq", "qs"])
def test_messages_can_be_read_when_they_are_acknowledged(pair: Pair, plugins: str) -> None:
    harness = pair.start(LOG, plugins=plugins)
    pair.publish(3)
    assert pair.payloads() == [b"0", b"1", b"2"]
    log_id = pair.view().log_id
    assert [one for one in harness.logs if one[1].startswith("spark_sink.queue")] == []
    harness.close()
    pair.start(LOG, plugins=plugins)
    assert pair.view().log_id == log_id
    pair.publish(1)
    assert pair.view().latest == (4,)


def test_a_state_of_an_earlier_run_is_not_used(pair: Pair) -> None:
    pair.start(LOG)
    reader = pair.reader()
    reader.refresh()
    pair.harness.close()
    assert reader.refresh().latest == (0,)  # the reader process ends with its broker
    pair.start(LOG)
    with pytest.raises(Unavailable):
        reader.refresh()


def test_a_queue_that_is_created_later(pair: Pair) -> None:
    harness = pair.start()
    (missing,) = harness.logged("spark_sink.queue_missing")
    assert (missing["stream"], missing["queue"]) == ("all", "log")
    assert missing["reason"] == "there is no queue 'log'"
    with pytest.raises(NotServed, match="there is no queue 'log'"):
        pair.view()
    assert pair.served.readable == 0
    assert pair.served.consumers() == []
    harness.clock.run(pair.manager().create_queue("log", {"type": "stream"}))
    assert len(harness.logged("spark_sink.queue_found")) == 1
    pair.publish(2)
    assert pair.payloads() == [b"0", b"1"]
    harness.clock.run(pair.manager().delete_queue("log", True))
    assert len(harness.logged("spark_sink.queue_missing")) == 2
    with pytest.raises(NotServed):
        pair.view()


def test_without_the_plugin(pair: Pair) -> None:
    harness = pair.start(plugins="s")
    harness.advance(60)
    (missing,) = harness.logged("spark_sink.queue_missing")
    assert "add the plugin queues" in str(missing["reason"])
    with pytest.raises(NotServed, match="no plugin has queues"):
        pair.view()


def test_before_all_plugins_are_started(tmp_path: Path) -> None:
    config = StreamConfig("all", queue="log")
    served = ServedQueue(config, tmp_path, bytes(16), "spark_sink")
    served.open()
    served.look()
    assert (served.missing, served.files) == ("", None)
    with pytest.raises(Unavailable):
        QueueReader(served.folder, bytes(16)).refresh()
    served.close()


def test_a_consumer_moves_its_group(pair: Pair) -> None:
    harness = pair.start(GROUPS, consumers=["etl"])
    pair.publish(50)
    assert pair.view().earliest == (0,)
    pair.commit("etl", 30)
    assert pair.view().earliest == (30,)
    (group,) = pair.manager().show_queue("log").groups
    assert (group.name, group.next, group.unsettled) == ("etl", 30, 20)
    [state] = pair.served.consumers()
    assert (state.name, state.declared, state.lag) == ("etl", True, 20)
    pair.commit("etl", 45)
    assert pair.view().earliest == (40,)  # of the last 10 messages
    pair.commit("etl", 42)  # the reader restarts from an older checkpoint
    assert pair.manager().show_queue("log").groups[0].next == 42
    harness.close()
    pair.start(GROUPS, consumers=["etl"])
    assert pair.view().earliest == (40,)
    pair.harness.advance(11)
    assert pair.manager().show_queue("log").groups[0].unsettled == 8
    assert pair.harness.logged("spark_sink.group_not_moved") == []


def test_a_group_of_mqtt_clients_is_not_moved(pair: Pair) -> None:
    harness = pair.start(GROUPS, consumers=["etl"])
    consumer = harness.connect("c")
    assert consumer.subscribe("$queue/log", 1).codes == (1,)
    pair.publish(5)
    pair.commit("etl", 5)
    pair.commit("etl", 4)
    (problem,) = harness.logged("spark_sink.group_not_moved")
    assert problem["reason"] == "MQTT clients consume the group etl of the queue log"
    assert len(consumer.unread) == 5
    assert pair.manager().show_queue("log").groups[0].next == 5
    consumer.drop()
    harness.settle()
    harness.advance(11)
    assert pair.manager().show_queue("log").groups[0].next == 4


def test_a_consumer_without_a_group(pair: Pair) -> None:
    harness = pair.start({**LOG, "retention": {"messages": 10}}, consumers=["etl"])
    harness.settle()
    (problem,) = harness.logged("spark_sink.group_not_moved")
    assert problem["reason"] == "the queue log has no group etl, only: default"
    pair.publish(50)
    pair.commit("etl", 45)
    assert pair.view().earliest == (40,)
    assert len(harness.logged("spark_sink.group_not_moved")) == 1


def test_the_offsets_of_consumers_cannot_be_read(pair: Pair) -> None:
    harness = pair.start(GROUPS, consumers=["etl"])
    (pair.served.folder / "consumers.json").write_text("?")
    harness.advance(11)
    (problem,) = harness.logged("spark_sink.upkeep_failed")
    assert "cannot be read" in str(problem["reason"])
    [status] = described(harness)
    assert "cannot be read" in status.error
    (pair.served.folder / "consumers.json").unlink()
    pair.publish(5)
    pair.commit("etl", 5)
    assert pair.manager().show_queue("log").groups[0].next == 5


def described(harness: Harness) -> list[StreamStatus]:
    owner: Any = harness.handle("spark_sink").services(SERVICE)["spark_sink"]
    found: list[StreamStatus] = harness.clock.run(owner.list_streams())
    return found


def metrics(pair: Pair) -> dict[str, float]:
    """Return some of the metrics."""
    registry = MetricRegistry()
    register(registry, list, lambda: [pair.served], lambda: None, lambda: 0.0, list)
    names = ("consumer_lag{", "queue_missing{", "readable_records{")
    return {name: value for name, value in registry.values().items() if name[11:].startswith(names)}


def test_the_status_for_operators(pair: Pair) -> None:
    harness = pair.start(LOG)
    pair.publish(5)
    pair.commit("etl", 2)
    [status] = described(harness)
    assert (status.name, status.kind, status.messages, status.error) == ("all", "log", 5, "")
    assert status.bytes > 100
    [consumer] = status.consumers
    assert isinstance(consumer, StreamConsumer)
    assert (consumer.name, consumer.lag, consumer.declared) == ("etl", 3, False)
    assert consumer.lag_seconds is not None
    assert 11 <= consumer.lag_seconds < 13
    pair.commit("etl", 5)
    [consumer] = described(harness)[0].consumers
    assert (consumer.lag, consumer.lag_seconds) == (0, 0.0)
    pair.commit("etl", 2)
    assert metrics(pair) == {
        'spark_sink_consumer_lag{consumer="etl",stream="all"}': 3,
        'spark_sink_queue_missing{queue="log",stream="all"}': 0,
        'spark_sink_readable_records{stream="all"}': 5,
    }
    harness.close()
    harness = pair.start(LOG, queue="missing")
    assert described(harness) == [
        StreamStatus("all", "log", 0, 0, error="there is no queue 'missing'")
    ]
    assert metrics(pair) == {
        'spark_sink_queue_missing{queue="missing",stream="all"}': 1,
        'spark_sink_readable_records{stream="all"}': 0,
    }


def test_a_folder_with_messages_of_topics(tmp_path: Path) -> None:
    folder = tmp_path / "all"
    folder.mkdir()
    (folder / files.STREAM).write_text("{}")
    served = ServedQueue(StreamConfig("all", queue="log"), tmp_path, bytes(16), "spark_sink")
    with pytest.raises(StoreError, match="contains messages of topics"):
        served.open()


def test_a_stream_of_topics_in_the_folder_of_a_queue(keep: Callable[..., Any]) -> None:
    kept = keep()
    kept.close()
    (kept.stream.folder / "queue.json").write_text("{}")
    with pytest.raises(StoreError, match=r"queue\.json"):
        kept.open()


def test_a_folder_of_another_program(tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "mine").write_text("")
    served = ServedQueue(StreamConfig("all", queue="log"), tmp_path, bytes(16), "spark_sink")
    with pytest.raises(StoreError, match="mine"):
        served.open()


def test_the_queue_of_a_stream_can_change(tmp_path: Path) -> None:
    for name in ("one", "one", "two"):
        served = ServedQueue(StreamConfig("all", queue=name), tmp_path, bytes(16), "spark_sink")
        served.open()
        served.close()
        assert json.loads((tmp_path / "all" / "queue.json").read_text())["queue"] == name


def test_notes(tmp_path: Path) -> None:
    config = SparkSinkConfig(tmp_path, (StreamConfig("all", queue="log"),))
    assert SparkSinkPlugin(config, Context("spark_sink")).notes == [
        "stream all serves the queue log, which the plugin queues must have"
    ]
