"""Test the limits on a trace request."""

from typing import Any

import pytest
from hookmq.hooks.traces import TraceRequest


@pytest.mark.parametrize(
    "wrong",
    [
        {}, {"client_id": "a", "seconds": 0}, {"client_id": "a", "seconds": 3601.0},
        {"client_id": "a", "seconds": float("nan")}, {"filter": "#", "rate": 0}, {"filter": "#", "rate": 10_001},
    ],
)  # fmt: skip
def test_values_outside_the_limits_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"required|expected"):
        TraceRequest(**wrong)


def test_what_selects_clients() -> None:
    assert TraceRequest(address="10.").selects_clients
    assert not TraceRequest(filter="a/#", plugin="acl").selects_clients
