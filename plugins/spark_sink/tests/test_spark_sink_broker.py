"""Test the plugin in broker processes with real clients. Acknowledged messages are in the stream, even after SIGKILL."""

import json
import os
import random
import re
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiomqtt
import mqttbytes as m
import pytest
from brokercut.lines import kind, packet_id, reason
from byteclient import ByteClient, over_tcp
from hookmq_spark_sink import block
from hookmq_spark_sink.placement import by_name
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties
from serving import HOOKMQ, Served, serving

pytestmark = pytest.mark.slow

TOKEN = "broker-token-0123456789"


def write(tmp_path: Path, **stream: Any) -> str:
    path = tmp_path / "hookmq.yaml"
    access = [{"token": TOKEN}]
    config = {
        "path": str(tmp_path / "spark"),
        "streams": [{"name": "all", "topics": ["t/#"], "partitions": 3, **stream}],
        "api": {"bind": "127.0.0.1:0", "access": access},
        "check_every": 0.1,
    }
    plugins = [
        {"use": "storage", "config": {"path": str(tmp_path / "data")}},
        {"use": "spark_sink", "config": config},
    ]
    text: dict[str, Any] = {
        "version": 1,
        "listeners": [
            {"name": "tcp", "bind": "127.0.0.1:0"},
            {"name": "http", "type": "http", "bind": "127.0.0.1:0"},
        ],
        "auth": {"default": "allow"},
        "authz": {"default": "allow"},
        "plugins": plugins,
    }
    path.write_text(json.dumps(text))
    return str(path)


def ask(served: Served, path: str) -> tuple[int, bytes]:
    port = next(one["port"] for one in served.log if one["event"] == "spark_sink.serving")
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/streams/all{path}",
        headers={"Authorization": f"Bearer {TOKEN}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def rows(served: Served) -> list[dict[str, Any]]:
    found = []
    offsets = json.loads(ask(served, "/offsets")[1])
    for place in offsets["partitions"]:
        data = ask(served, f"/records?partition={place}&start=0")[1]
        at = 0
        while at < len(data):
            length = block.read_head(data, at).length
            found += list(block.rows(block.parse(data[at : at + length])))
            at += length
    return found


def metrics_of(served: Served) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{served.ports['http']}/metrics") as answer:
        text: str = answer.read().decode()
    return text


async def test_an_acknowledged_message_can_be_read_at_once(tmp_path: Path) -> None:
    v5 = aiomqtt.ProtocolVersion.V5
    properties = PahoProperties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    properties.UserProperty = [("message-id", "7"), ("message-id", "8")]
    properties.ContentType = "text/plain"
    properties.CorrelationData = b"\xff"
    with serving("-c", write(tmp_path)) as served:
        port = served.ports["tcp"]
        async with aiomqtt.Client("127.0.0.1", port, identifier="dev", protocol=v5) as client:
            await client.publish("t/a", b"1", qos=1, properties=properties)
            (row,) = rows(served)
            assert (row["client_id"], row["qos"], row["offset"]) == ("dev", 1, 0)
            assert row["headers"] == [("message-id", b"7"), ("message-id", b"8")]
            assert (row["content_type"], row["correlation_data"]) == ("text/plain", b"\xff")
            await client.publish("t/a", b"2", qos=2)
            await client.publish("not/here", b"3", qos=1)
            assert [one["payload"] for one in rows(served)] == [b"1", b"2"]
        metrics = metrics_of(served)
        assert re.search(r'^hookmq_spark_sink_records_total{.*stream="all".*} 2$', metrics, re.M)
        assert re.search(r"^hookmq_spark_sink_reader_up({.*})? 1$", metrics, re.M)
        assert TOKEN not in metrics
        assert TOKEN not in json.dumps(served.log)


def test_a_full_stream_refuses_and_other_topics_go_on(tmp_path: Path) -> None:
    config = write(
        tmp_path,
        max_bytes=65536,
        retention_bytes=0,
        segment_size=4096,
        compression="none",
        consumers=["etl"],
    )
    with serving("-c", config) as served:
        line = over_tcp(served.ports["tcp"])
        line.send(m.connect("dev"))
        assert kind(line.frame()) == 2
        codes = []
        for number in range(1, 31):
            line.send(m.publish("t/a", b"x" * 4000, 1, number))
            codes.append(reason(line.frame()))
        assert codes[0] == 0x00 or codes[0] == 0x10
        assert codes[-1] == 0x97
        line.send(m.publish("other", b"x", 1, 100))
        assert reason(line.frame()) in (0x00, 0x10)
        line.close()
        accepted = sum(code != 0x97 for code in codes)
        assert len(rows(served)) == accepted


def test_a_reader_process_that_dies_is_started_again(tmp_path: Path) -> None:
    with serving("-c", write(tmp_path)) as served:
        line = over_tcp(served.ports["tcp"])
        line.send(m.connect("dev"))
        line.frame()
        line.send(m.publish("t/a", b"1", 1, 1))
        line.frame()
        assert len(rows(served)) == 1
        (child,) = readers_of(served.process.pid)
        os.kill(child, signal.SIGKILL)
        served.wait_for("spark_sink.reader_started")
        line.send(m.publish("t/a", b"2", 1, 2))
        line.frame()
        assert len(rows(served)) == 2
        line.close()
        (child,) = readers_of(served.process.pid)
        served.process.kill()
        served.process.wait()
        assert gone(child), "the reader process outlives its broker"
        served.process.returncode = 0


def readers_of(pid: int) -> list[int]:
    return [
        int(child)
        for path in Path(f"/proc/{pid}/task").glob("*/children")
        for child in path.read_text().split()
        if b"hookmq_spark_sink.reader" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


def gone(pid: int) -> bool:
    for _ in range(1000):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        threading.Event().wait(0.01)
    return False


@contextmanager
def killed(config: str) -> Any:
    """Run a broker that is killed at the end of the block."""
    process = subprocess.Popen(
        [*HOOKMQ, "serve", "--log-format", "json", "-c", config],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    served = Served(process)
    reader = threading.Thread(target=served.read, daemon=True)
    reader.start()
    try:
        started = served.wait_for("node.started")
        served.ports["tcp"] = int(started["listeners"]["tcp"].rpartition(":")[2])
        yield served
    finally:
        process.kill()
        process.wait()
        reader.join()
        assert process.stderr is not None
        process.stderr.close()


class Publisher:
    """A client that keeps a ledger of its messages, and resends any that were not acknowledged."""

    def __init__(self, name: str, qos: int) -> None:
        self.name = name
        self.qos = qos
        self.sent = 0
        self.acked: set[int] = set()
        self.open: dict[int, int] = {}
        self.recs: set[int] = set()

    def run(self, port: int, messages: int) -> None:
        """Publish `messages` messages, without waiting for the last ones to be acknowledged."""
        line = over_tcp(port)
        clean = not self.sent
        line.send(m.connect(self.name, clean=clean, properties=m.session_expiry(3600)))
        assert kind(line.frame()) == 2
        for id, number in self.open.items():
            line.send(m.pubrel(id) if id in self.recs else self.packet(id, number, True))
        left = messages
        while left or len(self.open) > 5:
            while left and len(self.open) < 10:
                left -= 1
                self.sent += 1
                id = next(id for id in range(1, 100) if id not in self.open)
                self.open[id] = self.sent
                line.send(self.packet(id, self.sent, False))
            self.took(line, line.frame())
        line.close()

    def packet(self, id: int, number: int, dup: bool) -> bytes:
        return m.publish(f"t/{self.name}", b"%d" % number, self.qos, id, dup=dup)

    def took(self, line: ByteClient, frame: bytes) -> None:
        id = packet_id(frame)
        if kind(frame) == 5:
            self.acked.add(self.open[id])
            self.recs.add(id)
            line.send(m.pubrel(id))
        else:
            self.acked.add(self.open.pop(id))
            self.recs.discard(id)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_kill_nine(tmp_path: Path) -> None:
    config = write(tmp_path, segment_size=4096, retention_time=0)
    draw = random.Random(11)
    publishers = [Publisher("one", 1), Publisher("two", 2)]
    log_ids = set()
    for _ in range(5):
        with killed(config) as served:
            log_ids.add(json.loads(ask(served, "/offsets")[1])["log_id"])
            for one in publishers:
                one.run(served.ports["tcp"], draw.randrange(10, 60))
    with serving("-c", config) as served:
        for one in publishers:
            one.run(served.ports["tcp"], 5)
        found = rows(served)
    assert len(log_ids) == 1
    offsets: dict[int, list[int]] = {}
    for row in found:
        offsets.setdefault(row["partition"], []).append(row["offset"])
        assert by_name(row["topic"], 3) == row["partition"]
    assert all(one == list(range(len(one))) for one in offsets.values())
    for one in publishers:
        numbers = [int(row["payload"]) for row in found if row["client_id"] == one.name]
        assert one.acked <= set(numbers)
        assert set(numbers) <= set(range(1, one.sent + 1))
        first = list(dict.fromkeys(numbers))
        assert first == sorted(first)
        if one.qos == 2:
            assert max(Counter(numbers).values()) == 1
