"""Test how a plugin starts a trace."""

from typing import Any

import pytest
from hookmq.plugin import PluginError, TraceRequest
from hookmq_testing import Harness, HookRecorder


def test_only_a_request_is_accepted(broker_harness: Any) -> None:
    harness: Harness = broker_harness(plugins=[HookRecorder("on_publish", id="p")])
    broker: Any = harness.handle("p")
    with pytest.raises(PluginError, match="request is str, not TraceRequest"):
        broker.trace("a")
    trace = broker.trace(TraceRequest(client_id="a", seconds=5))
    assert (trace.request.seconds, trace.ended, trace.skipped) == (5, "", 0)
    trace.stop()
    assert trace.ended == "stopped"
