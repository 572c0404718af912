"""Test the command 'hookmq pub' with every kind of payload."""

import io
import pathlib
from typing import Any

import pytest
from hookmq.cli import main

Captured = pytest.CaptureFixture[bytes]


@pytest.fixture
def tcp(broker: Any) -> list[str]:
    found: list[str] = broker.tcp
    return found


@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_sub_prints_what_pub_published(
    tcp: list[str], version: str, qos: str, capfdbinary: Captured
) -> None:
    topic = f"round/{version}/{qos}"
    assert main(["pub", *tcp, "-V", version, "-q", qos, "-t", topic, "-m", "x", "-r"]) == 0
    words = ["sub", *tcp, "-V", version, "-q", qos, "-t", topic, "-C", "1", "-W", "10s"]
    assert main([*words, "-F", "%t %p %q %r"]) == 0
    assert capfdbinary.readouterr().out == f"{topic} x {qos} 1\n".encode()


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


def test_refusals_of_the_broker_are_printed(tcp: list[str], capfdbinary: Captured) -> None:
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
