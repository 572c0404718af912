"""``pub``, ``sub`` and ``rr`` against a real broker."""

import argparse
import contextlib
import io
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import threading
import tty
from collections.abc import Iterator
from typing import Any

import pytest
from hookmq.cli import main
from hookmq.cli.link import Event, Link, opened
from hookmq.cli.options import Target, add_connection, target_of
from hookmq.errors import ConfigError

Captured = pytest.CaptureFixture[bytes]
pytestmark = pytest.mark.usefixtures("broker")


@pytest.fixture
def tcp(broker: Any) -> list[str]:
    found: list[str] = broker.tcp
    return found


def target(options: list[str]) -> Target:
    return Target(options[1], int(options[3]), 5, 60, True)


class Subscriber:
    """`hookmq sub` in a thread, known to be subscribed; its output is read through `capfdbinary`."""

    def __init__(self, words: list[str]) -> None:
        self.code: int | None = None
        self._thread = threading.Thread(target=self._run, args=(words,))

    def _run(self, words: list[str]) -> None:
        self.code = main(words)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> int | None:
        self._thread.join(10)
        return self.code


def retain(tcp: list[str], topic: str, text: str, *words: str) -> None:
    assert main(["pub", *tcp, "-t", topic, "-m", text, "-r", "-q", "1", *words]) == 0


@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_what_is_published_is_received(
    tcp: list[str], version: str, qos: str, capfdbinary: Captured
) -> None:
    topic = f"round/{version}/{qos}"
    assert main(["pub", *tcp, "-V", version, "-q", qos, "-t", topic, "-m", "x", "-r"]) == 0
    words = ["sub", *tcp, "-V", version, "-q", qos, "-t", topic, "-C", "1", "-W", "10s"]
    assert main([*words, "-F", "%t %p %q %r"]) == 0
    assert capfdbinary.readouterr().out == f"{topic} x {qos} 1\n".encode()


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
    # in a process of its own, for paho leaves the socket of a failed handshake to the garbage collector
    command = [sys.executable, "-m", "hookmq.cli", "pub", *options, *words, "--tls", "-m", "x"]
    done = subprocess.run(command, capture_output=True, check=False, timeout=120)
    assert done.returncode == 1
    assert b"certificate verify failed" in done.stderr


def test_lines_files_and_nothing(
    tcp: list[str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: Captured
) -> None:
    class Stdin:
        buffer = io.BytesIO(b"one\r\ntwo\nthree")

    (tmp_path / "file").write_bytes(b"\x00\xff")
    with_session = ["-i", "keeper", "-c", "-q", "1"]
    assert main(["sub", *tcp, *with_session, "-t", "src/#", "-E"]) == 0
    monkeypatch.setattr("sys.stdin", Stdin())
    assert main(["pub", *tcp, "-q", "1", "-t", "src/line", "-l"]) == 0
    Stdin.buffer = io.BytesIO(b"all\nof it")
    assert main(["pub", *tcp, "-q", "1", "-t", "src/stdin", "-s"]) == 0
    assert main(["pub", *tcp, "-q", "1", "-t", "src/file", "-f", str(tmp_path / "file")]) == 0
    assert main(["pub", *tcp, "-q", "1", "-t", "src/null", "-n"]) == 0
    assert main(["pub", *tcp, "-q", "1", "-t", "src/twice", "-m", "x", "--repeat", "2"]) == 0
    capfdbinary.readouterr()
    words = ["sub", *tcp, *with_session, "-t", "src/#", "-C", "8", "-W", "10s", "-F", "%t=%x"]
    assert main(words) == 0
    assert capfdbinary.readouterr().out.splitlines() == [
        b"src/line=" + b"one".hex().encode(),
        b"src/line=" + b"two".hex().encode(),
        b"src/line=" + b"three".hex().encode(),
        b"src/stdin=" + b"all\nof it".hex().encode(),
        b"src/file=00ff",
        b"src/null=",
        b"src/twice=78",
        b"src/twice=78",
    ]
    assert main(["sub", *tcp, *with_session, "-U", "src/#"]) == 0


def test_what_is_printed_can_be_narrowed(tcp: list[str], capfdbinary: Captured) -> None:
    for name in ("a", "b", "c"):
        retain(tcp, f"narrow/{name}", name)
    words = ["sub", *tcp, "-t", "narrow/#", "-T", "narrow/b", "-N", "-C", "2", "-W", "10"]
    assert main(words) == 0
    assert sorted(capfdbinary.readouterr().out) == sorted(b"ac")
    assert main(["sub", *tcp, "-t", "narrow/#", "-R", "-W", "0.2s"]) == 27
    assert main(["sub", *tcp, "-t", "narrow/#", "-R", "-W", "0.2s", "-V", "5"]) == 27
    assert capfdbinary.readouterr().out == b""


def test_retained_messages_alone(tcp: list[str], capfdbinary: Captured) -> None:
    retain(tcp, "only/kept", "kept")
    link = Link(target(tcp))
    link.open()
    words = ["sub", *tcp, "-t", "only/#", "--retained-only", "-W", "10s"]
    sub = Subscriber(words)
    sub.start()
    out = b""
    while b"kept" not in out:
        out += capfdbinary.readouterr().out
    link.publish("only/live", b"live", 1)
    assert sub.join() == 0
    link.close()
    assert (out + capfdbinary.readouterr().out) == b"kept\n"


def test_properties_travel(tcp: list[str], capfdbinary: Captured) -> None:
    retain(tcp, "prop/a", "x", "-V", "5", "-D", "publish", "user-property", "k", "v",
           "-D", "publish", "content-type", "text/plain")  # fmt: skip
    words = ["sub", *tcp, "-V", "5", "-t", "prop/#", "-C", "1", "-W", "10", "-F", "json"]
    assert main([*words, "-D", "subscribe", "subscription-identifier", "12"]) == 0
    record = json.loads(capfdbinary.readouterr().out)
    assert record["properties"] == {
        "content-type": "text/plain",
        "user-properties": [["k", "v"]],
        "subscription-identifier": [12],
    }


def test_a_request_gets_its_response(tcp: list[str], capfdbinary: Captured) -> None:
    server = Link(target(tcp))
    server.open()
    server.subscribe(["svc"], 1)
    assert (event := server.next(10)) is not None
    assert event.kind == "subscribed"

    def answer() -> None:
        while (event := server.next(10)) is not None:
            if event.message is not None:
                asked: Any = event.message.properties
                from paho.mqtt.packettypes import PacketTypes
                from paho.mqtt.properties import Properties

                reply = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
                reply.CorrelationData = b"of another"
                server.publish(asked.ResponseTopic, b"not yours", 1, properties=reply)
                reply.CorrelationData = asked.CorrelationData
                server.publish(
                    asked.ResponseTopic, event.message.payload.upper(), 1, properties=reply
                )
                return

    thread = threading.Thread(target=answer)
    thread.start()
    assert main(["rr", *tcp, "-t", "svc", "-m", "hello", "-q", "1", "-W", "10s"]) == 0
    thread.join(10)
    server.close()
    assert capfdbinary.readouterr().out == b"HELLO\n"
    assert main(["rr", *tcp, "-t", "nobody", "-e", "reply", "-n", "-W", "0.2"]) == 27


def test_who_hangs_up_without_an_answer_has_refused_nothing(capfdbinary: Captured) -> None:
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
    assert b"closed the connection without an answer to CONNECT (does it want TLS or" in told


def test_what_is_refused_is_told(tcp: list[str], capfdbinary: Captured) -> None:
    def told(code: int, *words: str) -> str:
        assert main([words[0], *tcp, *words[1:]]) == code
        return capfdbinary.readouterr().err.decode()

    assert "refused: Not authorized (not here)" in told(
        1, "pub", "-V", "5", "-q", "1", "-t", "no/a", "-m", "x"
    )
    assert "the subscription was refused: not authorized (0x87) (not here)" in told(
        1, "sub", "-V", "5", "-t", "no/a"
    )
    assert "(0x80)" in told(1, "sub", "-t", "no/a")
    assert "refused the connection: Not authorized" in told(
        1, "pub", "-u", "bad", "-t", "a", "-m", "x"
    )
    assert "the subscription to 'no/a' was refused" in told(
        1, "rr", "-t", "a", "-e", "no/a", "-m", "x"
    )
    assert told(1, "sub", "-V", "5", "-t", "no/a", "--quiet") == ""


def test_debug_tells_the_packets_on_stderr(tcp: list[str], capfdbinary: Captured) -> None:
    assert main(["pub", *tcp, "-d", "-t", "a", "-m", "hunter2"]) == 0
    err = capfdbinary.readouterr().err
    assert b"Sending CONNECT" in err
    assert b"hunter2" not in err


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
def test_how_it_connects(broker: Any, kind: str) -> None:
    parser = argparse.ArgumentParser(add_help=False)
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("pub -m x", "which topic?"), ("pub -t a", "which message?"), ("pub -t a/# -m x", "is a filter"),
        ("sub", "which topics?"), ("sub -t a -F %z", "unknown field '%z'"), ("rr -m x", "which topic?"),
        ("rr -t a", "which message?"), ("pub -t a -m x -n", "not allowed with"),
        ("pub -t a -m x -i a -I b", "not allowed with argument"),
        ("pub -t a -m x -c -I b", "-i, not -I"),
        ("pub -t a -m x -M 0", "expected 1 to 65535"),
        ("pub -t a -m x --tls-version tlsv1.3", "need TLS"),
        ("pub -t a -m x --capath /no/such/folder", "is no folder"),
    ],
)  # fmt: skip
def test_wrong_arguments_exit_with_2(words: str, message: str, capfdbinary: Captured) -> None:
    assert main(words.split()) == 2
    assert message in capfdbinary.readouterr().err.decode()


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


def test_a_password_in_a_file(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser(add_help=False)
    add_connection(parser)
    path = tmp_path / "password"
    path.write_text("a token\r\nmore\n")

    def asked(*words: str) -> str | None:
        return target_of(parser.parse_args(["-u", "ann", *words])).password

    assert asked("--password-file", str(path)) == "a token"
    path.write_text("-")
    assert asked("--password-file", str(path)) == "-", "it is a password, and nothing is asked"
    for text, says in (("", "expected a password"), (None, "No such file")):
        path.unlink() if text is None else path.write_text(text)
        with pytest.raises(ConfigError, match=says):
            asked("--password-file", str(path))
    with pytest.raises(ConfigError, match="not both"):
        asked("--password-file", str(path), "-P", "x")


@pytest.mark.parametrize("code", [0x84, 0x85, 0x86, 0x87, 0x8A, 0x8C])
def test_who_is_refused_for_good_does_not_try_for_ever(
    code: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    events = [
        Event("subscribed", 1, (0,)),
        Event("lost", codes=(0x87,), reason="Not authorized"),
        Event("refused", codes=(0x88,), reason="Server unavailable"),
        Event("refused", codes=(code,), reason="No such user"),
    ]

    class Fake:
        def subscribe(self, *args: Any, **more: Any) -> list[int]:
            return [1]

        def unsubscribe(self, *args: Any) -> list[int]:
            return []

        def next(self, timeout: float | None) -> Event:
            return events.pop(0)

    @contextlib.contextmanager
    def fake(target: Target) -> Iterator[Fake]:
        yield Fake()

    monkeypatch.setattr("hookmq.cli.link.opened", fake)
    assert main(["sub", "-t", "a"]) == 1
    assert events == []
    assert "refused the connection: No such user" in capfd.readouterr().err


def on_a_terminal(words: list[str]) -> bytes:
    """What a command of ours writes to a terminal."""
    leader, follower = os.openpty()
    try:
        tty.setraw(follower)  # line ends come as they were written
        command = [sys.executable, "-m", "hookmq.cli", *words]
        code = subprocess.call(command, stdout=follower, timeout=60)
        assert code == 0
        return os.read(leader, 65536)
    finally:
        os.close(leader)
        os.close(follower)


def test_a_payload_does_not_drive_the_terminal(tcp: list[str], capfdbinary: Captured) -> None:
    payload = "\x1b]0;mine\x07\x9b2J"
    retain(tcp, "terminal/\u202e", payload)
    words = ["sub", *tcp, "-t", "terminal/#", "-v", "-C", "1", "-W", "10s"]
    assert on_a_terminal(words) == rb"terminal/\u202e \x1b]0;mine\x07\x9b2J" + b"\n"
    capfdbinary.readouterr()
    assert main(words) == 0  # into a file or a pipe it goes as it is
    assert capfdbinary.readouterr().out == f"terminal/\u202e {payload}\n".encode()
