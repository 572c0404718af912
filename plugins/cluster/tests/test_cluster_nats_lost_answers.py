"""Commits whose answers are lost: the server stored them, or not, and the engine must find out which.

A proxy between the engine and a real server drops one direction, then cuts the connection.
"""

import asyncio
from collections.abc import Iterator
from itertools import count

import pytest
from engine_contract import Calls, appended, read_all
from hookmq_cluster.engine import Appended, Entry, Refused, Unavailable
from hookmq_cluster.nats_engine import NatsEngine
from nats_bench import NatsBench
from nats_server import NatsCluster

_number = count()


class Proxy:
    """Passes bytes on to a server. It can drop requests or answers, and cut the connections."""

    def __init__(self, bench: NatsBench, port: int) -> None:
        self.drop_requests = False
        self.drop_answers = False
        self._bench = bench
        self._port = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._server = bench.loop.run_until_complete(
            asyncio.start_server(self._connected, "127.0.0.1", 0)
        )

    @property
    def url(self) -> str:
        """The address for the engine."""
        return f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Close all connections. New ones work without faults."""
        self.drop_requests = self.drop_answers = False
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def close(self) -> None:
        """Refuse new connections, and close the others."""
        self._server.close()
        self.cut()
        self._bench.pass_time(0.05)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, down = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers |= {writer, down}
        await asyncio.gather(self._pass(reader, down, True), self._pass(upstream, writer, False))

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, requests: bool
    ) -> None:
        try:
            while data := await reader.read(65536):
                if not (self.drop_requests if requests else self.drop_answers):
                    writer.write(data)
        except OSError:
            pass
        finally:
            writer.close()


@pytest.fixture(scope="module", params=[1, pytest.param(3, marks=pytest.mark.slow)])
def servers(request: pytest.FixtureRequest) -> Iterator[NatsCluster]:
    """Return running servers: one, or a cluster of three."""
    cluster = NatsCluster(request.param)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def bench(servers: NatsCluster) -> Iterator[NatsBench]:
    """Return engines on a new stream."""
    bench = NatsBench(servers.urls, f"c{next(_number)}", len(servers.nodes))
    yield bench
    bench.close()


@pytest.fixture
def proxy(bench: NatsBench, servers: NatsCluster) -> Iterator[Proxy]:
    """Return a proxy before a server."""
    # The engine's stream and its first connection need a moment on a new cluster.
    bench.engine()
    proxy = Proxy(bench, servers.nodes[0].port)
    yield proxy
    proxy.close()


def entries_of(bench: NatsBench, fence: int, kind: str) -> list[Entry]:
    """Return a commit."""
    own, lane = bench.prefix + "own.a", bench.prefix + "lane.a"
    return {
        "one": [Entry(lane, b"x", (own, fence))],
        "several": [Entry(lane, b"x", (own, fence)), Entry(lane, b"y"), Entry(lane, b"z")],
        "the fence": [Entry(own, b"x", (own, fence), replace=True)],
        "the fence and more": [Entry(own, b"x", (own, fence), replace=True), Entry(lane, b"y")],
    }[kind]


KINDS = ["one", "several", "the fence", "the fence and more"]


def fenced(bench: NatsBench, engine: NatsEngine) -> int:
    """Own the lane, and return the fence."""
    own = bench.prefix + "own.a"
    return appended(bench, engine, Entry(own, b"", (own, 0)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_commit_that_was_stored_is_found_by_its_key(
    bench: NatsBench, proxy: Proxy, kind: str
) -> None:
    engine, other = bench.engine((proxy.url,)), bench.engine()
    fence = fenced(bench, engine)
    entries = entries_of(bench, fence, kind)
    proxy.drop_answers = True
    calls = Calls(bench)
    engine.commit(entries, calls, "key")
    bench.wait(lambda: len(read_all(bench, other, bench.prefix + ">", after=fence)) == len(entries))
    assert calls.all == []
    proxy.cut()
    assert calls.one(20.0) == Appended(fence + len(entries))
    bench.pass_time(0.3)
    assert len(read_all(bench, other, bench.prefix + ">", after=fence)) == len(entries)


@pytest.mark.parametrize("kind", KINDS)
def test_a_commit_that_was_not_stored_is_made(bench: NatsBench, proxy: Proxy, kind: str) -> None:
    engine, other = bench.engine((proxy.url,)), bench.engine()
    fence = fenced(bench, engine)
    entries = entries_of(bench, fence, kind)
    proxy.drop_requests = True
    calls = Calls(bench)
    engine.commit(entries, calls, "key")
    bench.pass_time(0.3)
    assert read_all(bench, other, bench.prefix + ">", after=fence) == []
    proxy.cut()
    assert calls.one(20.0) == Appended(fence + len(entries))
    assert len(read_all(bench, other, bench.prefix + ">", after=fence)) == len(entries)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stored", [True, False])
def test_a_lane_that_was_taken_meanwhile(
    bench: NatsBench, proxy: Proxy, kind: str, stored: bool
) -> None:
    engine, other = bench.engine((proxy.url,)), bench.engine()
    fence = fenced(bench, engine)
    entries = entries_of(bench, fence, kind)
    proxy.drop_answers, proxy.drop_requests = stored, not stored
    calls = Calls(bench)
    engine.commit(entries, calls, "key")
    own = bench.prefix + "own.a"
    if stored:
        bench.wait(
            lambda: len(read_all(bench, other, bench.prefix + ">", after=fence)) == len(entries)
        )
        current = fence + 1 if "fence" in kind else fence
    else:
        bench.pass_time(0.2)
        current = fence
    appended(bench, other, Entry(own, b"taken", (own, current), replace=True))
    proxy.cut()
    result = calls.one(20.0)
    if stored:
        assert result == Appended(fence + len(entries))
    else:
        assert isinstance(result, Refused)
        assert len(read_all(bench, other, bench.prefix + ">")) == 1


def test_without_a_key_the_result_is_unknown_at_once(bench: NatsBench, proxy: Proxy) -> None:
    engine = bench.engine((proxy.url,))
    proxy.drop_answers = True
    calls, after = Calls(bench), Calls(bench)
    engine.commit([Entry(bench.prefix + "lane.a", b"1")], calls)
    engine.commit([Entry(bench.prefix + "lane.a", b"2")], after)
    bench.pass_time(0.2)
    proxy.cut()
    assert isinstance(calls.one(3.0), Unavailable)
    assert isinstance(after.one(10.0), Appended)


def test_order_is_kept_over_many_lost_answers(bench: NatsBench, proxy: Proxy) -> None:
    engine = bench.engine((proxy.url,))
    lane = bench.prefix + "lane.a"
    results = Calls(bench)
    for number in range(60):
        engine.commit([Entry(lane, b"%d" % number)] * (1 + number % 2), results, f"key/{number}")
    rounds = 0
    while len(results.all) < 60:
        rounds += 1
        proxy.drop_answers = bool(rounds % 2)
        proxy.drop_requests = not rounds % 2
        bench.pass_time(0.03)
        proxy.cut()
        wanted = len(results.all) + 5
        bench.wait(lambda wanted=wanted: len(results.all) >= min(wanted, 60), 20.0)  # type: ignore[misc]
    assert rounds > 5
    assert all(isinstance(one, Appended) for one in results.all)
    stored = read_all(bench, engine, lane)
    assert [one.data for one in stored] == [
        b"%d" % number for number in range(60) for _ in range(1 + number % 2)
    ]
    assert [one.last for one in results.all] == [
        stored[-1 + sum(1 + each % 2 for each in range(number + 1))].sequence
        for number in range(60)
    ]
