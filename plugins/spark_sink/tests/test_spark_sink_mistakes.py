"""Test mistakes by operators and publishers, using whole brokers.

Each mistake is reported in one line, and no acknowledged message is lost.
"""

import json
import re
import resource
import subprocess
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import mqttbytes as m
import pytest
from brokercut.lines import kind, packet_id, reason
from byteclient import ByteClient, over_tcp
from hookmq_spark_sink import block
from serving import HOOKMQ, Served, serving

pytestmark = pytest.mark.slow

TOKEN = "mistakes-token-0123456789"
LONGEST = 268_435_455
"""The remaining length of the largest possible packet [MQTT-1.5.5]."""


def config(tmp_path: Path, *streams: dict[str, Any], **broker: Any) -> str:
    """Write a configuration with these streams, or with one named `all`."""
    defaults = {"topics": ["#"], "partitions": 2}
    sink = {
        "path": str(tmp_path / "spark"),
        "streams": [defaults | one for one in streams or ({"name": "all"},)],
        "api": {"bind": "127.0.0.1:0", "access": [{"token": TOKEN}]},
    }
    text = {
        "version": 1,
        "broker": broker,
        "listeners": [{"name": "tcp", "bind": "127.0.0.1:0"}],
        "auth": {"default": "allow"},
        "authz": {"default": "allow"},
        "plugins": [
            {"use": "storage", "config": {"path": str(tmp_path / "data")}},
            {"use": "spark_sink", "config": sink},
        ],
    }
    path = tmp_path / "hookmq.yaml"
    path.write_text(json.dumps(text))
    return str(path)


def connected(served: Served, name: str = "dev") -> ByteClient:
    line = over_tcp(served.ports["tcp"])
    line.send(m.connect(name))
    assert kind(line.frame()) == 2
    return line


def publish(line: ByteClient, *messages: tuple[bytes | str, bytes]) -> None:
    """Publish at QoS 1 and wait until all messages are acknowledged."""
    for number, (topic, payload) in enumerate(messages, 1):
        line.send(m.publish(topic, payload, 1, number))
    codes = [(packet_id(one), reason(one)) for one in (line.frame() for _ in messages)]
    assert [number for number, _ in codes] == list(range(1, len(messages) + 1))
    assert {code for _, code in codes} <= {0x00, 0x10}


def kept(tmp_path: Path, stream: str = "all") -> dict[str, list[bytes]]:
    """Return the stream's payloads by topic."""
    from hookmq_spark_sink.index import StreamIndex, parse

    index = StreamIndex(tmp_path / "spark" / stream)
    index.refresh(None)
    found: dict[str, list[bytes]] = {}
    for place in range(8):
        for segment, where in index.blocks(place, 0, 1 << 60):
            for row in block.rows(parse(segment, where)):
                found.setdefault(row["topic"], []).append(row["payload"])
    return found


def refused(path: str, **options: Any) -> str:
    """Return the error line of a broker that does not start."""
    done: subprocess.CompletedProcess[str] = subprocess.run(
        [*HOOKMQ, "serve", "-c", path], capture_output=True, text=True, timeout=120, **options
    )
    assert done.returncode != 0, done.stderr
    assert "Traceback (most recent" not in done.stderr
    return done.stderr.strip().splitlines()[-1]


ALL = {"name": "all"}


def swap(tmp_path: Path) -> None:
    for old, new in (("all", "x"), ("other", "all"), ("x", "other")):
        (tmp_path / "spark" / old).rename(tmp_path / "spark" / new)


def swap_logs(tmp_path: Path) -> None:
    for old, new in (("all", "x"), ("other", "all"), ("x", "other")):
        (tmp_path / "spark" / new).mkdir(exist_ok=True)
        (tmp_path / "spark" / old / "log").rename(tmp_path / "spark" / new / "log")
    (tmp_path / "spark" / "x").rmdir()


def nothing(tmp_path: Path) -> None:
    pass


@pytest.mark.slow
def test_a_stream_that_is_not_the_one_of_the_configuration(tmp_path: Path) -> None:
    other = {"name": "other", "topics": ["o/#"]}
    right = config(tmp_path, ALL, other)
    with serving("-c", right) as served:
        line = connected(served)
        publish(line, ("t/1", b"1"), ("o/1", b"2"))
        line.close()
    wrongs: list[tuple[tuple[dict[str, Any], ...], Callable[[Path], None], str]] = [
        (
            ({"name": "new"}, other),
            nothing,
            "all contains a stream that is not configured: if it was",
        ),
        ((ALL,), nothing, "other contains a stream that is not configured: if it was renamed"),
        (
            ({**ALL, "partitions": 3}, other),
            nothing,
            "has 2 partitions, but the configuration says 3",
        ),
        ((ALL, other), swap, "contains the stream 'other', not 'all': it was renamed, or folders"),
        ((ALL, other), swap_logs, "is not the log that stream.json describes: folders were"),
    ]
    for streams, change, said in wrongs:
        change(tmp_path)
        assert said in refused(config(tmp_path, *streams))
        change(tmp_path)  # and back
    with serving("-c", config(tmp_path, ALL, other)) as served:
        line = connected(served)
        publish(line, ("t/1", b"3"))
        line.close()
    assert kept(tmp_path) == {"t/1": [b"1", b"3"], "o/1": [b"2"]}
    assert kept(tmp_path, "other") == {"o/1": [b"2"]}


@pytest.mark.slow
def test_a_disk_without_room_ends_the_broker_and_nothing_acknowledged_is_lost(
    tmp_path: Path,
) -> None:
    """A full disk ends the broker, and no acknowledged message is lost. The kernel refuses to let the log grow, so
    write() fails as it would on a full disk.
    """
    path = config(tmp_path)
    limit = 3 << 20

    def small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    process = subprocess.Popen(
        [*HOOKMQ, "serve", "--log-format", "json", "-c", path],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=small,
    )
    served = Served(process)
    assert process.stderr is not None
    for text in process.stderr:
        entry = json.loads(text)
        if entry["event"] == "node.started":
            served.ports["tcp"] = int(entry["listeners"]["tcp"].rpartition(":")[2])
            break
    line = connected(served)
    acknowledged = []
    for number in range(1, 100):
        payload = number.to_bytes(4, "big") * 20_000
        line.send(m.publish("t/1", payload, 1, number))
        try:
            answer = line.frame()
        except (AssertionError, OSError):
            break
        if kind(answer) != 4:
            assert (kind(answer), answer[2]) == (14, 0x8B)
            break
        acknowledged.append(payload)
    line.close()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1, said
    assert 30 < len(acknowledged) < 42
    assert said.splitlines()[-1].endswith("spark/all/log: File too large")
    with serving("-c", path) as served:
        line = connected(served)
        publish(line, ("t/2", b"there is room again"))
        line.close()
    found = kept(tmp_path)
    assert found["t/1"][: len(acknowledged)] == acknowledged
    assert len(found["t/1"]) <= len(acknowledged) + 1
    assert found["t/2"] == [b"there is room again"]


def test_any_payload_is_kept_as_it_is(tmp_path: Path) -> None:
    payloads = [b"", b"\x00", b"{", b"\xff\xfe\x80", "\ufffe\U0010ffff".encode(), b'"\xed\xa0\x80"']
    with serving("-c", config(tmp_path)) as served:
        line = connected(served)
        publish(line, *[("t/1", payload) for payload in payloads])
        line.close()
    assert kept(tmp_path) == {"t/1": payloads}


def legal() -> list[str]:
    """Return topics of up to 65,535 bytes that contain every character a topic may have [MQTT-4.7.1-1] [MQTT-1.5.4-2]."""
    characters = [
        character
        for code in range(1, 0x110000)
        if (character := chr(code)) not in "+#" and unicodedata.category(character) != "Cs"
    ]
    return ["".join(characters[at : at + 16_000]) for at in range(0, len(characters), 16_000)]


def test_topics_of_every_legal_character(tmp_path: Path) -> None:
    topics = [*legal(), "/", "//", " ", "$x", "a" * 65_535]
    assert max(len(topic.encode()) for topic in topics) == 65_535
    path = config(tmp_path, {"name": "all", "topics": ["#", "$x"]}, text="tolerant")
    with serving("-c", path) as served:
        line = connected(served)
        publish(line, *[(topic, b"%d" % n) for n, topic in enumerate(topics)])
        line.close()
    assert kept(tmp_path) == {topic: [b"%d" % n] for n, topic in enumerate(topics)}


def test_a_packet_beyond_the_limit_is_refused_before_it_is_kept(tmp_path: Path) -> None:
    with serving("-c", config(tmp_path)) as served:
        line = connected(served)
        publish(line, ("t/1", b"before"))
        line.send(b"\x32" + m.varint(LONGEST) + m.text("t/1") + b"\x00\x09\x00" + bytes(100_000))
        answer = line.frame()
        assert (kind(answer), answer[2]) == (14, 0x95)
        assert re.search(rb"packet of \d+ bytes", answer)
        line.close()
        status = Path(f"/proc/{served.process.pid}/status").read_text()
        assert int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) < 200_000
    assert kept(tmp_path) == {"t/1": [b"before"]}


@pytest.mark.slow
def test_the_largest_message_of_all_is_one_record(tmp_path: Path) -> None:
    """The largest possible message becomes one record. It has 256 MB, which `max_packet_size` allows in this test."""
    payload = bytes(range(256)) * (1 << 20)
    payload = payload[: LONGEST - len(m.text("t/1")) - 3]
    packet = m.publish("t/1", payload, 1, 1)
    assert packet[1:5] == m.varint(LONGEST)
    with serving("-c", config(tmp_path, max_packet_size=LONGEST + 5)) as served:
        line = connected(served)
        line.send(packet)
        assert (kind(answer := line.frame()), reason(answer)) == (4, 0x00)
        publish(line, ("t/1", b"after"))
        line.close()
    large, after = kept(tmp_path)["t/1"]
    assert (len(large), crc32(large), after) == (len(payload), crc32(payload), b"after")
    for file in (tmp_path / "spark" / "all" / "log").glob("*.segment"):
        file.unlink()
