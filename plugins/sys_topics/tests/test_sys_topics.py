"""Test the statistics below $SYS: values, intervals and load averages. Also test with a real client."""

from collections.abc import Callable
from math import exp
from pathlib import Path
from typing import Any

import pytest
from hookmq_sys_topics.load import LoadAverage
from hookmq_sys_topics.plugin import PREFIX, SysTopicsPlugin
from hookmq_sys_topics.values import Values, counter_topic, number
from hookmq_testing import DurableStore, Harness, MemoryClient, make_plugin
from hookmq_testing.contracts import PluginContract
from recording import V5, Client
from serving import serving

Make = Callable[..., Harness]


class TestContract(PluginContract):
    kind = SysTopicsPlugin
    use = "sys_topics"
    configs = ({}, {"interval": "1s"})
    bad_configs = ({"interval": "0s"}, {"interval": "-1s"}, {"x": 1})


@pytest.fixture
def make(broker_harness: Callable[..., Harness]) -> Make:
    def build(store: DurableStore | None = None, **config: Any) -> Harness:
        return broker_harness([make_plugin(SysTopicsPlugin, config, "sys")], store=store)

    return build


class Reader:
    """A client that subscribes and reads what was published below $SYS since the last read."""

    def __init__(self, client: MemoryClient, filter: str) -> None:
        self._client = client
        self._read = 0
        client.subscribe(filter)

    def values(self) -> dict[str, str]:
        """Return the text of each topic."""
        found = self._client.messages[self._read :]
        self._read += len(found)
        return {one.topic.removeprefix(PREFIX): one.payload.decode() for one in found}


@pytest.mark.parametrize(("levels", "published"), [(1, False), (2, True), (5, True), (6, True)])
def test_topics_with_more_levels_than_allowed_are_left_out(levels: int, published: bool) -> None:
    """Topics with too many levels are left out. The plugin used to fail at startup with a limit of five levels."""
    plugin = make_plugin(SysTopicsPlugin, {}, "sys")
    settings: dict[str, Any] = {
        "broker": {"max_topic_levels": levels},
        "auth": {"default": "allow"},
    }
    with Harness([plugin], config=settings) as harness:
        client = harness.connect("c", keep_alive=0)
        client.subscribe("$SYS/#")
        harness.advance(30)
        topics = [one.topic for one in client.messages]
        assert (f"{PREFIX}version" in topics) == published
        assert {topic.count("/") for topic in topics} <= set(range(levels + 1))
        logged = harness.logged("sys_topics.left_out")
        assert len(logged) == (levels < 6), "once, if any topic is left out"
        for entry in logged:
            assert (entry["setting"], entry["needed"]) == ("broker.max_topic_levels", 6)


def test_a_new_subscriber_gets_all_values(make: Make) -> None:
    harness = make()
    client = harness.connect("c", keep_alive=0)
    harness.advance(10)
    found = Reader(client, "$SYS/#").values()
    assert found["version"].startswith("hookmq version ")
    assert found["uptime"] == "10 seconds"
    assert found["clients/connected"] == found["clients/total"] == "1"
    assert found["hookmq/sessions_created_total"] == "1"
    assert len(found) > 50


def test_only_changes_are_published(make: Make) -> None:
    harness = make(interval="5s")
    reader = Reader(harness.connect("c", keep_alive=0), "$SYS/broker/clients/#")
    harness.advance(5)
    assert reader.values()["clients/connected"] == "1"
    harness.advance(50)
    assert reader.values() == {}
    harness.connect("d", keep_alive=0)
    harness.advance(5)
    changed = {"clients/total": "2", "clients/connected": "2", "clients/maximum": "2"}
    assert reader.values() == changed


def test_nobody_else_publishes_there(make: Make) -> None:
    client = make().connect("c")
    client.publish("$SYS/broker/uptime", b"forged", 1, expect=0x87)


def test_nothing_is_written_to_the_store(make: Make) -> None:
    store = DurableStore()
    harness = make(store)
    harness.advance(60)
    assert len(harness.handle("sys").retained("$SYS/#", limit=1000).items) > 50
    harness.restart()
    assert not harness.handle("sys").retained("$SYS/#", limit=1000).items


def test_a_load_average_decays() -> None:
    average = LoadAverage()
    average.update(60, 60)
    assert average.rates == pytest.approx([60 * (1 - exp(-1 / m)) for m in (1, 5, 15)])
    average.update(60, 60)
    assert average.rates[0] == pytest.approx(60 * (1 - exp(-1)) * exp(-1))
    before = list(average.rates)
    average.update(60, 0)
    assert average.rates == before


def test_labelled_counters_are_added_up() -> None:
    counters = {
        'messages_dropped_total{direction="out",reason="queue_full"}': 2.0,
        'messages_dropped_total{direction="in",reason="denied"}': 3.0,
    }
    found = dict(Values(0.0).update(counters, 1.0))
    assert found["publish/messages/dropped"] == "5"
    assert found["hookmq/messages_dropped_total/out/queue_full"] == "2"


@pytest.mark.parametrize(
    ("name", "topic"),
    [
        ("sessions", "sessions"),
        ('x{a="b",c="d/e"}', "x/b/d_e"),
        ('x{a=""}', "x/_"),
        ('x{a="+\\"#"}', 'x/_\\"_'),
    ],
)
def test_a_counter_becomes_a_valid_topic(name: str, topic: str) -> None:
    assert counter_topic(name) == topic


@pytest.mark.parametrize(("value", "text"), [(3.0, "3"), (0.25, "0.25"), (1e-9, "0")])
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


def test_a_broker_process_with_a_real_client(tmp_path: Path) -> None:
    config = tmp_path / "hookmq.yaml"
    config.write_text(
        "version: 1\n"
        'listeners: [{name: tcp, type: tcp, bind: "127.0.0.1:0"}]\n'
        "auth: {default: allow}\n"
        "authz: {default: allow}\n"
        "plugins: [{use: sys_topics, config: {interval: 1s}}]\n"
    )
    with (
        serving("-c", str(config)) as served,
        Client(served.ports["tcp"], "c", V5) as client,
    ):
        assert client.subscribe("$SYS/broker/version", 0) == 0
        assert bytes(client.message().payload).startswith(b"hookmq version ")
