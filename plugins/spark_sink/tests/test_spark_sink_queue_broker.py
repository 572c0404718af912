"""Test streams that serve a queue, in broker processes. Readers see the same messages and offsets as MQTT consumers.

The plugin `queues` is configured by name, as users would do it.
"""

import asyncio
import json
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiomqtt
import pytest
from hookmq_spark_sink import block
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties
from serving import Served, serving

pytestmark = pytest.mark.slow

TOKEN = "broker-token-0123456789"
KEYS = 40
COMPACTED = {
    "name": "log",
    "type": "stream",
    "compact": "key",
    "memory": 0,
    "groups_on_first_use": True,
    "retention": {"bytes": "512KiB", "messages": 700},
}


def write(
    tmp_path: Path, queues: Iterable[dict[str, Any]], stream: dict[str, Any] | None = None
) -> str:
    """Write a configuration in which the stream `all` serves the queue `log`. The plugin `queues` comes last, so it
    starts last.
    """
    path = tmp_path / "hookmq.yaml"
    sink = {
        "path": str(tmp_path / "spark"),
        "streams": [stream or {"name": "all", "queue": "log"}],
        "api": {"bind": "127.0.0.1:0", "access": [{"token": TOKEN}]},
        "check_every": 0.1,
    }
    text: dict[str, Any] = {
        "version": 1,
        "listeners": [
            {"name": "tcp", "bind": "127.0.0.1:0"},
            {"name": "http", "type": "http", "bind": "127.0.0.1:0"},
        ],
        "auth": {"default": "allow"},
        "authz": {"default": "allow"},
        "plugins": [
            {"use": "storage", "config": {"path": str(tmp_path / "data")}},
            {"use": "spark_sink", "config": sink},
            {"use": "queues", "config": {"path": str(tmp_path / "queues"), "queues": list(queues)}},
            {"use": "admin", "config": {"first_token_file": str(tmp_path / "token")}},
        ],
    }
    path.write_text(json.dumps(text))
    return str(path)


def request(served: Served, path: str, body: Any = None) -> urllib.request.Request:
    port = next(one["port"] for one in served.log if one["event"] == "spark_sink.serving")
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {TOKEN}"}
    return urllib.request.Request(f"http://127.0.0.1:{port}/v1/streams{path}", data, headers)


def opened(served: Served, path: str) -> Any:
    return urllib.request.urlopen(request(served, path), timeout=60)


def ask(served: Served, path: str, body: Any = None) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(request(served, path, body), timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def facts(served: Served, path: str, body: Any = None) -> Any:
    """Return a JSON response, with its status."""
    status, text = ask(served, path, body)
    return {"status": status} | json.loads(text)


def ends(served: Served) -> tuple[int, int]:
    found = facts(served, "/all/offsets")["partitions"]["0"]
    return found["earliest"], found["latest"]


def parsed(data: bytes, start: int, end: int) -> dict[int, bytes]:
    """Return the payloads in a response, by offset. The response's blocks must cover the range without gaps."""
    found, at = [], 0
    while at < len(data):
        length = block.read_head(data, at).length
        found.append(block.parse(data[at : at + length]))
        at += length
    assert (found[0].base, found[-1].end) == (start, end)
    assert all(before.end == after.base for before, after in pairwise(found))
    return {row["offset"]: row["payload"] for one in found for row in block.rows(one)}


def read(served: Served, query: str = "") -> dict[int, bytes]:
    start, end = ends(served)
    status, data = ask(served, f"/all/records?partition=0&start={start}&end={end}{query}")
    assert status == 200, data
    return parsed(data, start, end)


def admin(served: Served, folder: Path, method: str, path: str, body: Any = None) -> Any:
    token = (folder / "token").read_text().strip()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    url = f"http://127.0.0.1:{served.ports['http']}/plugins/admin/api/v1{path}"
    asked = urllib.request.Request(url, data, headers, method=method)
    with urllib.request.urlopen(asked, timeout=60) as found:
        return json.load(found)


def user_properties(packet: int, *pairs: tuple[str, str]) -> Any:
    made: Any = PahoProperties(packet)  # type: ignore[no-untyped-call]
    made.UserProperty = list(pairs)
    return made


def client(served: Served, name: str) -> aiomqtt.Client:
    v5 = aiomqtt.ProtocolVersion.V5
    return aiomqtt.Client("127.0.0.1", served.ports["tcp"], identifier=name, protocol=v5)


def logged(served: Served, event: str) -> Any:
    """Return the last log entry for this event, even if it is older than the last call of `wait_for`."""
    found = [one for one in served.log if one["event"] == event]
    return found[-1] if found else served.wait_for(event)


async def publish(served: Served, first: int, count: int, size: int = 1000) -> None:
    """Publish numbered messages, and wait until all of them are acknowledged."""
    async with client(served, "publisher") as publisher:

        async def one(number: int) -> None:
            properties = user_properties(PacketTypes.PUBLISH, ("key", f"k{number % KEYS}"))
            payload = b"%d " % number + bytes(size)
            await publisher.publish("$queue/log", payload, qos=1, properties=properties)

        numbers = range(first, first + count)
        for start in range(0, count, 20):
            await asyncio.gather(*map(one, numbers[start : start + 20]))


async def consumed(served: Served, group: str, last: int) -> dict[int, bytes]:
    """Consume all messages from the first one on, in a new group. Return the payloads, by the user property `offset`."""
    found: dict[int, bytes] = {}
    pairs = [("consumer-group", group), ("start", "first")]
    properties = user_properties(PacketTypes.SUBSCRIBE, *pairs)
    async with client(served, f"consumer-{group}") as consumer:
        await consumer.subscribe("$queue/log", qos=1, properties=properties)
        async for message in consumer.messages:
            offset = int(dict(message.properties.UserProperty)["offset"])  # type: ignore[union-attr]
            found[offset] = bytes(message.payload)
            if offset == last:
                return found
    raise AssertionError


async def test_compaction_retention_restarts_and_kills(tmp_path: Path) -> None:
    """After each round, readers get the same messages as an MQTT consumer that starts at the same offset."""
    config = write(tmp_path, [COMPACTED])
    log_ids, before, number = set(), (0, 0), 0
    for round_ in range(3):
        with serving("-c", config) as served:
            assert ends(served) == before  # nothing that was readable has disappeared
            await publish(served, number, 450)
            number += 450
            assert ends(served)[1] == number
            first, last = ends(served)
            found = read(served)
            wanted = await consumed(served, f"g{round_}", last - 1)
            # Compaction may remove messages between the two.
            assert wanted.items() <= found.items()
            assert read(served).items() <= found.items()
            half = first + (last - first) // 2
            status, data = ask(served, f"/all/records?partition=0&start={half}&end={last}")
            assert status == 200
            assert parsed(data, half, last).items() <= found.items()
            assert len(found) < last - first or round_ == 0  # there are gaps
            newest = {n % KEYS: n for n in range(number)}
            for one in newest.values():
                assert found[one].startswith(b"%d " % one)
            log_ids.add(facts(served, "/all/offsets")["log_id"])
            before = ends(served)
            if round_ % 2:
                served.signal(signal.SIGKILL)
                served.process.wait(60)
                served.process.returncode = 0  # `serving` expects a clean end otherwise
    assert before[0] > 0
    assert len(log_ids) == 1


async def test_retention_during_a_read(tmp_path: Path) -> None:
    queue = {"name": "log", "type": "stream", "retention": {"bytes": "12MiB"}}
    with serving("-c", write(tmp_path, [queue])) as served:
        await publish(served, 0, 1100, 10_000)
        first, last = ends(served)
        with opened(served, f"/all/records?partition=0&start={first}&end={last}") as answer:
            data = answer.read(100_000)
            answer.fp.raw._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            await publish(served, 1100, 1500, 10_000)
            assert ends(served)[0] > last
            data += answer.read()
        assert len(parsed(data, first, last)) == last - first
        refused = facts(served, f"/all/records?partition=0&start={first}")
        assert (refused["status"], refused["error"]) == (410, "trimmed")
        assert refused["earliest"] == ends(served)[0]
        log_id = facts(served, "/all/offsets")["log_id"]
        body = {"log_id": log_id, "offsets": {"0": first}}
        assert facts(served, "/all/consumers/etl/commit", body)["error"] == "trimmed"


def check_requests(served: Served) -> None:
    """Check the parameters of requests for 5 messages."""
    at = [
        facts(served, f"/all/offsets?timestamp={ms}")["partitions"]["0"]["at"]
        for ms in (0, 1 << 50)
    ]
    assert at == [0, None]
    assert len(read(served, "&topics=%24queue/log")) == 5
    assert read(served, "&topics=%23") == {}  # as in MQTT, it does not match topics with $
    (one,) = (block.parse(ask(served, "/all/records?partition=0&start=3&columns=qos")[1]),)
    assert (one.base, one.count, {column for column, _ in one.buffers}) == (3, 2, {block.QOS})
    for query, error in (
        ("partition=1&start=0", "no_such_partition"),
        ("partition=0&start=6", "beyond_latest"),
        ("partition=0&start=0&colums=qos", "bad_request"),
    ):
        assert facts(served, f"/all/records?{query}")["error"] == error
    body = {"log_id": facts(served, "/all/offsets")["log_id"], "offsets": {"0": 6}}
    assert facts(served, "/all/consumers/etl/commit", body)["error"] == "beyond_latest"


async def test_a_queue_that_is_created_deleted_and_created_again(tmp_path: Path) -> None:
    with serving("-c", write(tmp_path, [])) as served:
        missing = logged(served, "spark_sink.queue_missing")
        assert missing["reason"] == "there is no queue 'log'"
        refused = facts(served, "/all/offsets")
        assert (refused["status"], refused["error"]) == (404, "no_such_stream")
        why = "the stream all serves the queue log: there is no queue 'log'"
        assert refused["message"] == why
        (listed,) = facts(served, "")["streams"]
        assert (listed["queue"], listed["log_id"], listed["missing"]) == ("log", None, why)
        log_ids = []
        for _ in range(2):
            settings = {"type": "stream", "bindings": ["in/#"]}
            admin(served, tmp_path, "POST", "/queues", {"name": "log", "settings": settings})
            assert logged(served, "spark_sink.queue_found")["queue"] == "log"
            await publish(served, 0, 5)
            assert [one.split()[0] for one in read(served).values()] == [
                b"%d" % n for n in range(5)
            ]
            (listed,) = facts(served, "")["streams"]
            assert listed["filters"] == ["$queue/log/#", "in/#"]
            check_requests(served)
            log_ids.append(listed["log_id"])
            body = {"log_id": log_ids[-1], "offsets": {"0": 3}}
            assert facts(served, "/all/consumers/etl/commit", body)["partitions"]["0"]["lag"] == 2
            assert "etl" in facts(served, "/all/consumers")["consumers"]
            if len(log_ids) == 2:
                break
            admin(served, tmp_path, "DELETE", "/queues/log?force=true")
            assert facts(served, "/all/offsets")["message"] == why
            assert not (tmp_path / "queues" / "log").exists()
        assert len(set(log_ids)) == 2
        replaced = facts(served, f"/all/records?partition=0&start=0&log_id={log_ids[0]}")
        assert (replaced["status"], replaced["error"]) == (409, "log_replaced")
        body = {"log_id": log_ids[0], "offsets": {"0": 3}}
        assert facts(served, "/all/consumers/etl/commit", body)["error"] == "log_replaced"


@pytest.mark.parametrize("kind", ["classic", "ephemeral"])
def test_a_queue_of_another_type(tmp_path: Path, kind: str) -> None:
    with serving("-c", write(tmp_path, [{"name": "log", "type": kind}])) as served:
        reason = f"the queue log has the type {kind}, but only a stream can be read"
        assert logged(served, "spark_sink.queue_missing")["reason"] == reason
        assert facts(served, "/all/offsets")["message"].endswith(reason)
        url = f"http://127.0.0.1:{served.ports['http']}/metrics"
        with urllib.request.urlopen(url) as answer:
            metrics = answer.read().decode()
        (line,) = [one for one in metrics.splitlines() if "spark_sink_queue_missing{" in one]
        assert line.endswith(" 1")
        assert 'queue="log"' in line
        (stream,) = [
            one
            for one in admin(served, tmp_path, "GET", "/streams")["items"]
            if one["name"] == "all"
        ]
        assert stream["error"] == reason


def test_without_the_plugin_queues(tmp_path: Path) -> None:
    path = write(tmp_path, [])
    text = json.loads(Path(path).read_text())
    text["plugins"] = [one for one in text["plugins"] if one["use"] != "queues"]
    Path(path).write_text(json.dumps(text))
    with serving("-c", path) as served:
        reason = logged(served, "spark_sink.queue_missing")["reason"]
        assert reason == "no plugin has queues: add the plugin queues to the configuration"
        assert facts(served, "/all/offsets")["message"].endswith(reason)


async def test_a_consumer_keeps_messages_as_a_group_of_the_queue(tmp_path: Path) -> None:
    queue = {
        "name": "log",
        "type": "stream",
        "groups": ["etl"],
        "retention": {"messages": 10, "wait_for_groups": "2GiB"},
    }
    stream = {"name": "all", "queue": "log", "consumers": ["etl", "other"]}
    with serving("-c", write(tmp_path, [queue], stream)) as served:
        problem = logged(served, "spark_sink.group_not_moved")
        assert problem["consumer"] == "other"
        assert problem["reason"] == "the queue log has no group other, only: etl"
        await publish(served, 0, 100)
        assert ends(served) == (0, 100)
        log_id = facts(served, "/all/offsets")["log_id"]
        body = {"log_id": log_id, "offsets": {"0": 60}}
        assert facts(served, "/all/consumers/etl/commit", body)["status"] == 200

    with serving("-c", write(tmp_path, [queue], stream)) as served:
        while ends(served)[0] < 60:
            pass
        assert ends(served) == (60, 100)
        (group,) = admin(served, tmp_path, "GET", "/queues/log")["groups"]
        assert (group["name"], group["unsettled"]) == ("etl", 40)
