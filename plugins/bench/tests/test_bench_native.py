"""Test the native engine. If a relay breaks one message, the run is void. A plan produces the same report as the
asyncio engine does.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hookmq.cli_api import Will
from hookmq.plugin import ConfigError
from hookmq_bench import native
from hookmq_bench.address import Address
from hookmq_bench.histogram import Histogram
from hookmq_bench.page import page
from hookmq_bench.plan import TOPIC, Limits
from hookmq_bench.result import conclude, to_json
from hookmq_bench.text import table
from unwired import vary

pytestmark = pytest.mark.skipif(native.find_compiler() is None, reason="there is no C compiler")

# A run without loss ends when everything is delivered; `drain` is the time to wait for that on a busy machine.
PATIENT = {"drain": "30"}
SHORT = {"warmup": "0.1", "seconds": "0.3", **PATIENT}
STANDSTILL = {"seconds": "9", "drain": "2"}


class Relay:
    """The smallest broker that the generator can put load on: MQTT 3.1.1, QoS 0 and 1, one subscriber.

    `fault` is what happens to PUBLISH number `at`: drop, duplicate, swap (with the next) or downgrade (to QoS 0). With
    "unacknowledged", it is delivered without a PUBACK to its publisher. With "corrupt", it gets a sequence number that
    was never sent.
    """

    def __init__(self, fault: str, at: int = 30) -> None:
        self.fault = fault
        self.at = at
        self.seen = 0
        self.held = b""
        self.subscriber: asyncio.StreamWriter | None = None

    def forward(self, header: int, body: bytes) -> None:
        """Forward a PUBLISH to the subscriber, or apply the fault."""
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
        """Serve one connection."""
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
    """Run a relay with a fault and yield its port."""
    server = await asyncio.start_server(Relay(fault).serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def load(port: int, **words: str) -> dict[str, Any]:
    """Run one publisher and one subscriber briefly against the relay on `port`."""
    return await asyncio.to_thread(
        native.run, {**SHORT, **words}, port=port, pids=[os.getpid()], timeout=60
    )


@pytest.mark.parametrize("words", [{"window": "1"}, {"window": "20"}, {"window": "20", "qos": "1"}])
async def test_faithful_relay_has_no_defect(words: dict[str, str]) -> None:
    async with relay("") as port:
        raw = await load(port, **words)
    assert native.defects(raw) == ""
    assert raw["sent_total"] == raw["delivered_total"] > 30
    assert 0 < raw["delivered"] <= raw["delivered_total"]
    assert raw["broker_cpu_ns"] > 0


@pytest.mark.slow
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
    assert native.defects(raw) != ""


async def test_connection_that_the_broker_closes_is_an_error() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(native.NativeError, match="CONNACK"):
            await load(port)


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
        with pytest.raises(native.NativeError, match="CONNACK refuses: 0x05"):
            await load(port, transport="ws")


def plan(**changes: Any) -> Any:
    """Return a plan that the engine supports, with the given changes."""
    small = {"warm_up": 0.1, "duration": 0.3, "drain": 10.0, "topic": TOPIC, "payload": b"x" * 40}
    return vary(**{"publishers": 1, "subscribers": 1, "native": True, **small, **changes})


async def finished(fault: str, **changes: Any) -> Any:
    """Run a plan against a relay with a fault, and return the result."""
    asked = plan(**changes)
    async with relay(fault) as port:
        watched = await asyncio.to_thread(
            native.run_plan, asked, Address("127.0.0.1", port), lambda phase, point: None
        )
    return conclude(asked, watched, "2026-01-01T00:00:00+00:00", Limits())


async def test_a_plan_gets_the_report_of_the_other_engine() -> None:
    result = await finished("", qos=1)
    assert (result.verdict, result.faults, result.warnings) == ("valid", [], [])
    assert result.sent == result.acked == result.received == result.expected > 30
    assert result.seconds >= 0.3
    assert result.rates["received"] > 100
    assert "received" in table(result)
    assert to_json(result, "1")["generator"]["engine"] == "native"
    assert "valid" in page(result, "1")
    assert result.latency.count == 0


async def test_a_fixed_rate_has_latencies_in_the_buckets_of_the_histogram() -> None:
    result = await finished("", rate=500.0, window=0)
    assert result.verdict == "valid"
    assert 100 < result.latency.count <= result.received
    assert sum(result.latency.counts) == result.latency.count
    # The largest is exact and in the last bucket that has any; the mean lies between the extremes.
    last = max(number for number, times in enumerate(result.latency.counts) if times)
    alone = Histogram()
    alone.add(result.latency.largest)
    assert alone.counts[last] == 1
    assert 0 < result.latency.mean <= result.latency.largest


@pytest.mark.parametrize(
    ("fault", "changes", "verdict", "told"),
    [
        ("drop", {"rate": 500.0, "window": 0, "drain": 1.0}, "lossy", ["QoS 0 may lose messages"]),
        ("duplicate", {}, "void", ["1 duplicates"]),
        ("swap", {}, "void", ["1 messages out of order"]),
        ("downgrade", {"qos": 1}, "void", ["1 messages arrived at another QoS than 1"]),
        ("drop", {"duration": 5.0, "drain": 1.0}, "lossy", ["no progress for 1 s (--drain)"]),
        (
            "corrupt",
            {"rate": 500.0, "window": 0, "drain": 1.0},
            "void",
            ["1 packets that belong to no"],
        ),
    ],
)
async def test_a_fault_is_in_the_verdict(
    fault: str, changes: dict[str, Any], verdict: str, told: list[str]
) -> None:
    result = await finished(fault, **changes)
    assert result.verdict == verdict
    text = table(result)
    assert all(words in text for words in told), text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scenario": "churn"}, "the scenario churn"),
        ({"target": {"host": "::1"}}, "the host ::1"),
        ({"target": {"tls": True}}, "TLS"),
        ({"target": {"username": "u"}}, "a user name"),
        ({"target": {"will": Will("t", b"", 0, False)}}, "a will"),
        ({"target": {"clean_start": False}}, "durable sessions"),
        ({"version": 3}, "MQTT 3.1"),
        ({"processes": 2}, "--processes"),
        ({"topic": "a/{i}"}, "--topic"),
        ({"count": 5}, "--count"),
        ({"rate": 5.0, "window": 3}, "--window together with --rate"),
        ({"rate": 0.5, "window": 0}, "not a whole number"),
        ({"payload": b"{}"}, "--payload-file"),
    ],
)
def test_plans_that_native_does_not_support_are_refused(
    changes: dict[str, Any], words: str
) -> None:
    assert native.words_of(plan())["topology"] == "pairs"
    with pytest.raises(ConfigError, match=f"--native does not support .*{words}"):
        native.words_of(plan(**changes))


@pytest.mark.slow
def test_a_binary_is_compiled_once_into_the_cache(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    binary = native.build()
    made = binary.stat().st_mtime_ns
    assert binary.parent == tmp_path / "hookmq-bench"
    assert native.build().stat().st_mtime_ns == made
    monkeypatch.setattr(native, "FLAGS", ("-O0",))
    assert native.build() != binary
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(native.NativeError, match="C compiler"):
        native.build()
