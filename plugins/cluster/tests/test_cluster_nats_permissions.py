"""The NATS user of the manual: it has all permissions that the cluster needs, and no others."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from engine_contract import Calls, appended
from hookmq_cluster.engine import Appended, Entry, Refused, Stored, Unavailable
from hookmq_cluster.engine_errors import EngineError
from hookmq_cluster.nats_engine import NatsEngine
from nats_bench import NatsBench
from nats_server import NatsCluster
from pages import blocks
from workspace import ROOT

PAGE = ROOT / "docs" / "how-to" / "cluster.md"
[ACCOUNT] = [one.text for one in blocks(PAGE) if one.text.startswith("accounts {")]
PERMISSIONS = re.findall(r'"([^"]*[.][^"]*)"', ACCOUNT)
ME: dict[str, Any] = {"user": "hookmq", "password": "change-me"}
OTHER = """\
  OTHER { jetstream: enabled, users: [{ user: other, password: other }] }
}
"""


class Server:
    """A NATS server with the manual's account, and another account. `bench` has engines of the cluster `hookmq`."""

    def __init__(self, account: str = ACCOUNT) -> None:
        self.nats = NatsCluster(1, account.rstrip().removesuffix("}") + OTHER)
        self.nats.start()
        self.bench = NatsBench(self.nats.urls, "hookmq", 1)

    def new(self, **options: Any) -> NatsEngine:
        """Return an engine that is not open."""
        return self.bench.new(**(options or ME))

    def engine(self) -> NatsEngine:
        """Return an open engine."""
        made = self.new()
        self.bench.loop.run_until_complete(made.open(10.0))
        self.bench.engines.append(made)
        return made

    def restart(self, old: str, new: str) -> None:
        """Kill the server, replace a text in its configuration, and start it again."""
        node = self.nats.nodes[0]
        node.kill()
        text = node._file.read_text()
        assert old in text
        node._file.write_text(text.replace(old, new))
        self.nats.start()

    def change(self, engine: NatsEngine, old: str, new: str) -> None:
        """Restart the server with another configuration, and wait for the connection of `engine`."""
        told: list[bool] = []
        engine.on_connection(told.append)
        self.restart(old, new)
        self.bench.wait(lambda: told == [False, True])

    def denied(self) -> list[str]:
        """Return the errors of the server that were logged."""
        return [
            str(fields["error"])
            for _, event, fields in self.bench.logged
            if event == "cluster.nats_error"
        ]

    def close(self) -> None:
        """Close everything."""
        self.bench.close()
        self.nats.close()


@pytest.fixture
def server() -> Iterator[Server]:
    """Return a server."""
    made = Server()
    yield made
    made.close()


def test_the_page_names_all_permissions() -> None:
    assert len(PERMISSIONS) == 13
    assert {"_INBOX.>", "$JS.FC.HOOKMQ_hookmq.>"} <= set(PERMISSIONS)


def test_an_engine_needs_no_other_permission(server: Server) -> None:
    bench = server.bench
    engine, other = server.engine(), server.engine()
    lane, own = bench.prefix + "lane.a", bench.prefix + "own.a"
    followed: list[bytes] = []
    heard: list[bytes] = []
    end = other.follow([bench.prefix + "lane.*"], 0, lambda one: followed.append(one.data))
    other.listen("hmqc.hookmq.node.b", lambda _, data: heard.append(data))
    fence = appended(bench, engine, Entry(own, b"a", (own, 0)))
    payload = bytes(50_000)
    for _ in range(60):  # enough for flow control
        appended(bench, engine, *[Entry(lane, payload, (own, fence))] * 3)
    bench.wait(lambda: len(followed) == 180, 30.0)
    engine.send("hmqc.hookmq.node.b", b"hello")
    bench.wait(lambda: heard == [b"hello"])
    last, exact, page = Calls(bench), Calls(bench), Calls(bench)
    engine.last(lane, last)
    engine.last(own, exact, exact=True)
    engine.read([lane, own], 0, page)
    assert isinstance(last.one(), Stored)
    assert exact.one().data == b"a"
    assert page.one()
    trimmed = Calls(bench)
    engine.trim(lane, fence + 100, trimmed)
    assert trimmed.one() is None
    end()
    bench.pass_time(0.1)
    assert server.denied() == []


@pytest.mark.parametrize(
    "subject",
    [
        "other", "hmq.another.own.a", "hmqc.another.all", "$JS.API.STREAM.DELETE.HOOKMQ_hookmq",
        "$JS.API.STREAM.UPDATE.HOOKMQ_hookmq", "$JS.API.STREAM.LIST", "$JS.API.STREAM.CREATE.ANOTHER",
        "$JS.API.STREAM.INFO.ANOTHER", "$JS.API.STREAM.SNAPSHOT.HOOKMQ_hookmq", "$SYS.REQ.SERVER.PING",
    ],
)  # fmt: skip
def test_other_subjects_are_denied(server: Server, subject: str) -> None:
    engine = server.engine()
    engine.send(subject, b"{}")
    server.bench.wait(server.denied)
    assert server.denied() == [f'Permissions Violation for Publish to "{subject}"']
    assert engine.connected()


@pytest.mark.parametrize("subject", [">", "hmq.hookmq.>", "hmqc.another.all", "$JS.EVENT.>"])
def test_other_subscriptions_are_denied(server: Server, subject: str) -> None:
    server.engine().listen(subject, lambda _subject, _data: None)
    server.bench.wait(server.denied)
    assert f'Permissions Violation for Subscription to "{subject}"' in server.denied()[0]


def test_other_accounts_do_not_see_the_cluster(server: Server) -> None:
    bench = server.bench
    engine = server.engine()
    appended(bench, engine, Entry(bench.prefix + "lane.a", b"secret"))
    stranger = server.new(user="other", password="other")
    heard: list[bytes] = []
    bench.loop.run_until_complete(stranger._client.open(10.0))
    stranger.listen(">", lambda _, data: heard.append(data))
    answers: list[bytes] = []
    stranger._client.request(
        "$JS.API.STREAM.NAMES", b"", lambda _, data: answers.append(data or b"")
    )
    bench.wait(lambda: answers)
    assert json.loads(answers[0])["streams"] is None
    engine.send("hmqc.hookmq.all", b"secret")
    appended(bench, engine, Entry(bench.prefix + "lane.a", b"secret"))
    bench.pass_time(0.2)
    assert not [one for one in heard if b"secret" in one]
    stranger._client.close()


def without(subject: str) -> str:
    """Return the account without one permission."""
    assert f'"{subject}"' in ACCOUNT
    return ACCOUNT.replace(f'"{subject}"', '"unused"')


@pytest.mark.parametrize(
    "subject",
    ["$JS.API.STREAM.INFO.HOOKMQ_hookmq", "$JS.API.STREAM.CREATE.HOOKMQ_hookmq", "_INBOX.>"],
)
def test_a_broker_says_which_permission_is_missing(subject: str) -> None:
    server = Server(without(subject))
    with pytest.raises(EngineError, match="Permissions Violation for") as error:
        server.bench.loop.run_until_complete(server.new().open(20.0))
    assert subject.removesuffix(">") in str(error.value)
    assert "change-me" not in str(error.value) + repr(server.bench.logged)
    server.close()


def commit_of(bench: NatsBench, engine: NatsEngine) -> Calls:
    calls = Calls(bench)
    engine.commit([Entry(bench.prefix + "lane.a", b"x")], calls)
    return calls


def read_of(bench: NatsBench, engine: NatsEngine) -> Calls:
    calls = Calls(bench)
    engine.read([bench.prefix + "lane.a"], 0, calls)
    return calls


def last_of(bench: NatsBench, engine: NatsEngine) -> Calls:
    calls = Calls(bench)
    engine.last(bench.prefix + "lane.a", calls, exact=True)
    return calls


def trim_of(bench: NatsBench, engine: NatsEngine) -> Calls:
    calls = Calls(bench)
    engine.trim(bench.prefix + "lane.a", 2, calls)
    return calls


@pytest.mark.slow
@pytest.mark.parametrize(
    ("subject", "call"),
    [
        ("hmq.hookmq.>", commit_of),
        ("$JS.API.DIRECT.GET.HOOKMQ_hookmq", read_of),
        ("$JS.API.STREAM.MSG.GET.HOOKMQ_hookmq", last_of),
        ("$JS.API.STREAM.PURGE.HOOKMQ_hookmq", trim_of),
    ],
)
def test_without_a_permission_the_engine_is_unavailable_until_it_is_granted(
    subject: str, call: Callable[[NatsBench, NatsEngine], Calls]
) -> None:
    server = Server(without(subject))
    bench = server.bench
    engine = server.engine()
    answer = call(bench, engine).one(10.0)
    assert isinstance(answer, Unavailable)
    assert "Permissions Violation for Publish" in answer.reason
    server.change(engine, '"unused"', f'"{subject}"')
    assert not isinstance(call(bench, engine).one(10.0), Unavailable)
    server.close()


def test_a_password_that_changes_is_reported_until_it_is_right_again(server: Server) -> None:
    bench = server.bench
    engine = server.engine()
    server.restart("change-me", "another")
    told = ("warning", "cluster.nats_unreachable")
    bench.wait(
        lambda: "Authorization Violation" in repr([one for one in bench.logged if one[:2] == told])
    )
    calls = Calls(bench)
    engine.commit([Entry(bench.prefix + "lane.a", b"x")], calls, "key")
    server.restart("another", "change-me")
    assert isinstance(calls.one(20.0), Appended)
    assert "change-me" not in repr(bench.logged)
    assert [one for one in bench.logged if one[1] == "cluster.nats_error"] == []


def test_a_server_that_accepts_only_smaller_messages_is_not_used(server: Server) -> None:
    bench = server.bench
    engine = server.engine()
    server.restart("accounts {", "max_payload: 65536\naccounts {")
    told = ("warning", "cluster.nats_unreachable")
    problem = "max_payload is 65536; at least 1048576 is required on all servers"
    bench.wait(lambda: problem in repr([one for one in bench.logged if one[:2] == told]))
    calls = Calls(bench)
    engine.commit([Entry(bench.prefix + "lane.a", bytes(500_000))], calls, "key")
    bench.pass_time(0.2)
    assert calls.all == []
    server.restart("max_payload: 65536\n", "")
    assert isinstance(calls.one(20.0), Appended)
    with pytest.raises(ValueError, match="an entry of 2000000 bytes"):
        engine.commit([Entry(bench.prefix + "lane.a", bytes(2_000_000))], calls)


@pytest.mark.slow
def test_a_deleted_stream_is_unavailable_and_never_made_again(server: Server) -> None:
    bench = server.bench
    engine = server.engine()
    own = bench.prefix + "own.a"
    fence = appended(bench, engine, Entry(own, b"a", (own, 0)))
    engine.follow([own], 0, lambda _: None)
    server.change(engine, '"$JS.FC', '"$JS.API.STREAM.DELETE.HOOKMQ_hookmq", "$JS.FC')
    answers: list[bytes] = []
    engine._client.request(
        "$JS.API.STREAM.DELETE.HOOKMQ_hookmq", b"", lambda _, data: answers.append(data or b"")
    )
    bench.wait(lambda: answers)
    calls = Calls(bench)
    engine.commit([Entry(bench.prefix + "lane.a", b"x", (own, fence))], calls)
    assert isinstance(calls.one(10.0), Unavailable)
    told = ("warning", "cluster.follow_delayed", {"reason": "stream not found"})
    bench.wait(lambda: told in bench.logged)
    # A new stream does not have the fence, so the node learns that it lost its lane.
    server.engine()
    refused = Calls(bench)
    engine.commit([Entry(bench.prefix + "lane.a", b"x", (own, fence))], refused)
    assert isinstance(refused.one(10.0), Refused)
