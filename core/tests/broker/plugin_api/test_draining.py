"""Test how plugins drain the broker."""

from typing import Any

import pytest
from hookmq.plugin import DrainRequest, DrainStatus, PluginError
from hookmq_testing import Harness, HookRecorder


class Drains:
    """A stand-in for a server that can be drained."""

    def __init__(self) -> None:
        self.begun: list[DrainRequest] = []

    def begin(self, request: DrainRequest) -> None:
        if self.begun:
            raise RuntimeError("the broker is draining")
        self.begun.append(request)

    def cancel(self) -> bool:
        begun, self.begun = self.begun, []
        return bool(begun)

    def status(self) -> DrainStatus:
        return DrainStatus(bool(self.begun), 1, 2)


def test_a_drain_is_begun_reported_and_cancelled(broker_harness: Any) -> None:
    harness: Harness = broker_harness(plugins=[HookRecorder("on_event", id="p")])
    broker: Any = harness.handle("p")
    for call in (broker.drain_status, broker.cancel_drain, lambda: broker.drain(DrainRequest())):
        with pytest.raises(PluginError, match="this broker has no listeners"):
            call()
    server = harness.broker.drainer = Drains()
    with pytest.raises(PluginError, match="request is str, not DrainRequest"):
        broker.drain("now")
    assert not broker.cancel_drain()
    broker.drain(DrainRequest(reference="b:1"))
    assert server.begun == [DrainRequest(reference="b:1")]
    with pytest.raises(PluginError, match="cannot drain: the broker is draining"):
        broker.drain(DrainRequest())
    assert broker.drain_status() == DrainStatus(True, 1, 2)
    assert broker.cancel_drain()
    found = [(event, fields) for _, event, fields in harness.logs if event.startswith("broker.")]
    common = {"plugin": "p", "client_id": None}
    assert found == [
        ("broker.drain_started", {**common, "seconds": 10.0, "reference": "b:1", "connections": 2}),
        ("broker.drain_cancelled", common),
    ]
