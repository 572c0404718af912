"""Test the arguments of `deliveries`. The deliveries themselves are tested in `broker/test_direct_deliveries.py`."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.model.message import Message
from hookmq.plugin import PluginError
from hookmq_testing import Harness, HookRecorder


def test_arguments_are_checked(broker_harness: Callable[..., Harness]) -> None:
    harness = broker_harness(plugins=[HookRecorder(id="p")])
    broker: Any = harness.handle("p")
    direct = broker.deliveries(lambda ended: None)
    good = Message("jobs", b"", 1)
    for arguments, why in (
        ((1, "jobs", good, None), "client_id is int, not str"),
        (("c", None, good, None), "filter is NoneType, not str"),
        (("c", "jobs", "text", None), "message is str, not Message"),
        (("c", "jobs", Message("jobs/#", b""), None), "cannot deliver: "),
    ):
        with pytest.raises(PluginError, match=why):
            direct.send(*arguments)
    assert not direct.send("c", "jobs", good, None)
