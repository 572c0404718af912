"""Interoperability of mosquitto's command-line clients with HookMQ, and of HookMQ's command line with mosquitto."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ports import free_port
from recording import V5, Client
from serving import Served

VERSIONS = ["31", "311", "5"]
HOOKMQ = [sys.executable, "-m", "hookmq.cli"]


def tool(name: str) -> str:
    """Return the path of one of mosquitto's programs. Skip the test if it is not installed."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        pytest.skip(f"{name} is not installed (apt install mosquitto mosquitto-clients)")
    return found


def run(*words: str, feed: bytes = b"") -> bytes:
    """Run a program and return its output. It must succeed."""
    done = subprocess.run(words, input=feed, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, (words, done.returncode, done.stderr)
    return done.stdout


def at(broker: Served, version: str) -> list[str]:
    """Return the options that connect a tool, in a cluster to a random node."""
    return ["-h", "127.0.0.1", "-p", str(broker.ports["tcp"]), "-V", f"mqttv{version}"]


@contextmanager
def listening(broker: Served, topic: str, *words: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a subscriber and wait until its first line of output is the retained marker. This proves that it has
    subscribed.
    """
    with Client(broker.ports["tcp"], version=V5) as one:
        one.publish(f"{topic}/ready", b"ready", 1, retain=True)
    process = subprocess.Popen([*words, "-t", f"{topic}/ready"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_pub_to_sub(broker: Served, topic: str, version: str, qos: str) -> None:
    sub = [
        tool("mosquitto_sub"),
        *at(broker, version),
        "-q",
        qos,
        "-C",
        "6",
        "-W",
        "10",
        "-t",
        f"{topic}/a",
    ]
    with listening(broker, topic, *sub) as subscriber:
        lines = b"one\ntwo\nthree\nfour\nfive\n"
        run(
            tool("mosquitto_pub"),
            *at(broker, version),
            "-t",
            f"{topic}/a",
            "-q",
            qos,
            "-l",
            feed=lines,
        )
        output, _ = subscriber.communicate(timeout=60)
        assert output == lines
        assert subscriber.returncode == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_retained_and_cleared(broker: Served, topic: str, version: str) -> None:
    at = ["-h", "127.0.0.1", "-p", str(broker.ports["tcp"]), "-V", f"mqttv{version}", "-t", topic]
    run(tool("mosquitto_pub"), *at, "-m", "kept", "-r", "-q", "1")
    sub = [tool("mosquitto_sub"), *at, "-C", "1", "-W", "10", "-F", "%p %r %q"]
    assert run(*sub, "-q", "1") == b"kept 1 1\n"
    run(tool("mosquitto_pub"), *at, "-n", "-r")
    run(tool("mosquitto_pub"), *at, "-m", "new", "-r")
    assert run(*sub) == b"new 1 0\n"
    run(tool("mosquitto_pub"), *at, "-n", "-r")


@pytest.mark.parametrize("version", VERSIONS)
def test_over_tls(broker: Served, folder: Path, topic: str, version: str) -> None:
    at = ["-h", "localhost", "-p", str(broker.ports["tls"]), "--cafile", str(folder / "ca.pem")]
    at += ["-V", f"mqttv{version}", "-t", topic]
    run(tool("mosquitto_pub"), *at, "-m", "sealed", "-r", "-q", "2")
    assert run(tool("mosquitto_sub"), *at, "-C", "1", "-W", "10") == b"sealed\n"
    run(tool("mosquitto_pub"), *at, "-n", "-r")


@pytest.mark.parametrize("version", ["311", "5"])
def test_a_session_that_stays(broker: Served, topic: str, version: str) -> None:
    me = ["-i", f"mosq-{topic}", "-c", "-q", "1", "-t", topic]
    if version == "5":
        me += ["-x", "60"]
    sub = tool("mosquitto_sub")
    run(sub, *at(broker, version), *me, "-E")
    for number in range(3):
        run(tool("mosquitto_pub"), *at(broker, version), "-t", topic, "-q", "1", "-m", str(number))
    assert run(sub, *at(broker, version), *me, "-C", "3", "-W", "10") == b"0\n1\n2\n"


def test_request_and_response(broker: Served, topic: str) -> None:
    at = ["-h", "127.0.0.1", "-p", str(broker.ports["tcp"]), "-V", "mqttv5"]
    with Client(broker.ports["tcp"], version=V5) as service:
        service.subscribe(topic, 1)
        answer = ["-e", f"{topic}/answer", "-m", "how much?", "-W", "10"]
        asking = [tool("mosquitto_rr"), *at, "-t", topic, *answer]
        with subprocess.Popen(asking, stdout=subprocess.PIPE) as asker:
            request = service.message()
            assert request.payload == b"how much?"
            assert request.properties is not None
            service.publish(request.properties.ResponseTopic, b"42", 1)  # type: ignore[attr-defined]
            output, _ = asker.communicate(timeout=60)
            assert output == b"42\n"


def test_properties_of_version_5(broker: Served, topic: str) -> None:
    at = ["-h", "127.0.0.1", "-p", str(broker.ports["tcp"]), "-V", "mqttv5", "-t", topic]
    run(
        tool("mosquitto_pub"), *at, "-m", "x", "-r", "-D", "publish", "user-property", "color", "blue",
        "-D", "publish", "content-type", "text/plain",
    )  # fmt: skip
    printed = run(tool("mosquitto_sub"), *at, "-C", "1", "-W", "10", "-F", "%C %P")
    assert printed == b"text/plain color:blue\n"
    run(tool("mosquitto_pub"), *at, "-n", "-r")


@pytest.fixture(scope="module")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Run a mosquitto broker and yield its port."""
    program = tool("mosquitto")
    port = free_port()
    config = tmp_path_factory.mktemp("mosquitto") / "mosquitto.conf"
    config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\nlog_dest stderr\n")
    process = subprocess.Popen([program, "-c", str(config)], stderr=subprocess.PIPE)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if b"running" in line:
                break
        else:
            pytest.fail("mosquitto did not start")
        yield port
    finally:
        process.terminate()
        process.communicate(timeout=60)


@pytest.mark.parametrize("version", VERSIONS)
def test_our_command_line_with_their_broker(mosquitto: int, topic: str, version: str) -> None:
    at = ["-h", "127.0.0.1", "-p", str(mosquitto), "-V", version, "-t", topic]
    run(*HOOKMQ, "pub", *at, "-m", "kept", "-q", "2", "-r")
    assert run(*HOOKMQ, "sub", *at, "-q", "2", "-C", "1", "-W", "10s", "-v") == (
        f"{topic} kept\n".encode()
    )
    run(*HOOKMQ, "pub", *at, "-n", "-r")
