"""A real broker with queues, and clients for it."""

import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from hookmq_queues_client import Backoff, Client
from lossy_network import Network
from serving import Served, serving

QUEUES = 40
EXPLICIT = 16
CONFIG = """\
version: 1
listeners:
  - {{name: tcp, bind: "127.0.0.1:0"}}
  - {{name: tls, type: tls, bind: "127.0.0.1:0", tls: {{certificate: "{folder}/server.pem"}}}}
auth: {{default: allow}}
authz: {{default: allow}}
plugins:
  - use: storage
    config: {{path: "{folder}/state"}}
  - use: queues
    config:
      path: "{folder}/queues"
      queues:
        - {{name: full, max_messages: 2}}
        - {{name: captured, bindings: ["sensors/#"], groups: [archive, alerts]}}
        - {{name: failing, delivery_limit: 2, dead_letter: failed}}
        - {{name: failed}}
        - {{name: once, dedupe_window: 5m}}
        - {{name: history, type: stream, groups_on_first_use: true}}
        - {{name: urgent, order: priority}}
"""
SOON = Backoff(0.01, 1.0, 0.01)
"""A backoff that reconnects at once."""


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create the broker's files, and the certificate authority that clients trust."""
    folder = tmp_path_factory.mktemp("broker")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    authority.issue_cert("localhost", "127.0.0.1").private_key_and_cert_chain_pem.write_to_path(
        folder / "server.pem"
    )
    return folder


@pytest.fixture(scope="session")
def broker(folder: Path) -> Iterator[Served]:
    """Run a broker for all tests of a process. It must exit with code 0 and must not log errors."""
    more = "".join(f"        - {{name: q{number}}}\n" for number in range(QUEUES))
    for number in range(EXPLICIT):
        more += (
            f"        - {{name: dead{number}}}\n"
            f"        - {{name: e{number}, groups: [{{name: workers, settle: explicit}}], visibility_timeout: 2s,\n"
            f"           delivery_limit: 4, dead_letter: dead{number}}}\n"
        )
    (folder / "hookmq.yaml").write_text(CONFIG.format(folder=folder) + more)
    with serving("-c", str(folder / "hookmq.yaml")) as served:
        yield served


@pytest.fixture(scope="session")
def names() -> Iterator[str]:
    """Return the names of queues that no test has used yet."""
    return (f"q{number}" for number in range(QUEUES))


@pytest.fixture
def name(names: Iterator[str]) -> str:
    """Return the name of a queue that no other test uses."""
    return next(names)


@pytest.fixture(scope="session")
def numbers() -> Iterator[int]:
    """Return the numbers of explicit queues that no test has used yet."""
    return iter(range(EXPLICIT))


@pytest.fixture
def explicit(numbers: Iterator[int]) -> str:
    """Return the name of a queue with explicit settlement. Its dead letters are in ``dead`` with the same number."""
    return f"e{next(numbers)}"


@pytest.fixture
def url(broker: Served) -> str:
    """Return the broker's URL."""
    return f"mqtt://127.0.0.1:{broker.ports['tcp']}"


@pytest.fixture
def trust(folder: Path) -> ssl.SSLContext:
    """Return a TLS context that trusts the broker's certificate authority."""
    return ssl.create_default_context(cafile=str(folder / "ca.pem"))


@pytest.fixture
async def connect(url: str) -> AsyncIterator[Callable[..., Client]]:
    """Return a function that creates clients for the broker. They are closed after the test."""
    async with contextlib.AsyncExitStack() as stack:
        made: list[Client] = []

        def make(url: str = url, **options: Any) -> Client:
            made.append(Client(url, **{"reconnect": SOON, **options}))
            return made[-1]

        yield make
        for client in made:
            await stack.enter_async_context(client)


@pytest.fixture
async def network(broker: Served) -> AsyncIterator[Network]:
    """Return a network between clients and the broker."""
    network = Network(broker.ports["tcp"])
    await network.open()
    yield network
    await network.close()
