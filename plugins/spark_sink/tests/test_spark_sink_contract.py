"""Test the plugin contract, in an in-memory broker. Each plugin object has its own folder, because
two cannot share one.
"""

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hookmq_spark_sink.config import StreamConfig
from hookmq_spark_sink.plugin import SparkSinkPlugin
from hookmq_testing import PluginInstance
from hookmq_testing.contracts import PluginContract

STREAM = StreamConfig("all", ("#",))


class TestSparkSink(PluginContract):
    """The contract without the read API, because a virtual event loop has no processes."""

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
