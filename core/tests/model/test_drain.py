"""Test drain requests."""

from typing import Any

import pytest
from hookmq.model.drain import DrainRequest
from hookmq.mqtt.reason_codes import ReasonCode


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"seconds": -1}, "seconds is -1"), ({"seconds": 3601}, "at most 3600"),
        ({"reference": "x" * 1025}, "at most 1024 characters"), ({"reference": "a\n"}, "control characters"),
    ],
)  # fmt: skip
def test_limits(given: Any, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        DrainRequest(**given)


def test_codes() -> None:
    assert DrainRequest().code("") is ReasonCode.SERVER_SHUTTING_DOWN
    assert DrainRequest().code("b") is ReasonCode.USE_ANOTHER_SERVER
    assert DrainRequest(moved=True).code("b") is ReasonCode.SERVER_MOVED
