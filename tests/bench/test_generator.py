"""The load generator against mosquitto, and against relays that break one message on purpose."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pathlib
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from bench import generator, launch, peers, report, scenarios

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.skipif(
    generator.find_compiler() is None, reason="no C compiler: the load generator is C"
)
needs_mosquitto = pytest.mark.skipif(
    peers.PEERS["mosquitto"].program() is None, reason="mosquitto is not installed"
)

# A lossless run ends when all is delivered; `drain` is how long it waits on a machine that is busy.
PATIENT = {"drain": "30"}
SHORT = {"warmup": "0.1", "seconds": "0.3", **PATIENT}
STANDSTILL = {"seconds": "9", "drain": "2"}


class Relay:
    """A broker just big enough for the generator: MQTT 3.1.1, QoS 0 and 1, one subscriber.

    `fault` happens to the `at`th PUBLISH: drop, duplicate, swap (with the next), downgrade (to
    QoS 0), unacknowledged (delivered, but its publisher gets no PUBACK), corrupt (a sequence number
    that was never sent).
    """

    def __init__(self, fault: str, at: int = 30) -> None:
        self.fault = fault
        self.at = at
        self.seen = 0
        self.held = b""
        self.subscriber: asyncio.StreamWriter | None = None

    def forward(self, header: int, body: bytes) -> None:
        """Send a PUBLISH on to the subscriber, or do the fault."""
        assert self.subscriber is not None
        self.seen += 1
        fault = self.fault if self.seen == self.at else ""
        if fault == "downgrade":
            header, topic_end = 0x30, 2 + int.from_bytes(body[:2])
            body = body[:topic_end] + body[topic_end + 2 :]
        if fault == "corrupt":
            # Sequence number and time are the 16 bytes after run and publisher: 64 B of payload.
            body = body[:-56] + b"\xff" * 8 + body[-48:]
        packet = bytes([header, len(body)]) + body
        if fault == "swap":
            self.held = packet
        elif fault != "drop":
            self.subscriber.write(packet * (2 if fault == "duplicate" else 1) + self.held)
            self.held = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                header, length = await reader.readexactly(2)
                assert length < 128
                body = await reader.readexactly(length)
                match header >> 4:
                    case 1:
                        writer.write(b"\x20\x02\x00\x00")
                    case 3:
                        self.forward(header, body)
                        if header & 6 and (self.fault != "unacknowledged" or self.seen != self.at):
                            topic_end = 2 + int.from_bytes(body[:2])
                            writer.write(b"\x40\x02" + body[topic_end : topic_end + 2])
                    case 8:
                        self.subscriber = writer
                        writer.write(b"\x90\x03" + body[:2] + body[-1:])
                    case 14:
                        break
        writer.close()


@contextlib.asynccontextmanager
async def relay(fault: str) -> AsyncIterator[int]:
    """The port of a relay with that fault."""
    server = await asyncio.start_server(Relay(fault).serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def load(port: int, **words: str) -> dict[str, Any]:
    """One short run of one publisher and one subscriber against the relay on that port."""
    return await asyncio.to_thread(
        generator.run, {**SHORT, **words}, port=port, pids=[os.getpid()], timeout=60
    )


def run_of(raw: dict[str, Any]) -> report.Run:
    return report.Run(scenarios.SCENARIOS[0], "relay", raw)


@pytest.mark.parametrize("words", [{"window": "1"}, {"window": "20"}, {"window": "20", "qos": "1"}])
async def test_faithful_relay_has_no_defect(words: dict[str, str]) -> None:
    async with relay("") as port:
        raw = await load(port, **words)
    assert run_of(raw).defects() == ""
    assert raw["sent_total"] == raw["delivered_total"] > 30
    assert 0 < raw["delivered"] <= raw["delivered_total"]
    assert raw["broker_cpu_ns"] > 0


@pytest.mark.parametrize(
    ("fault", "words", "expected"),
    [
        ("drop", {"window": "20", **STANDSTILL}, {"lost": 1, "stalled": True}),
        ("drop", {"window": "1", **STANDSTILL}, {"lost": 1, "stalled": True}),
        ("drop", {"mode": "open", "rate": "2000", "drain": "2"}, {"lost": 1, "stalled": False}),
        ("duplicate", {"window": "20"}, {"duplicates": 1, "lost": 0}),
        ("duplicate", {"mode": "open", "rate": "2000"}, {"duplicates": 1, "lost": 0}),
        ("swap", {"window": "20"}, {"reordered": 1, "lost": 0, "duplicates": 0}),
        ("drop", {"window": "20", "topology": "shared", **STANDSTILL}, {"lost": 1}),
        ("duplicate", {"window": "20", "topology": "shared"}, {"duplicates": 1, "lost": 0}),
        ("swap", {"window": "20", "topology": "shared"}, {"reordered": 1, "duplicates": 0}),
        ("downgrade", {"window": "20", "qos": "1"}, {"wrong_qos": 1, "lost": 0}),
        (
            "unacknowledged",
            {"window": "20", "qos": "1", **STANDSTILL},
            {"unacknowledged": 1, "lost": 0},
        ),
        ("corrupt", {"window": "20", **STANDSTILL}, {"stray": 1, "lost": 1}),
    ],
)
async def test_fault_of_one_message_makes_the_run_void(
    fault: str, words: dict[str, str], expected: dict[str, object]
) -> None:
    async with relay(fault) as port:
        raw = await load(port, **words)
    assert {key: raw[key] for key in expected} == expected
    assert run_of(raw).defects() != ""


async def test_connection_that_the_broker_closes_is_an_error() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(generator.GeneratorError, match="CONNACK"):
            await load(port)


@needs_mosquitto
@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize(
    "name", ["fanin-q0-w20", "pairs-q1-w20", "pairs-q2-w1", "light-q1-10k", "tls-q0"]
)
def test_mosquitto_delivers_all(name: str, level: int) -> None:
    (scenario,) = scenarios.select(name)
    words = scenario.arguments(payload=64, level=level, seconds=0.2, warmup=0.05) | PATIENT
    with launch.running("mosquitto", core=None, variant=scenario.variant) as broker:
        raw = generator.run(words, port=broker.port, pids=broker.pids(), timeout=60)
    run = report.Run(scenario, "mosquitto", raw)
    assert run.defects() == ""
    assert raw["sent_total"] == raw["delivered_total"] > 0
    assert run.figures()["cost"] > 0


@needs_mosquitto
@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("name", ["wildcard", "shared", "retained", "offline"])
def test_mosquitto_delivers_all_of_what_is_routed_or_kept(name: str, level: int) -> None:
    (scenario,) = scenarios.select(name)
    words = scenario.arguments(payload=64, level=level, seconds=0.1, warmup=0.05) | PATIENT
    small = {"wildcard": {"topics": "500"}, "offline": {"clients": "5", "topics": "100"}}
    words |= small.get(name, {"topics": "300"} if name == "retained" else {})
    with launch.running("mosquitto", core=None) as broker:
        raw = generator.run(words, port=broker.port, pids=broker.pids(), timeout=60)
    assert report.Run(scenario, "mosquitto", raw).defects() == ""
    assert raw["delivered"] >= 300


async def test_websocket_packet_in_frames_of_a_byte_each() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
            assert (await reader.readexactly(2))[0] == 0x82
            packet = b"\x20\x02\x00\x05"
            for byte in packet:
                writer.write(b"\x82\x01" + bytes([byte]))
                await writer.drain()
            await reader.read(1000)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(generator.GeneratorError, match="CONNACK refuses: 0x05"):
            await load(port, transport="ws")


@needs_mosquitto
def test_command_prints_a_table_and_writes_every_run(tmp_path: pathlib.Path) -> None:
    target = tmp_path / "result.json"
    words = (
        "--peers mosquitto --scenarios fanin-q0-w20 --runs 1 --seconds 0.2 --warmup 0.1 --no-pin"
    )
    command = [sys.executable, "-m", "bench", *words.split(), "--json", str(target)]
    root = pathlib.Path(generator.HERE).parent
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "fan-in 50 to 1, QoS 0, W20  mosquitto" in done.stdout
    (row,) = json.loads(target.read_text())["rows"]
    assert row["broker"] == "mosquitto"
    assert row["void"] == []
    assert row["cost_ratio"] == 1.0
    assert row["runs"][0]["delivered"] > 0


@needs_mosquitto
def test_fanout_counts_each_subscriber() -> None:
    words = {**SHORT, "topology": "all", "pubs": "1", "subs": "7", "window": "10"}
    with launch.running("mosquitto", core=None) as broker:
        raw = generator.run(words, port=broker.port, pids=broker.pids(), timeout=60)
    assert raw["delivered_total"] == 7 * raw["sent_total"] > 0
    assert raw["lost"] == raw["duplicates"] == raw["stray"] == 0


@needs_mosquitto
def test_connect_and_idle_against_mosquitto() -> None:
    with launch.running("mosquitto", core=None) as broker:
        pids = broker.pids()
        words = {"mode": "connect", "inflight": "8", **SHORT}
        assert generator.run(words, port=broker.port, pids=pids, timeout=60)["connects"] > 0
        words = {"mode": "idle", "clients": "100", "seconds": "0.1"}
        raw = generator.run(words, port=broker.port, pids=pids, timeout=60)
    assert raw["clients"] == 100
    assert raw["lost"] == 0
    assert raw["rss_after_kib"] >= raw["rss_before_kib"] > 0
