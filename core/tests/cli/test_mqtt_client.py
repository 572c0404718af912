"""Test ``pub``, ``sub`` and ``rr`` against a real broker."""

import argparse
import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hookmq.cli import main
from hookmq.cli.mqtt_client import ClientEvent, opened
from hookmq.cli.options import ConnectTarget, add_connection, target_of

Captured = pytest.CaptureFixture[bytes]
pytestmark = pytest.mark.usefixtures("broker")


@pytest.fixture
def tcp(broker: Any) -> list[str]:
    found: list[str] = broker.tcp
    return found


def target(options: list[str]) -> ConnectTarget:
    return ConnectTarget(options[1], int(options[3]), 5, 60, True)


def test_over_websocket_and_by_url(broker: Any, capfdbinary: Captured) -> None:
    port = broker.ws[3]
    assert main(["pub", "-L", f"ws://127.0.0.1:{port}/web/a", "-m", "x", "-r", "-q", "1"]) == 0
    assert main(["sub", *broker.ws, "-t", "web/#", "-v", "-C", "1", "-W", "10"]) == 0
    assert capfdbinary.readouterr().out == b"web/a x\n"


@pytest.mark.parametrize("kind", ["tls", "wss"])
def test_over_tls(broker: Any, kind: str, capfdbinary: Captured) -> None:
    options = getattr(broker, kind)
    words = ["-t", f"safe/{kind}", "-q", "1"]
    assert main(["pub", *options, *words, "--cafile", broker.ca, "-m", "x", "-r"]) == 0
    assert main(["sub", *options, *words, "--insecure", "-C", "1", "-W", "10"]) == 0
    assert capfdbinary.readouterr().out == b"x\n"
    # use a separate process, because paho leaves the socket of a failed handshake to the garbage collector
    command = [sys.executable, "-m", "hookmq.cli", "pub", *options, *words, "--tls", "-m", "x"]
    done = subprocess.run(command, capture_output=True, check=False, timeout=120)
    assert done.returncode == 1
    assert b"certificate verify failed" in done.stderr


def test_a_connection_closed_without_connack_is_not_reported_as_refused(
    capfdbinary: Captured,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def hang_up() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1024)

        thread = threading.Thread(target=hang_up)
        thread.start()
        port = str(server.getsockname()[1])
        assert main(["pub", "-h", "127.0.0.1", "-p", port, "-t", "a", "-m", "x"]) == 1
        thread.join(10)
    told = capfdbinary.readouterr().err
    assert b"closed the connection without an answer to CONNECT (does it require TLS or" in told


def test_authorities_in_a_folder(
    broker: Any, tmp_path: pathlib.Path, capfdbinary: Captured
) -> None:
    shutil.copy(broker.ca, tmp_path / "ca.pem")
    words = [*broker.tls, "-t", "folder", "-m", "x", "-q", "1", "--capath", str(tmp_path)]
    subprocess.run(["openssl", "rehash", str(tmp_path)], check=True)
    assert main(["pub", *words]) == 0
    assert main(["pub", *words, "--tls-version", "tlsv1.3"]) == 0
    assert main(["pub", *words, "--ciphers", "ECDHE+AESGCM"]) == 0
    assert main(["pub", *words, "--ciphers", "nonsense"]) == 1
    assert b"TLS: " in capfdbinary.readouterr().err


@pytest.mark.parametrize("kind", ["tcp", "ws", "tls", "wss"])
def test_connection_options_apply_to_every_transport(broker: Any, kind: str) -> None:
    parser = argparse.ArgumentParser()
    add_connection(parser)
    words = [*getattr(broker, kind), "-A", "127.0.0.7", "-I", "batch-", "-M", "3", "--nodelay"]
    secure = kind in ("tls", "wss")
    target = target_of(parser.parse_args([*words, *(["--insecure"] if secure else [])]))
    assert target.client_id == f"batch-{os.getpid()}"
    with opened(target) as link:
        connection = link.client.socket()
        assert connection is not None
        with socket.socket(fileno=os.dup(connection.fileno())) as same:
            assert same.getsockname()[0] == "127.0.0.7"
            assert same.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert link.client._max_inflight_messages == 3


def test_nobody_there(capfdbinary: Captured) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = str(sock.getsockname()[1])
        assert main(["pub", "-h", "127.0.0.1", "-p", port, "-t", "a", "-m", "x"]) == 1
    assert capfdbinary.readouterr().err.startswith(
        f"hookmq: cannot connect to 127.0.0.1:{port}: ".encode()
    )
    assert main(["pub", "-t", "a", "-f", "/no/such/file"]) == 1


def test_a_unix_socket(broker: Any, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["pub", "--unix", broker.unix, "-t", "unix", "-m", "here", "-r", "-q", "1"]) == 0
    assert main(["sub", "--unix", broker.unix, "-t", "unix", "-C", "1"]) == 0
    assert capfd.readouterr().out == "here\n"
    assert main(["pub", "--unix", f"{broker.unix}.no", "-t", "a", "-m", "x"]) == 1
    assert f"cannot connect to {broker.unix}.no: No such file" in capfd.readouterr().err


@pytest.mark.parametrize("code", [0x84, 0x85, 0x86, 0x87, 0x8A, 0x8C])
def test_a_permanent_refusal_ends_the_reconnecting(
    code: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    events = [
        ClientEvent("subscribed", 1, (0,)),
        ClientEvent("lost", codes=(0x87,), reason="Not authorized"),
        ClientEvent("refused", codes=(0x88,), reason="Server unavailable"),
        ClientEvent("refused", codes=(code,), reason="No such user"),
    ]

    class Fake:
        def subscribe(self, *args: Any, **more: Any) -> list[int]:
            return [1]

        def unsubscribe(self, *args: Any) -> list[int]:
            return []

        def next(self, timeout: float | None) -> ClientEvent:
            return events.pop(0)

    @contextlib.contextmanager
    def fake(target: ConnectTarget, manual_ack: bool = False) -> Iterator[Fake]:
        yield Fake()

    monkeypatch.setattr("hookmq.cli.mqtt_client.opened", fake)
    assert main(["sub", "-t", "a"]) == 1
    assert events == []
    assert "refused the connection: No such user" in capfd.readouterr().err
