"""Test the plugin contract in an in-memory broker. Each plugin object has its own folder, because two objects cannot
share one.
"""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hookmq.plugin import BrokerHandle, Context, Plugin, hookimpl
from hookmq_spark_sink.config import StreamConfig
from hookmq_spark_sink.plugin import SparkSinkPlugin
from hookmq_testing import Harness, PluginInstance, make_plugin
from hookmq_testing.contracts import PluginContract

STREAM = StreamConfig("all", ("#",))


class TestSparkSink(PluginContract):
    """Runs the plugin contract without the read API, because a virtual event loop cannot start processes."""

    kind = SparkSinkPlugin
    use = "spark_sink"
    configs = (
        {"streams": (STREAM,)},
        {
            "streams": (StreamConfig("a", ("#",), partitions=3), StreamConfig("b", ("a/+",))),
            "sync": False,
        },
    )
    bad_configs = ({}, {"streams": ()}, {"streams": (STREAM,), "unknown": 1})

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folders = (tmp_path / str(number) for number in itertools.count())

    def instance(self, config: Mapping[str, Any], id: str = "") -> PluginInstance:
        return super().instance({"path": str(next(self.folders)), **config}, id)


class Late(Plugin):
    """A plugin that publishes when it ends, after the streams have been closed."""

    @hookimpl
    def on_shutdown(self, broker: BrokerHandle) -> None:
        broker.publish("a", b"late", 1)


def test_a_message_after_the_end_of_the_stream_does_not_fail_the_store(tmp_path: Path) -> None:
    sink = make_plugin(SparkSinkPlugin, {"path": str(tmp_path), "streams": (STREAM,)})
    with Harness([Late(None, Context("late")), sink]) as harness:
        harness.connect("c").publish("a", b"x", qos=1, expect=0)
    assert not harness.logged("store.failed")
