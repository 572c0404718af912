"""Test which extensions plugins may add to a server, and which are refused."""

from typing import Any

import pytest
from hookmq.hooks.manager import Hooks
from hookmq.model.errors import PluginError
from hookmq.plugin import Context, Plugin, hookimpl
from hookmq.server.extensions import PluginExtensions
from http_nodes import Ask, Begin, http


async def test_a_metric_that_cannot_be_read_is_logged_once(
    begin: Begin, ask: Ask, log: Any
) -> None:
    class Bad(Plugin):
        @hookimpl
        def register_metrics(self, registry: Any) -> None:
            registry.gauge("bad", "Bad.", lambda: [][0])

    node = await begin((Bad(None, Context("bad")),), http())
    for _ in range(2):
        assert (await ask(node, "/metrics")).status == 200
    unreadable = [fields for _, event, fields in log.records if event == "metrics.unreadable"]
    causes = [fields.pop("traceback") for fields in unreadable]
    assert [type(cause) for cause in causes] == [IndexError]
    assert unreadable == [
        {
            "family": "hookmq_bad",
            "plugin": "bad",
            "error": "IndexError('list index out of range')",
        }
    ]


def test_a_metric_that_the_core_has_is_the_plugins_error() -> None:
    class Takes(Plugin):
        @hookimpl
        def register_metrics(self, registry: Any) -> None:
            registry.gauge("sessions", "Mine.", lambda: 1)

    with pytest.raises(PluginError, match=r"'p': register_metrics failed: .*already exists"):
        PluginExtensions(Hooks.of(Takes(None, Context("p"))))
