"""Test the options of ``pub``, ``sub`` and ``rr``."""

import argparse
import pathlib
import re
import shutil
import subprocess
from typing import Any

import pytest
from commands import INTRODUCTION
from hookmq.cli import command_parser, main
from hookmq.cli.options import ConnectTarget, add_connection, parse_property, target_of
from hookmq.model.errors import ConfigError


def target(*words: str, command: str = "sub") -> tuple[ConnectTarget, argparse.Namespace]:
    arguments = command_parser(command).parse(words)
    return target_of(arguments), arguments


def test_without_options_it_is_this_machine() -> None:
    found, _ = target()
    assert found == ConnectTarget("localhost", 1883, 4, 60, True)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("-h h -p 5 -u u -P p -k 7 -i me", {"host": "h", "port": 5, "username": "u", "password": "p", "keep_alive": 7,
                                             "client_id": "me"}),
        ("-V mqttv31", {"version": 3}),
        ("-V 5 -x 60", {"version": 5, "session_expiry": 60}),
        ("-V mqttv5 -x never", {"session_expiry": 0xFFFFFFFF}),
        ("-c -i me", {"clean_start": False}),
        ("--ws", {"websocket": True, "port": 8083, "path": "/mqtt"}),
        ("--ws --tls --ws-path /x", {"websocket": True, "tls": True, "port": 8084, "path": "/x"}),
        ("--insecure", {"tls": True, "insecure": True, "port": 8883}),
        ("-L mqtt://u:p%40q@h:5/a/b", {"host": "h", "port": 5, "username": "u", "password": "p@q"}),
        ("-L mqtts://h", {"host": "h", "port": 8883, "tls": True}),
        ("-L ws://[::1]/a", {"host": "::1", "websocket": True}),
        ("-L mqtt://h -u other", {"username": "other"}),
    ],
)  # fmt: skip
def test_options_set_the_address_and_the_credentials(words: str, expected: dict[str, Any]) -> None:
    found, _ = target(*words.split())
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("url", "topic"), [("mqtt://h/a/b", "a/b"), ("mqtt://h/a/%23", "a/#"), ("mqtt://h/a/#", "a/#"), ("mqtt://h", None)]
)  # fmt: skip
def test_a_url_holds_the_topic(url: str, topic: str | None) -> None:
    assert target("-L", url)[1].url_topic == topic


def test_a_will() -> None:
    found, _ = target(
        "--will-topic", "t", "--will-payload", "bye", "--will-qos", "1", "--will-retain"
    )
    assert found.will is not None
    assert (found.will.topic, found.will.payload, found.will.qos, found.will.retain) == (
        "t", b"bye", 1, True,
    )  # fmt: skip


def test_properties() -> None:
    found, _ = target(
        "-V", "5", "-D", "publish", "user-property", "a", "b", "-D", "connect", "receive-maximum", "5",
        "-D", "will", "correlation-data", "x",
    )  # fmt: skip
    assert found.properties == (
        ("publish", "UserProperty", ("a", "b")),
        ("connect", "ReceiveMaximum", 5),
        ("will", "CorrelationData", b"x"),
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("publish", "expected PACKET NAME VALUE"),
        ("publsh content-type x", "expected one of these packets: connect, publish"),
        ("publish receive-maximum 1", "publish takes content-type"),
        ("publish user-property a", "expected a name and value"),
        ("publish message-expiry-interval soon", "expected a whole number, found 'soon'"),
    ],
)
def test_wrong_properties(words: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_property(words.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-L mqtt://h -h x", "not both"),
        ("-L http://u:hunter2@h", r"-L http://h: expected mqtt, mqtts, ws, wss://"),
        ("-L mqtt://u:hunter2@h:99999", r"-L mqtt://h:99999: Port out of range"),
        ("-P x", "a password needs a user name"),
        ("--cert a", "--cert and --key go together"),
        ("--cafile /no/such", "/no/such: cannot be read"),
        ("-c", "needs a client id"),
        ("-x 5", "need -V mqttv5"),
        ("-D publish content-type x", "need -V mqttv5"),
        ("--will-payload x", "needs --will-topic"),
    ],
)
def test_contradicting_options_are_refused_without_secrets(words: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        target(*words.split())
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "words", ["-q 3", "-p 0", "-p x", "-k -1", "-W soon", "-C x", "-V mqttv4", "-x ?"]
)
def test_wrong_values_exit_with_2(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command_parser("sub").parse(words.split())
    assert caught.value.code == 2
    assert words.split()[0] in capsys.readouterr().err


def test_the_password_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getpass", lambda prompt: "typed")
    assert target("-u", "u", "-P", "-")[0].password == "typed"


def test_request_response_speaks_mqtt_5() -> None:
    assert target(command="rr")[0].version == 5


@pytest.mark.parametrize("command", ["pub", "sub", "rr"])
def test_flags_of_mosquitto_are_there_or_said_to_be_missing(command: str) -> None:
    theirs = shutil.which(f"mosquitto_{command}")
    if theirs is None:
        pytest.skip("mosquitto's clients are not installed")
    told = subprocess.run([theirs, "--help"], capture_output=True, text=True, check=False).stdout
    flags = set(re.findall(r"^ (-[A-Za-z]|--[a-z0-9-]+) ", told, re.M))
    assert {"-A", "-D", "--capath"} <= flags
    known = set(re.findall(r"--?[A-Za-z][A-Za-z0-9-]*", command_parser(command).format_help()))
    missing = set(re.findall(r"`(--?[A-Za-z0-9-]+)`", INTRODUCTION))
    assert not flags - known - missing
    assert not missing & known - {"--tls", "-R"}  # -R is an option of `sub`


Captured = pytest.CaptureFixture[bytes]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("pub -m x", "a topic is required"), ("pub -t a", "a payload is required"), ("pub -t a/# -m x", "is a filter"),
        ("sub", "a topic filter is required"), ("sub -t a -F %z", "unknown field '%z'"),
        ("rr -m x", "a topic is required"),
        ("rr -t a", "a payload is required"), ("pub -t a -m x -n", "not allowed with"),
        ("pub -t a -m x -i a -I b", "not allowed with argument"),
        ("pub -t a -m x -c -I b", "-i, not -I"),
        ("pub -t a -m x -M 0", "expected 1 to 65535"),
        ("pub -t a -m x --tls-version tlsv1.3", "need TLS"),
        ("pub -t a -m x --capath /no/such/folder", "not a folder"),
    ],
)  # fmt: skip
def test_wrong_arguments_exit_with_2(words: str, message: str, capfdbinary: Captured) -> None:
    assert main(words.split()) == 2
    assert message in capfdbinary.readouterr().err.decode()


def test_a_password_in_a_file(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
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
