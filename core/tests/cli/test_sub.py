"""Test the command 'hookmq sub': its output to pipes and terminals."""

import json
import os
import subprocess
import sys
import threading
import tty
from typing import Any

import pytest
from hookmq.cli import main
from hookmq.cli.mqtt_client import MqttClient
from hookmq.cli.options import ConnectTarget

Captured = pytest.CaptureFixture[bytes]


@pytest.fixture
def tcp(broker: Any) -> list[str]:
    found: list[str] = broker.tcp
    return found


def target(options: list[str]) -> ConnectTarget:
    return ConnectTarget(options[1], int(options[3]), 5, 60, True)


class Subscriber:
    """Runs `hookmq sub` in a thread. Its output is read through `capfdbinary`."""

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


def test_options_narrow_what_sub_prints(tcp: list[str], capfdbinary: Captured) -> None:
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
    link = MqttClient(target(tcp))
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


def test_a_message_that_was_not_printed_stays_in_the_session(
    tcp: list[str], capfdbinary: Captured
) -> None:
    words = ["sub", *tcp, "-i", "stays", "-c", "-q", "1", "-t", "stays/+"]
    assert main([*words, "-E"]) == 0
    for text in ("1", "2", "3"):
        assert main(["pub", *tcp, "-t", "stays/a", "-m", text, "-q", "1"]) == 0
    for line in (b"1\n", b"2\n", b"3\n"):
        assert main([*words, "-C", "1", "-W", "10"]) == 0
        assert capfdbinary.readouterr().out == line


def test_an_ended_connection_acknowledges_nothing(tcp: list[str]) -> None:
    link = MqttClient(target(tcp), manual_ack=True)
    link.open()
    link.subscribe(["ended"], 1)
    link.publish("ended", b"x", 1)
    event = link.next(10)
    while event is not None and event.kind != "message":
        event = link.next(10)
    assert event is not None
    sent: list[int] = []
    link.client.ack = lambda mid, qos: sent.append(mid)  # type: ignore[method-assign, assignment, return-value]
    link.close()
    link.acknowledge(event)
    assert sent == []


def on_a_terminal(words: list[str]) -> bytes:
    """Return what a command writes to a terminal."""
    leader, follower = os.openpty()
    try:
        tty.setraw(follower)  # keep line ends as they were written
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
    assert main(words) == 0  # output to a file or pipe is not escaped
    assert capfdbinary.readouterr().out == f"terminal/\u202e {payload}\n".encode()
