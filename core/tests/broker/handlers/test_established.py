"""Test which attributes a connection has at each stage, and the error that a handler raises if it runs too early."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.broker.handlers.established import client_of, connect_of, session_of
from hookmq_testing import Harness

Make = Callable[..., Harness]


@pytest.mark.parametrize("find", [client_of, connect_of, session_of])
def test_before_connect_there_is_nothing(
    broker_harness: Make, find: Callable[[Any], object]
) -> None:
    harness = broker_harness()
    harness.open()
    connection = next(iter(harness.broker.connections))
    with pytest.raises(RuntimeError, match=r"CONNECT|open"):
        find(connection)


def test_an_open_connection_has_all_three(broker_harness: Make) -> None:
    harness = broker_harness()
    harness.connect("c", username="u", password=b"secret")
    connection = next(iter(harness.broker.connections))
    assert client_of(connection).client_id == "c"
    assert session_of(connection) is harness.broker.sessions["c"]
    assert connect_of(connection).password is None
