"""The engine on one real server: it passes the engines' contract."""

from collections.abc import Iterator
from itertools import count

import pytest
from engine_contract import EngineContract
from nats_bench import NatsBench
from nats_server import NatsCluster

_number = count()


@pytest.fixture(scope="module")
def server() -> Iterator[NatsCluster]:
    """Return a running server."""
    cluster = NatsCluster(1)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def bench(server: NatsCluster) -> Iterator[NatsBench]:
    """Return engines on a new stream of the server."""
    bench = NatsBench(server.urls, f"c{next(_number)}", 1)
    yield bench
    bench.close()


class TestContract(EngineContract):
    """The contract."""
