"""Which NATS servers sync each commit to disk, as their monitoring shows it."""

import asyncio
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from hookmq.plugin import ConfigError
from hookmq_cluster.config import ClusterConfig
from hookmq_cluster.engine_errors import EngineError
from hookmq_cluster.nats_sync import check_sync
from nats_server import NatsServer
from ports import free_port


def logged(*addresses: str) -> list[str]:
    """Check servers, and return the reasons that are logged."""
    reasons: list[str] = []

    def log(level: str, event: str, /, **fields: Any) -> None:
        assert (level, event) == ("warning", "cluster.sync_unknown")
        assert fields["address"] in addresses
        reasons.append(fields["reason"])

    asyncio.run(check_sync(addresses, log))
    return reasons


def watched(more: str = "") -> tuple[NatsServer, str]:
    """Start a server, and return it with the address of its monitoring."""
    address = f"127.0.0.1:{free_port()}"
    server = NatsServer(f'http: "{address}"\n{more}')
    while True:
        try:
            urlopen(f"http://{address}/healthz", timeout=60).close()
            return server, f"http://{address}"
        except URLError:
            continue


@pytest.fixture
def site() -> Iterator[tuple[str, list[bytes]]]:
    """Return the address of a site, and the list with the one answer that it gives."""
    answers = [b"{}"]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answers[0])

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", answers
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_server_that_syncs_always_is_accepted() -> None:
    server, address = watched()
    try:
        assert logged(address, f"{address}/") == []
    finally:
        server.close()


def test_a_server_that_syncs_lazily_is_refused(tmp_path: Path) -> None:
    server, address = watched(f'jetstream {{ store_dir: "{tmp_path}", sync_interval: "2m" }}')
    try:
        with pytest.raises(EngineError, match=f"sync: the NATS server at {address} does not sync"):
            logged(address)
    finally:
        server.close()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"{}", "does not show sync_interval"),
        (b"[]", "does not show sync_interval"),
        (b'{"config": {"max_memory": 1}}', "does not show sync_interval"),
        (b"<html>", "Expecting value"),
    ],
)
def test_other_answers_are_logged(
    site: tuple[str, list[bytes]], answer: bytes, reason: str
) -> None:
    address, answers = site
    answers[0] = answer
    [found] = logged(address)
    assert reason in found


def test_a_server_that_does_not_answer_is_logged() -> None:
    [reason] = logged(f"http://127.0.0.1:{free_port()}")
    assert "refused" in reason


@pytest.mark.parametrize("address", ["ftp://127.0.0.1", "127.0.0.1:8222", "file:///etc/passwd"])
def test_only_http_addresses_are_read(address: str) -> None:
    with pytest.raises(ConfigError, match="monitoring: expected http:// or https://"):
        ClusterConfig(monitoring=(address,))


def test_one_copy_is_allowed_if_the_configuration_says_so() -> None:
    assert ClusterConfig().replicas == 3
    assert ClusterConfig(replicas=1).replicas == 1
    with pytest.raises(ConfigError, match="replicas: 2 is not one of 1, 3, 5"):
        ClusterConfig(replicas=2)
