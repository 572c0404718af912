"""Test the read API with a real HTTP client. The API follows PROTOCOL.md and returns only committed messages."""

import json
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import Any

import pytest
from aiohttp import ClientSession, web
from hookmq_spark_sink import block, files, packed
from hookmq_spark_sink.api import Api, _chunk

BOOT = bytes(range(16))
TOKEN, OTHER, BLIND = "reader-token-0123456789", "other-token-0123456789", "blind-token-0123456789"


class Client:
    """A client that sends requests and parses the responses."""

    def __init__(self, kept: Any, api: Api, session: ClientSession, url: str) -> None:
        self.kept = kept
        self.api = api
        self.session = session
        self.url = url
        self.token = TOKEN

    async def get(self, path: str, **query: Any) -> tuple[int, Any]:
        """Return the status and the body of a response. The body is JSON or blocks."""
        pairs = [
            (name, str(one))
            for name, value in query.items()
            for one in (value if isinstance(value, list) else [value])
        ]
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        async with self.session.get(self.url + path, params=pairs, headers=headers) as answer:
            body = await answer.read()
            if answer.content_type == "application/json":
                return answer.status, json.loads(body)
            assert answer.content_type == "application/vnd.hookmq.blocks"
            assert answer.headers["HookMQ-Log-Id"] == self.kept.stream.log.id
            return answer.status, blocks_of(body)

    async def records(self, stream: str = "all", **query: Any) -> tuple[int, Any]:
        return await self.get(
            f"/v1/streams/{stream}/records", **{"partition": 0, "start": 0} | query
        )

    async def rows(self, **query: Any) -> list[tuple[int, bytes]]:
        """Return the offsets and payloads in a response, limited to the requested range. The response's blocks must
        have no gaps.
        """
        status, found = await self.records(**query)
        assert status == 200, found
        start, end = query.get("start", 0), query.get("end", 1 << 60)
        assert not found or found[0].base <= start
        for before, after in pairwise(found):
            assert before.end == after.base
        rows = [row for one in found for row in block.rows(one)]
        return [(row["offset"], row["payload"]) for row in rows if start <= row["offset"] < end]

    async def send(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self.token}"}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.request(
            method, self.url + path, data=data, headers=headers
        ) as answer:
            return answer.status, await answer.json()

    async def commit(self, name: str = "etl", **offsets: int) -> tuple[int, Any]:
        body = {
            "log_id": self.kept.stream.log.id,
            "offsets": {place[1:]: offset for place, offset in offsets.items()},
        }
        return await self.send("POST", f"/v1/streams/all/consumers/{name}/commit", body)


def blocks_of(data: bytes) -> list[block.Block]:
    found = []
    at = 0
    while at < len(data):
        length = block.read_head(data, at).length
        found.append(block.parse(data[at : at + length]))
        at += length
    return found


@pytest.fixture
async def make(keep: Callable[..., Any]) -> AsyncIterator[Callable[..., Any]]:
    """Return a function that creates a stream and an API client for it."""
    runners: list[web.AppRunner] = []
    sessions: list[ClientSession] = []

    async def made(options: dict[str, Any] | None = None, **config: Any) -> Client:
        kept = keep(**config)
        entries = (
            (TOKEN, ["*"], True),
            (OTHER, ["another"], True),
            (BLIND, ["all"], False),
        )
        stream = kept.stream
        given = {
            "boot": BOOT.hex(),
            "access": [
                {"token": token, "common_name": "", "streams": streams, "commit": commit}
                for token, streams, commit in entries
            ],
            "max_response": 64 << 20,
            "max_requests": 8,
            "timeout": 5.0,
            "streams": [
                {
                    "name": "all",
                    "folder": str(stream.folder),
                    "partitions": stream.config.partitions,
                    "filters": ["#"],
                    "consumers": list(stream.config.consumers),
                }
            ],
            **(options or {}),
        }
        api = Api(given)
        runner = web.AppRunner(api.application())
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        session = ClientSession()
        runners.append(runner)
        sessions.append(session)
        return Client(kept, api, session, f"http://127.0.0.1:{runner.addresses[0][1]}")

    yield made
    for session in sessions:
        await session.close()
    for runner in runners:
        await runner.cleanup()


Make = Callable[..., Any]


def test_a_long_search_sends_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 1.0, 2.5, 3.0, 4.0, 5.0])
    monkeypatch.setattr("hookmq_spark_sink.api.monotonic", lambda: next(times))
    found = iter([b"a", b"b", b"c"])
    assert [_chunk(found), _chunk(found), _chunk(iter([]))] == [b"ab", b"c", b""]


async def test_offsets_and_records(make: Make) -> None:
    client = await make(partitions=1)
    log_id = client.kept.stream.log.id
    assert await client.get("/v1/streams") == (
        200,
        {"streams": [{"name": "all", "log_id": log_id, "partitions": 1, "filters": ["#"]}]},
    )
    assert await client.rows() == []
    for number in range(10):
        client.kept.publish(b"%d" % number, b"and")
    assert await client.get("/v1/streams/all/offsets") == (
        200,
        {"stream": "all", "log_id": log_id, "partitions": {"0": {"earliest": 0, "latest": 20}}},
    )
    every = [(n, b"and" if n % 2 else b"%d" % (n // 2)) for n in range(20)]
    for start in range(0, 21, 3):
        for end in range(start, 21, 4):
            assert await client.rows(start=start, end=end) == every[start:end]
    assert await client.rows(start=20) == []


async def test_uncommitted_messages_are_never_served(make: Make) -> None:
    client = await make()
    client.kept.publish(b"1")
    client.kept.publish(b"2", commit=False)
    assert await client.rows() == [(0, b"1")]
    status, error = await client.records(start=0, end=2)
    assert (status, error["error"], error["latest"]) == (416, "beyond_latest", 1)


async def test_it_sees_what_comes_across_segments_merging_and_retention(make: Make) -> None:
    client = await make(
        segment_size=4096, max_bytes=1 << 16, retention_bytes=8000, retention_time=0
    )
    expected: list[tuple[int, bytes]] = []
    for number in range(100):
        client.kept.publish(b"%d" % number * 30)
        expected.append((number, b"%d" % number * 30))
        earliest = client.kept.stream.earliest[0]
        assert await client.rows(start=earliest) == expected[earliest:]
    assert client.kept.stream.counts.merged > 0
    earliest = client.kept.stream.earliest[0]
    assert earliest > 0
    assert await client.records(start=earliest - 1) == (
        410,
        {
            "error": "trimmed", "message": f"offsets begin at {earliest}", "log_id": client.kept.stream.log.id,
            "partition": 0, "start": earliest - 1, "earliest": earliest, "latest": 100,
        },
    )  # fmt: skip


async def test_records_below_the_earliest_offset_are_reported_as_trimmed(make: Make) -> None:
    client = await make(segment_size=4096, max_bytes=1 << 16, retention_bytes=0)
    for number in range(60):
        client.kept.publish(b"%d" % number * 100)
    stream = client.kept.stream
    earliest = stream.summaries[1].parts[0][0]
    files.write_trimmed(stream.folder, stream.log.id, {0: earliest})
    stream.log.trim(stream.summaries[1].base)
    status, body = await client.records()
    assert (status, body["error"], body["earliest"]) == (410, "trimmed", earliest)
    assert len(await client.rows(start=earliest)) == 60 - earliest


async def test_topics_are_filtered_and_every_offset_is_accounted_for(make: Make) -> None:
    client = await make()
    for number in range(30):
        client.kept.publish(b"%d" % number, topic=f"s/{number % 3}/x")
        client.kept.publish(b"other", b"other", topic="far/away")
    status, found = await client.records(topics="s/+/x")
    assert status == 200
    rows = [row["payload"] for one in found for row in block.rows(one)]
    assert rows == [b"%d" % number for number in range(30)]
    assert (found[0].base, found[-1].end) == (0, 90)
    assert [row[1] for row in await client.rows(topics=["s/1/x", "s/2/#"], start=3, end=50)] == [
        b"%d" % n for n in range(1, 17) if n % 3
    ]
    status, found = await client.records(topics="nobody", start=5, end=70)
    assert [(one.base, one.end, one.count, one.sparse) for one in found] == [(5, 70, 0, True)]
    assert await client.rows(topics="#", end=90) == await client.rows(end=90)


async def test_columns_are_left_out(make: Make) -> None:
    client = await make()
    client.kept.publish(b"1", b"2")
    _, (one,) = await client.records(columns="topic,qos")
    assert {key[0] for key in one.buffers} == {block.TOPIC, block.QOS}
    _, (one,) = await client.records(columns="offset")
    assert (one.buffers, one.count) == ({}, 2)
    _, (one,) = await client.records(columns="payload", topics="t/1", start=1)
    assert {key[0] for key in one.buffers} == {block.PAYLOAD, block.OFFSET}


async def raw(client: Client, newest: str | None, **query: Any) -> tuple[int, bytes]:
    """Return the status and bytes of the response for a client that reads block versions up to `newest`."""
    url = f"{client.url}/v1/streams/all/records"
    pairs = {"partition": "0", "start": "0"} | {name: str(one) for name, one in query.items()}
    headers = {"Authorization": f"Bearer {TOKEN}"}
    if newest is not None:
        headers["HookMQ-Block-Version"] = newest
    async with client.session.get(url, params=pairs, headers=headers) as answer:
        return answer.status, await answer.read()


def versions(data: bytes) -> list[tuple[int, list[bytes]]]:
    """Return the version and the payloads of each block."""
    found, at = [], 0
    while at < len(data):
        after = at + block.read_head(data, at).length
        one = packed.parse(data[at:after])
        payloads = [payload or b"" for payload in block.column(one, block.PAYLOAD)]
        found.append((block.read_head(data, at).version, payloads))
        at = after
    return found


async def test_only_clients_that_know_compressed_blocks_get_them(make: Make) -> None:
    client = await make(segment_size=4096, partitions=1)
    sent = []
    for number in range(60):
        sent.append(b"%03d" % number * 50)
        client.kept.publish(sent[-1], topic="t/1" if number % 2 else "t/2")
    client.kept.look()
    for newest, expected in ((None, {1}), ("1", {1}), ("2", {1, 2}), ("3", {1, 2})):
        for columns in ({}, {"columns": "payload"}):
            status, data = await raw(client, newest, **columns)
            assert status == 200
            found = versions(data)
            assert {version for version, _ in found} == expected
            assert [one for _, payloads in found for one in payloads] == sent
        _, data = await raw(client, newest, topics="t/1", columns="payload")
        assert [one for _, payloads in versions(data) for one in payloads] == sent[1::2]
        _, data = await raw(client, newest, topics="t/+")
        assert [one for _, payloads in versions(data) for one in payloads] == sent
        assert {version for version, _ in versions(data)} == expected
        _, data = await raw(client, newest, topics="t/3", columns="payload")
        assert [one for _, payloads in versions(data) for one in payloads] == []
    for wrong in ("0", "two", "-1", "9" * 11):
        status, data = await raw(client, wrong)
        assert (status, json.loads(data)["parameter"]) == (400, "HookMQ-Block-Version")


async def test_an_answer_is_bounded_and_goes_on_where_it_ended(make: Make) -> None:
    client = await make({"max_response": 3000})
    for number in range(20):
        client.kept.publish(b"%d" % number * 300)
    at, answers = 0, 0
    while at < 20:
        status, found = await client.records(start=at)
        assert status == 200
        assert found[0].base == at
        assert sum(len(block.assemble(one)) for one in found) < 3000 + 1500
        at, answers = found[-1].end, answers + 1
    assert answers > 3
    _, found = await client.records(max_bytes=1)
    assert len(found) == 1


async def test_offsets_by_timestamp(make: Make) -> None:
    client = await make(partitions=2)
    times = []
    for _ in range(6):
        client.kept.runtime.advance(10)
        times.append(int(client.kept.runtime.time() * 1000))
        client.kept.publish(b"a", b"b", topic="t/1")
    place = next(p for p in "01" if client.kept.stream.latest[int(p)])

    async def at(timestamp: int) -> int | None:
        status, found = await client.get("/v1/streams/all/offsets", timestamp=timestamp)
        assert status == 200
        assert found["partitions"]["10"[int(place)]]["at"] is None
        answer: int | None = found["partitions"][place]["at"]
        return answer

    assert await at(0) == 0
    for number, time in enumerate(times):
        assert await at(time) == 2 * number
        assert await at(time + 1) == (2 * number + 2 if number < 5 else None)
    assert await at((1 << 63) - 1) is None


@pytest.mark.parametrize(
    ("query", "status", "code", "parameter"),
    [
        ({"partition": "x"}, 400, "bad_request", "partition"),
        ({"start": "-1"}, 400, "bad_request", "start"),
        ({"start": "9" * 30}, 400, "bad_request", "start"),
        ({"start": "٣"}, 400, "bad_request", "start"),
        ({"start": [1, 2]}, 400, "bad_request", "start"),
        ({"end": "ten"}, 400, "bad_request", "end"),
        ({"start": 2, "end": 1}, 400, "bad_request", "end"),
        ({"topics": "a/#/b"}, 400, "bad_request", "topics"),
        ({"topics": ["a"] * 65}, 400, "bad_request", "topics"),
        ({"columns": "topic,key"}, 400, "bad_request", "columns"),
        ({"offset": 1}, 400, "bad_request", "offset"),
        ({"partition": 1}, 404, "no_such_partition", None),
        ({"start": 4}, 416, "beyond_latest", None),
        ({"log_id": "0" * 32}, 409, "log_replaced", None),
    ],
)
async def test_invalid_queries_are_refused_with_the_parameter(
    make: Make, query: dict[str, Any], status: int, code: str, parameter: str | None
) -> None:
    client = await make()
    client.kept.publish(b"1", b"2", b"3")
    found, body = await client.records(**query)
    assert (found, body["error"], body.get("parameter")) == (status, code, parameter)
    assert body["message"]


async def test_requests_without_a_valid_token_are_refused(make: Make) -> None:
    client = await make()
    client.token = ""
    assert (await client.records())[0] == 401
    assert await client.get("/v1/health") == (200, {"status": "ok"})
    for token in ("wrong", TOKEN[:-1], TOKEN + "x", "ä"):
        client.token = token
        status, body = await client.get("/v1/streams")
        assert (status, body["error"]) == (401, "unauthorized")
    client.token = OTHER
    for stream in ("all", "nowhere"):
        status, body = await client.records(stream)
        assert (status, body["error"], body["stream"]) == (403, "forbidden", stream)
    assert await client.get("/v1/streams") == (200, {"streams": []})
    client.token = BLIND
    assert (await client.records())[0] == 200
    assert (await client.commit(p0=0))[0] == 403
    client.token = TOKEN
    assert (await client.records("nowhere"))[0] == 404
    assert (await client.get("/v2/streams"))[1]["error"] == "not_found"
    assert (await client.send("POST", "/v1/streams"))[1]["error"] == "method_not_allowed"


async def test_consumers(make: Make) -> None:
    client = await make(partitions=1, consumers=("declared",))
    client.kept.publish(*[b"x"] * 10)
    assert (await client.get("/v1/streams/all/consumers/etl"))[0] == 404
    status, body = await client.commit(p0=4)
    assert status == 200
    assert body["partitions"] == {"0": {"committed": 4, "latest": 10, "lag": 6}}
    assert await client.get("/v1/streams/all/consumers/etl") == (200, body)
    assert {one.name: one.lag for one in client.kept.stream.consumers()} == {
        "declared": 10,
        "etl": 6,
    }
    _, known = await client.get("/v1/streams/all/consumers")
    assert {name: one["declared"] for name, one in known["consumers"].items()} == {
        "declared": True, "etl": False,
    }  # fmt: skip
    assert (await client.commit(p0=2))[1]["partitions"]["0"]["lag"] == 8
    assert (await client.commit(p0=11))[0] == 416
    assert (await client.commit(p1=0))[0] == 404
    assert await client.send("DELETE", "/v1/streams/all/consumers/etl") == (200, {"deleted": True})
    assert (await client.send("DELETE", "/v1/streams/all/consumers/etl"))[0] == 404


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"[" * 60000,
        {"log_id": "x"},
        {"log_id": "x", "offsets": {}},
        {"log_id": "x", "offsets": {"0": "1"}},
        {"log_id": "x", "offsets": {"0": True}},
        {"log_id": "x", "offsets": {"-1": 1}},
        {"log_id": "x", "offsets": {"0": -1}},
        {"log_id": 1, "offsets": {"0": 1}},
        {"log_id": "x", "offsets": {"0": 1}, "more": 1},
    ],
)
async def test_commits_that_make_no_sense(make: Make, body: Any) -> None:
    client = await make()
    status, found = await client.send("POST", "/v1/streams/all/consumers/etl/commit", body)
    assert (status, found["error"], found["parameter"]) == (400, "bad_request", "body")


async def test_commits_to_another_log_and_too_large_ones(make: Make) -> None:
    client = await make()
    path = "/v1/streams/all/consumers/etl/commit"
    status, body = await client.send("POST", path, {"log_id": "0" * 32, "offsets": {"0": 0}})
    assert (status, body["error"], body["log_id"]) == (
        409, "log_replaced", client.kept.stream.log.id,
    )  # fmt: skip
    assert (await client.send("POST", path, b"x" * 70000))[0] == 413
    bad = "/v1/streams/all/consumers/.hidden/commit"
    assert (await client.send("POST", bad, {}))[1]["parameter"] == "consumer"


async def test_damage_is_told_and_not_served(make: Make) -> None:
    client = await make()
    for number in range(3):
        client.kept.publish(b"%d" % number * 50)
    path = client.kept.stream.log.segments[0].path
    content = bytearray(path.read_bytes())
    content[content.index(b"HqAB")] ^= 1
    path.write_bytes(content)
    status, body = await client.records()
    assert (status, body["error"]) == (500, "damaged")


async def test_without_a_broker_that_says_how_far_nothing_is_served(make: Make) -> None:
    client = await make({"boot": bytes(16).hex()})
    client.kept.publish(b"1")
    status, body = await client.records()
    assert (status, body["error"]) == (503, "unavailable")


async def test_too_many_at_once_are_asked_to_come_again(make: Make) -> None:
    client = await make({"max_requests": 0})
    client.kept.publish(b"1")
    status, body = await client.records()
    assert (status, body["error"]) == (503, "unavailable")
    assert (await client.get("/v1/streams/all/offsets"))[0] == 200


async def test_dead_letters_are_added_up(make: Make) -> None:
    client = await make()
    client.kept.publish(b"1")
    path = "/v1/streams/all/consumers/silver/report"

    async def report(batch: int, count: int, query: str = "q") -> int:
        body = {"query": query, "batch": batch, "dead_letters": count}
        status, found = await client.send("POST", path, body)
        assert status == 200, found
        total: int = found["dead_letters"]
        return total

    assert await report(0, 3) == 3
    assert await report(0, 3) == 3  # sent again
    assert await report(4, 2) == 5
    assert await report(3, 9) == 5
    assert await report(0, 1, "after a new checkpoint") == 6
    _, found = await client.get("/v1/streams/all/consumers")
    assert found["consumers"]["silver"]["dead_letters"] == 6
    assert found["consumers"]["silver"]["updated"] is None
    assert (await client.commit("silver", p0=1))[0] == 200
    assert await report(1, 1, "after a new checkpoint") == 7
    [known] = client.kept.stream.consumers()
    assert (known.name, known.lag, known.dead_letters) == ("silver", 0, 7)
    assert known.updated
    client.token = BLIND
    assert (await client.send("POST", path, {}))[0] == 403


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        [],
        {},
        {"query": "q", "batch": 0},
        {"query": "", "batch": 0, "dead_letters": 0},
        {"query": "q" * 129, "batch": 0, "dead_letters": 0},
        {"query": 1, "batch": 0, "dead_letters": 0},
        {"query": "q", "batch": -1, "dead_letters": 0},
        {"query": "q", "batch": True, "dead_letters": 0},
        {"query": "q", "batch": 0, "dead_letters": 1.5},
        {"query": "q", "batch": 0, "dead_letters": 1 << 63},
        {"query": "q", "batch": 0, "dead_letters": 0, "more": 1},
    ],
)
async def test_reports_that_make_no_sense(make: Make, body: Any) -> None:
    client = await make()
    status, found = await client.send("POST", "/v1/streams/all/consumers/etl/report", body)
    assert (status, found["error"], found["parameter"]) == (400, "bad_request", "body")
    assert client.kept.stream.consumers() == []
