"""Test `hookmq bench` as a process against real brokers: HookMQ, HookMQ with a plugin that drops
messages, and mosquitto.
"""

import asyncio
import contextlib
import json
import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme
from hookmq.mqtt_api import (
    Publish,
)
from hookmq.plugin import ConfigError
from hookmq_bench.address import BenchError
from hookmq_bench.cli import run
from hookmq_bench.options import add_options
from hookmq_testing import AsyncioClient, Parser
from ports import free_port
from serving import serving

pytestmark = pytest.mark.slow

WAIT = 60.0
# The command without discovering all other plugins first.
ALONE = """\
import signal, sys
from hookmq.cli import commands, main
from hookmq.hooks import discovery
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell
found = [one for one in discovery.installed() if one.name == "bench"]
commands.installed = lambda: found
sys.exit(main(["bench", *sys.argv[1:]]))
"""
COMMAND = [sys.executable, "-c", ALONE]
CONFIG = """\
version: 1
auth: {default: allow}
authz: {default: allow}
listeners:
  - {name: tcp, bind: "127.0.0.1:0"}
  - name: wss
    type: wss
    bind: "127.0.0.1:0"
    tls: {certificate: server.pem, key: server.key}
"""
LEAKY = """\
from hookmq.plugin import Drop, Plugin, hookimpl

class LeakyPlugin(Plugin):
    seen = 0

    @hookimpl
    def on_publish(self, client, message):
        self.seen += 1
        return Drop() if self.seen % 10 == 0 else None
"""


class Done(NamedTuple):
    """The result of a run: its exit code, its report and its text."""

    code: int
    result: dict[str, Any]
    text: str


def bench(port: int, words: str, url: str = "mqtt://127.0.0.1:{}") -> Done:
    """Run the command and return its result. If it fails, the report is empty."""
    done = subprocess.run(
        [*COMMAND, *words.split(), "-L", url.format(port), "--json", "-", "--quiet"],
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT,
    )
    result = json.loads(done.stdout) if done.stdout else {}
    return Done(done.returncode, result, done.stderr)


class Place(NamedTuple):
    """A broker: its ports, and the folder that holds its certificate authority."""

    tcp: int
    wss: int
    folder: Path


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("broker")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    server = authority.issue_cert("localhost")
    server.private_key_pem.write_to_path(folder / "server.key")
    server.private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    (folder / "hookmq.yaml").write_text(CONFIG)
    with serving("-c", "hookmq.yaml", cwd=folder) as served:
        yield Place(served.ports["tcp"], served.ports["wss"], folder)


@contextmanager
def mosquitto(folder: Path, *settings: str) -> Iterator[int]:
    """Run mosquitto on a free port, with additional configuration lines."""
    path = shutil.which("mosquitto", path=os.defpath + ":/usr/sbin:/usr/local/sbin")
    if path is None:
        pytest.skip("mosquitto is not installed")
    port = free_port()
    quiet = ["log_dest stderr", "log_type information", "connection_messages false"]
    lines = [f"listener {port} 127.0.0.1", "allow_anonymous true", *quiet, *settings]
    (folder / "mosquitto.conf").write_text("\n".join([*lines, ""]))
    process = subprocess.Popen(
        [path, "-c", str(folder / "mosquitto.conf")], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        assert any(" running" in line for line in iter(process.stderr.readline, ""))
        yield port
    finally:
        process.kill()
        process.communicate(timeout=WAIT)


@pytest.mark.slow
def test_pairs_over_two_processes_with_mqtt_5(broker: Place) -> None:
    code, result, text = bench(
        broker.tcp,
        "pair --publishers 6 --count 600 -q 2 -V 5 --processes 2 --payload 1KiB --fail-on-loss"
        f" -D publish user-property k {'v' * 200}",
    )
    assert (code, result["verdict"]) == (0, "valid"), text
    assert result["sent"] == result["acked"] == result["received"] == result["expected"] == 600
    assert (result["lost"], result["duplicates"], result["reordered"]) == (0, 0, 0)
    assert result["latency"]["count"] == result["acknowledged"]["count"] == 600
    assert result["connected"]["count"] == 12
    assert len(result["generator"]["cores"]) == 2
    assert "verdict     valid" in text


def test_a_fixed_rate_over_secure_websockets_with_limits(broker: Place, tmp_path: Path) -> None:
    html = tmp_path / "report.html"
    code, result, text = bench(
        broker.wss,
        "fanout --subscribers 3 --rate 500 --duration 0.6s --warm-up 0.1s --ramp-up 0.1s -q 1"
        f" --cafile {broker.folder}/ca.pem --html {html} --max-p99 1us --min-rate 1e6",
        url="wss://localhost:{}",
    )
    assert (code, result["verdict"]) == (1, "valid"), text
    assert result["received"] == result["sent"] * 3 > 0
    assert len(result["failures"]) == 2
    assert result["generator"]["late"]["count"] > 0
    assert "<svg" in html.read_text()


@pytest.mark.slow
def test_arrivals_cross_processes_with_mosquitto(tmp_path: Path) -> None:
    """Arrivals are reported across processes. There are two publishers and one subscriber, so a publisher can continue
    only if it learns of arrivals in another process.
    """
    with mosquitto(tmp_path, "max_inflight_messages 0", "max_queued_messages 0") as port:
        code, result, text = bench(
            port, "fanin --publishers 4 --count 800 --processes 3 --window 5"
        )
        assert (code, result["verdict"], result["received"]) == (0, "valid", 800), text
        shared = bench(port, "fanin --publishers 2 --subscribers 3 --shared --count 300 -q 1")
        assert (shared.code, shared.result["received"]) == (0, 300), shared.text


def test_a_full_queue_of_mosquitto_makes_a_run_void(tmp_path: Path) -> None:
    with mosquitto(tmp_path, "max_inflight_messages 1", "max_queued_messages 1") as port:
        code, result, text = bench(
            port, "fanin --publishers 4 --count 2000 --window 500 -q 1 --drain 0.3s"
        )
    assert (code, result["verdict"]) == (1, "void"), text
    assert result["acked"] == 2000
    assert result["lost"] == 2000 - result["received"] > 0
    assert "never arrived, though no connection was lost" in result["faults"][0]


def test_a_plugin_that_loses_is_found_out(tmp_path: Path) -> None:
    (tmp_path / "leaky.py").write_text(LEAKY)
    info = tmp_path / "leaky-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: leaky\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[hookmq.plugins]\nleaky = leaky:LeakyPlugin\n")
    config = CONFIG.partition("  - name: wss")[0] + "plugins: [{use: leaky}]\n"
    (tmp_path / "hookmq.yaml").write_text(config)
    environ = {"PYTHONPATH": str(tmp_path)}
    with serving("-c", "hookmq.yaml", cwd=tmp_path, environ=environ) as served:
        code, result, text = bench(
            served.ports["tcp"],
            "pair --publishers 2 --count 1000 --rate 1e5 --drain 0.3s --fail-on-loss",
        )
    assert (code, result["verdict"]) == (1, "lossy"), text
    assert (result["sent"], result["received"], result["lost"]) == (1000, 900, 100)
    assert "QoS 0 may lose messages" in text
    assert "FAILED" in text


@pytest.mark.slow
def test_subscribers_and_publishers_of_different_runs(broker: Place) -> None:
    words = ["-L", f"mqtt://127.0.0.1:{broker.tcp}/apart/{{i}}"]
    with subprocess.Popen(
        [*COMMAND, "sub", *words, "--subscribers", "2", "--count", "100", "--json", "-"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as subscribing:
        assert subscribing.stdout is not None
        # Publish until the subscribers, whenever they connected, have enough.
        publishing = [
            *COMMAND,
            "pub",
            *words,
            "--publishers",
            "2",
            "--rate",
            "400",
            "--duration",
            "20s",
        ]
        with subprocess.Popen(
            publishing, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as other:
            result = json.loads(subscribing.stdout.read())
            other.send_signal(signal.SIGINT)
            assert other.wait(WAIT) == 0
    assert subscribing.returncode == 0
    assert result["received"] >= 100
    assert (result["lost"], result["duplicates"], result["verdict"]) == (0, 0, "valid")


def test_wills_of_those_who_leave_without_a_word(broker: Place) -> None:
    code, result, text = bench(
        broker.tcp,
        "churn --clients 10 --count 100 --abrupt --will-topic wills/{i} --will-qos 1 --fail-on-loss",
    )
    assert code == 0, text
    counts = result["connections"]
    assert (counts["opened"], counts["wills_due"], counts["wills_came"]) == (100, 100, 100)


def seen_by(port: int, client_id: str, topic_filter: str) -> tuple[bool, list[Publish]]:
    """Return whether the broker has a session for a client, and which retained messages a new subscription receives."""

    async def look() -> tuple[bool, list[Publish]]:
        client = await AsyncioClient(client_id, 4, clean_start=False).connect(port)
        await client.subscribe(topic_filter)
        await client.subscribe("end")
        await client.publish("end")
        assert await client.until(lambda: any(one.topic == "end" for one in client.messages))
        client.disconnect()
        await client.wait_closed()
        return client.session_present, [one for one in client.messages if one.topic != "end"]

    return asyncio.run(look())


def test_a_storm_finds_the_sessions(broker: Place) -> None:
    code, result, text = bench(broker.tcp, "churn --clients 20 --storm 50ms --count 60 -c -i storm")
    assert code == 0, text
    counts = result["connections"]
    assert len(counts["storms"]) == 2
    assert (counts["opened"], counts["resumed"]) == (60, 40)
    assert seen_by(broker.tcp, "storm-c3", "x") == (False, [])


def test_nothing_is_left_behind(broker: Place) -> None:
    code, result, text = bench(
        broker.tcp, "pair --publishers 3 --count 30 -r -c -i left -t left/{i}"
    )
    assert (code, result["received"]) == (0, 30), text
    assert seen_by(broker.tcp, "left-s1", "left/#") == (False, [])


def test_a_terminal_sees_a_line_and_ctrl_c_ends_it_early(broker: Place) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "connect", "--clients", "30", "--duration", "60s", "-p", str(broker.tcp)],
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
    ) as process:
        os.close(theirs)
        seen = b""
        while b"30 open" not in seen:
            seen += os.read(ours, 4096)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # the terminal closes when the process has ended
            while os.read(ours, 4096):  # a terminal that nobody reads blocks the process
                pass
        text, _ = process.communicate(timeout=WAIT)
    os.close(ours)
    assert process.returncode == 0
    assert b"\r" in seen
    assert "connected                 30" in text
    assert "ended early by Ctrl-C" in text


def test_an_error_that_stops_a_run_is_reported_in_one_line(broker: Place) -> None:
    code, _, text = bench(broker.tcp, "fanin --publishers 2", url="ws://127.0.0.1:{}")
    assert code == 1
    assert text.startswith("hookmq: subscriber 0: ")
    assert len(text.splitlines()) == 1


def test_figures_are_told_where_the_report_cannot_be_written(broker: Place) -> None:
    done = subprocess.run(
        [
            *(*COMMAND, "pair", "--publishers", "1", "--count", "20"),
            *("--html", "/dev/full", "-p", str(broker.tcp)),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT,
    )
    assert done.returncode == 1
    assert "received                  20" in done.stdout
    assert "No space left on device" in done.stderr


def test_an_unreachable_broker_is_reported_before_processes_start(tmp_path: Path) -> None:
    parser = Parser(prog="hookmq bench")
    add_options(parser)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    with pytest.raises(BenchError) as refused:
        run(parser.parse(["pair", "-p", port]))
    assert str(refused.value) == f"cannot connect to 127.0.0.1:{port}: Connection refused"
    with pytest.raises(ConfigError, match="does not exist"):
        run(parser.parse(["pair", "-p", port, "--html", str(tmp_path / "no" / "x.html")]))
    with pytest.raises(ConfigError, match="found a folder"):
        run(parser.parse(["pair", "-p", port, "--json", str(tmp_path)]))
    (tmp_path / "ca.pem").write_text("no certificate")
    with socket.create_server(("127.0.0.1", 0)) as there:
        words = ["pair", "-p", str(there.getsockname()[1]), "--cafile", str(tmp_path / "ca.pem")]
        with pytest.raises(ConfigError, match="TLS: "):
            run(parser.parse(words))
