"""The engine on a cluster of three real servers: it passes the engines' contract, and survives the loss of a server."""

from collections.abc import Iterator
from itertools import count

import pytest
from engine_contract import Calls, EngineContract, appended, commit, read_all
from hookmq_cluster.engine import Appended, Entry, Refused, Stored, Unavailable
from hookmq_cluster.nats_engine import NatsEngine
from nats_bench import NatsBench
from nats_server import NatsCluster, NatsNode

pytestmark = pytest.mark.slow

_number = count()


@pytest.fixture(scope="module")
def servers() -> Iterator[NatsCluster]:
    """Return running servers."""
    cluster = NatsCluster(3)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def bench(servers: NatsCluster) -> Iterator[NatsBench]:
    """Return engines on a new stream of the servers."""
    servers.start()
    bench = NatsBench(servers.urls, f"c{next(_number)}", 3)
    yield bench
    bench.close()


class TestContract(EngineContract):
    """The contract."""


class Traffic:
    """One node that commits without a pause, with keys and a fence, and another one that follows.

    Each third commit is a single entry, the others are batches. `results` has the result of each commit by its number.
    """

    def __init__(self, bench: NatsBench) -> None:
        self.bench = bench
        self.lane, own = bench.prefix + "lane.a", bench.prefix + "own.a"
        self.writer = bench.engine()
        self.reader = bench.engine()
        self.results: dict[int, Appended | Refused | Unavailable] = {}
        self.seen: list[Stored] = []
        self.running = True
        self._own = own
        self._fence = appended(bench, self.writer, Entry(own, b"", (own, 0)))
        self.reader.follow([self.lane], 0, self.seen.append)
        self._next(0)

    def _next(self, number: int) -> None:
        text = b"%d" % number
        entries = [Entry(self.lane, text, (self._own, self._fence))]
        entries += [Entry(self.lane, text)] * (number % 3)

        def done(result: Appended | Refused | Unavailable) -> None:
            self.results[number] = result
            if self.running:
                self._next(number + 1)

        self.writer.commit(entries, done, f"key/{number}")

    def wait(self, more: int, seconds: float = 40.0) -> None:
        """Wait for the results of `more` commits."""
        wanted = len(self.results) + more
        self.bench.wait(lambda: len(self.results) >= wanted, seconds)

    def judge(self) -> None:
        """End, and check that each commit is in the log once, in order, and that the reader saw all of them."""
        self.running = False
        count = len(self.results)
        self.bench.wait(lambda: len(self.results) > count, 40.0)
        assert all(isinstance(one, Appended) for one in self.results.values()), [
            one for one in self.results.values() if not isinstance(one, Appended)
        ]
        stored = read_all(self.bench, self.writer, self.lane)
        wanted = [
            b"%d" % number for number in range(len(self.results)) for _ in range(1 + number % 3)
        ]
        assert [one.data for one in stored] == wanted
        at = 0
        for number in range(len(self.results)):
            at += 1 + number % 3
            assert self.results[number] == Appended(stored[at - 1].sequence)
            first = stored[at - 1 - number % 3].sequence
            assert stored[at - 1].sequence - first == number % 3
        self.bench.wait(lambda: len(self.seen) >= len(stored), 40.0)
        assert self.seen == stored


def leader(bench: NatsBench, engine: NatsEngine, servers: NatsCluster) -> NatsNode:
    """Return the server that leads the stream."""
    while True:
        info = bench.loop.run_until_complete(engine._call(f"STREAM.INFO.{bench.stream}", None))
        name = (info.get("cluster") or {}).get("leader")
        for node in servers.nodes:
            if node.name == name:
                return node
        bench.pass_time(0.1)


@pytest.mark.timeout(180)
def test_the_leader_is_killed_during_commits(bench: NatsBench, servers: NatsCluster) -> None:
    traffic = Traffic(bench)
    traffic.wait(30)
    for _ in range(3):
        node = leader(bench, traffic.reader, servers)
        node.kill()
        traffic.wait(30)
        servers.start()
        traffic.wait(30)
    traffic.judge()


@pytest.mark.timeout(180)
def test_the_leader_is_paused_and_comes_back(bench: NatsBench, servers: NatsCluster) -> None:
    traffic = Traffic(bench)
    traffic.wait(30)
    for _ in range(2):
        node = leader(bench, traffic.reader, servers)
        node.pause()
        traffic.wait(30)
        node.resume()
        traffic.wait(30)
    traffic.judge()


@pytest.mark.timeout(180)
def test_all_servers_are_killed_at_once(bench: NatsBench, servers: NatsCluster) -> None:
    traffic = Traffic(bench)
    traffic.wait(30)
    for node in servers.nodes:
        node.kill()
    bench.wait(lambda: not traffic.writer.connected())
    servers.start()
    traffic.wait(30)
    # The servers elect a leader of JetStream after those of its streams.
    bench.wait(
        lambda: not isinstance(first_page(bench, traffic.reader, traffic.lane), Unavailable), 60.0
    )
    traffic.judge()


@pytest.mark.timeout(180)
def test_the_server_of_a_node_is_killed(bench: NatsBench, servers: NatsCluster) -> None:
    engine, other = bench.engine(), bench.engine()
    told: list[bool] = []
    heard: list[bytes] = []
    subject = bench.prefix.replace("hmq.", "hmqc.") + "node.a"
    engine.on_connection(told.append)
    engine.listen(subject, lambda _, data: heard.append(data))
    node = next(node for node in servers.nodes if node.port == engine._client.info["port"])
    node.kill()
    bench.wait(lambda: told == [False, True], 20.0)
    assert engine.connected()
    bench.wait(other.connected)

    def arrives() -> bool:
        other.send(subject, b"1")
        bench.pass_time(0.1)
        return bool(heard)

    bench.wait(arrives, 20.0)
    assert isinstance(
        commit(bench, engine, Entry(bench.prefix + "lane.a", b""), key="k", seconds=30.0), Appended
    )


def first_page(
    bench: NatsBench, engine: NatsEngine, subject: str, after: int = 0
) -> list[Stored] | Unavailable:
    """Read a page of the messages after a sequence."""
    calls = Calls(bench)
    engine.read([subject], after, calls)
    page: list[Stored] | Unavailable = calls.one(20.0)
    return page


@pytest.mark.timeout(180)
def test_without_a_majority_commits_are_unavailable(bench: NatsBench, servers: NatsCluster) -> None:
    engine = bench.engine((servers.nodes[0].url,))
    lane = bench.prefix + "lane.a"
    appended(bench, engine, Entry(lane, b"0"))
    for node in servers.nodes[1:]:
        node.kill()
    assert isinstance(commit(bench, engine, Entry(lane, b"1"), seconds=20.0), Unavailable)
    # A leader notices the loss of its majority after some seconds. Until then, it says that nothing follows.
    bench.wait(lambda: isinstance(first_page(bench, engine, lane, 1000), Unavailable), 60.0)
    calls, exact = Calls(bench), Calls(bench)
    engine.last(lane, exact, True)
    assert isinstance(exact.one(20.0), Unavailable | Stored)
    assert engine.connected()
    two = [Entry(lane, b"2")] * 2
    engine.commit(two, calls, "key")
    bench.pass_time(3.0)
    assert calls.all == []
    servers.start()
    result = calls.one(30.0)
    while not isinstance(
        result, Appended
    ):  # on a slow machine, the servers need longer than a commit is repeated
        result = commit(bench, engine, *two, key="key", seconds=30.0)
    # The servers elect a leader of JetStream after those of its streams.
    bench.wait(lambda: not isinstance(first_page(bench, engine, lane), Unavailable), 60.0)
    stored = [one.data for one in read_all(bench, engine, lane)]
    # The commit without a key has an unknown result: it may have been made.
    assert stored in ([b"0", b"2", b"2"], [b"0", b"1", b"2", b"2"])


@pytest.mark.timeout(180)
def test_servers_that_are_not_configured_are_found() -> None:
    servers = NatsCluster(3, advertise=True)
    try:
        servers.start()
        bench = NatsBench(servers.urls, "found", 3)
        bench.engine()
        servers.nodes[2].kill()
        engine = bench.engine((servers.nodes[0].url,))
        servers.start()
        bench.wait(lambda: len(engine._client.found()) >= 2, 20.0)
        told: list[bool] = []
        engine.on_connection(told.append)
        servers.nodes[0].kill()
        bench.wait(lambda: told == [False, True], 20.0)
        result = commit(bench, engine, Entry(bench.prefix + "lane.a", b""), key="k", seconds=40.0)
        assert isinstance(result, Appended)
        bench.close()
    finally:
        servers.close()
