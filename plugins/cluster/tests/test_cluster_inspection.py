"""Test `hookmq cluster check`, on real NATS servers. It reports what a node would find, and changes nothing."""

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from engine_contract import appended
from hookmq_cluster.engine import Entry
from hookmq_cluster.filling import encode_mark
from hookmq_cluster.inspection import stream_findings
from hookmq_cluster.membership import Member, encode_member
from hookmq_cluster.names import Names
from hookmq_cluster.nats_engine import NatsEngine
from hookmq_testing.commands import run_command
from nats_bench import NatsBench
from nats_server import NatsCluster
from pages import blocks
from ports import free_port
from workspace import ROOT

NAMES = Names("hookmq")
CONFIG: dict[str, Any] = {
    "version": 1,
    "listeners": [{"name": "tcp", "bind": "127.0.0.1:0"}],
    "auth": {"default": "allow"},
    "authz": {"default": "allow"},
}
[ACCOUNT] = [
    one.text
    for one in blocks(ROOT / "docs" / "how-to" / "cluster.md")
    if one.text.startswith("accounts {")
]
USER = {"user": "hookmq", "password": "change-me"}
Findings = dict[str, list[tuple[str, str]]]


class Checked:
    """Runs the command with a configuration."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._file = folder / "node.yaml"
        self._capsys = capsys

    def __call__(self, code: int, *servers: str, **config: Any) -> Findings:
        """Run the command, which must end with `code`. Return its findings by part, each with its state."""
        config = {"node": "a", "servers": servers, "replicas": 1, **config}
        document = {**CONFIG, "plugins": [{"use": "cluster", "config": config}]}
        self._file.write_text(json.dumps(document))
        assert run_command(["cluster", "check", "-c", str(self._file), "--json"]) == code
        text = self._capsys.readouterr()
        assert text.err == ""
        found: Findings = {}
        for line in text.out.splitlines():
            one = json.loads(line)
            found.setdefault(one["part"], []).append((one["state"], one["text"]))
        states = [state for part in found.values() for state, _ in part]
        assert (code == 1) == ("failed" in states)
        return found


@pytest.fixture
def check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Checked:
    return Checked(tmp_path, capsys)


def started(count: int = 1, more: str = "") -> NatsCluster:
    """Return running servers."""
    servers = NatsCluster(count, more)
    try:
        servers.start()
    except BaseException:
        servers.close()
        raise
    return servers


@pytest.fixture(scope="module")
def nats() -> Iterator[NatsCluster]:
    """Return a server whose monitoring shows that it writes each commit to disk."""
    with closing(started(more=f'http: "127.0.0.1:{free_port()}"')) as servers:
        yield servers


@pytest.fixture
def bench(nats: NatsCluster) -> Iterator[NatsBench]:
    bench = NatsBench(nats.urls, "hookmq", 1)
    yield bench
    bench.close()


def opened(bench: NatsBench) -> dict[str, Any] | None:
    """Return JetStream's information about the stream, or None if it does not exist."""
    engine = bench.new()
    found = bench.loop.run_until_complete(engine.open(10.0, create=False))
    engine.close(lambda: None)
    return found


def monitoring(nats: NatsCluster) -> str:
    """Return the address of a server's monitoring."""
    text = nats.nodes[0]._file.read_text()
    return "http://" + text.partition('http: "')[2].partition('"')[0]


def test_a_new_cluster(check: Checked, nats: NatsCluster, bench: NatsBench) -> None:
    found = check(0, *nats.urls)
    [(state, text)] = found["server"]
    assert state == "ok"
    assert f"{nats.urls[0]}: nats-server 2." in text
    assert found["permission"] == [("ok", "the user may use all subjects of the cluster")]
    text = "HOOKMQ_hookmq does not exist; the first node creates it with 1 copy"
    assert found["stream"] == [("ok", text)]
    [(state, text)] = found["sync"]
    assert (state, text.startswith("not verified")) == ("note", True)
    assert opened(bench) is None


def delete(engine: NatsEngine, bench: NatsBench) -> None:
    """Delete the stream."""
    answers: list[bytes] = []
    engine._client.request(
        f"$JS.API.STREAM.DELETE.{bench.stream}", b"", lambda _, data: answers.append(data or b"")
    )
    bench.wait(lambda: answers)


def test_a_cluster_with_nodes(check: Checked, nats: NatsCluster, bench: NatsBench) -> None:
    engine = bench.engine()
    try:
        for node in ("a", "b"):
            lease = encode_member(Member(node, "boot", f"{node}:7222"))
            appended(bench, engine, Entry(NAMES.lease(node), lease))
        before = opened(bench)
        found = check(0, *nats.urls)
        assert "HOOKMQ_hookmq exists with 1 copy" in found["stream"][0][1]
        assert "has 2 entries" in found["stream"][0][1]
        assert found["node"][0][0] == "note"
        assert "a is running, with the address a:7222" in found["node"][0][1]
        assert found["node"][1] == ("ok", "other live nodes: b")
        assert check(0, *nats.urls, node="c")["node"] == [
            ("ok", "no other process is node c"), ("ok", "other live nodes: a, b"),
        ]  # fmt: skip
        after = opened(bench)
        assert before is not None
        assert after is not None
        assert before["state"] == after["state"]
        assert before["config"] == after["config"]
        found = check(1, *nats.urls, replicas=3)
        assert "num_replicas is 1, not 3" in found["stream"][0][1]
        appended(bench, engine, Entry(NAMES.filling, encode_mark("hookmq cluster import")))
        assert "is incomplete" in check(1, *nats.urls)["stream"][1][1]
    finally:
        delete(engine, bench)


def test_several_copies_on_one_server(check: Checked, nats: NatsCluster) -> None:
    found = check(1, *nats.urls, replicas=3)
    assert "3 copies of the log are wanted, but" in found["stream"][0][1]


def test_one_copy_on_several_servers(check: Checked) -> None:
    with closing(started(3)) as servers:
        found = check(1, *servers.urls)
        assert [state for state, _ in found["server"]] == ["ok"] * 3
        assert "the NATS servers are a cluster (hookmq-test)" in found["stream"][0][1]
        found = check(0, *servers.urls, allow_single_replica=True)
        assert "creates it with 1 copy" in found["stream"][0][1]


def test_a_stream_without_a_majority() -> None:
    late = {"name": "n1", "current": False}
    good = {"name": "n2", "current": True}
    for replicas, states in (([good, good], ["ok"]), ([late, good], ["ok", "note"])):
        found = stream_findings({"cluster": {"replicas": replicas}}, "S", 3)
        assert [one.state for one in found] == states
    found = stream_findings({"cluster": {"replicas": [late, {**good, "offline": True}]}}, "S", 3)
    assert [one.state for one in found] == ["ok", "note", "note", "failed"]
    assert "no majority: 2 of 3 copies" in found[-1].text


def test_sync(check: Checked, nats: NatsCluster, tmp_path: Path) -> None:
    shown = monitoring(nats)
    found = check(0, *nats.urls, monitoring=[shown, "http://127.0.0.1:1"])
    assert found["sync"][0] == ("ok", f"{shown}: each commit is written to disk")
    assert found["sync"][1][0] == "note"
    assert "not verified: " in found["sync"][1][1]
    assert found["sync"][1:] == check(0, *nats.urls, monitoring=["http://127.0.0.1:1"])["sync"]
    assert check(0, *nats.urls, sync="lazy")["sync"][0][0] == "ok"
    lazy = f'http: "127.0.0.1:{free_port()}"\njetstream {{ store_dir: "{tmp_path}", sync_interval: "2m" }}'
    with closing(started(more=lazy)) as servers:
        found = check(1, *servers.urls, monitoring=[monitoring(servers)])
        assert "does not sync each commit to disk; set sync_interval: always" in found["sync"][0][1]


def test_a_server_without_jetstream(check: Checked) -> None:
    with closing(started(more="jetstream: disabled")) as servers:
        found = check(1, *servers.urls)
    assert found.keys() == {"server"}
    assert "JetStream is not enabled on this server" in found["server"][0][1]


def test_servers_that_cannot_be_reached(check: Checked, nats: NatsCluster) -> None:
    lost = f"nats://127.0.0.1:{free_port()}"
    found = check(0, lost, *nats.urls)
    assert [state for state, _ in found["server"]] == ["ok", "note"]
    assert f"{lost}: connection refused" in found["server"][1][1]
    found = check(1, lost)
    assert found.keys() == {"server"}


def test_an_old_server(check: Checked, nats: NatsCluster) -> None:
    """The old server is simulated: only one version is installed."""
    info = {"version": "2.12.8", "jetstream": True, "headers": True, "max_payload": 1 << 20}

    def greet(listener: socket.socket) -> None:
        for _ in range(2):
            one, _address = listener.accept()
            with one:
                one.sendall(b"INFO %b\r\nPONG\r\n" % json.dumps(info).encode())
                while one.recv(4096):
                    pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=greet, args=(listener,))
        thread.start()
        old = f"nats://127.0.0.1:{listener.getsockname()[1]}"
        found = check(1, old)
        assert "nats-server has the version 2.12.8; at least 2.14" in found["server"][0][1]
        # A cluster must not have such a server either: a node may have to use it one day.
        found = check(1, *nats.urls, old)
        assert [state for state, _ in found["server"]] == ["ok", "failed"]
        thread.join()


def test_wrong_credentials(check: Checked) -> None:
    with closing(started(more=ACCOUNT)) as servers:
        found = check(1, *servers.urls, user="hookmq", password="wrong")
        assert "Authorization Violation; check the user" in found["server"][0][1]
        found = check(0, *servers.urls, **USER)
        assert found["permission"][0][0] == "ok"
    assert "change-me" not in repr(found)


@pytest.mark.parametrize(
    "subject",
    [
        "hmq.hookmq.>", "$JS.API.STREAM.CREATE.HOOKMQ_hookmq", "$JS.API.STREAM.INFO.HOOKMQ_hookmq",
        "$JS.API.STREAM.MSG.GET.HOOKMQ_hookmq", "$JS.API.STREAM.PURGE.HOOKMQ_hookmq", "$JS.API.DIRECT.GET.HOOKMQ_hookmq",
        "$JS.API.DIRECT.GET.HOOKMQ_hookmq.>", "$JS.API.CONSUMER.CREATE.HOOKMQ_hookmq.>",
        "$JS.API.CONSUMER.DELETE.HOOKMQ_hookmq.>", "$JS.FC.HOOKMQ_hookmq.>", "_INBOX.>",
    ],
)  # fmt: skip
def test_each_missing_permission_is_found(check: Checked, subject: str) -> None:
    assert f'"{subject}"' in ACCOUNT
    with closing(started(more=ACCOUNT.replace(f'"{subject}"', '"unused"'))) as servers:
        found = check(1, *servers.urls, **USER)
    [(_, text)] = found["permission"]
    assert "Permissions Violation for" in text
    assert subject.rstrip(">") in text


def test_all_missing_permissions_are_listed(check: Checked) -> None:
    account = ACCOUNT.replace('"hmqc.hookmq.>"', '"unused"').replace("$JS.FC", "unused")
    with closing(started(more=account)) as servers:
        found = check(1, *servers.urls, **USER)
    texts = " ".join(text for _, text in found["permission"])
    for words in (
        'Publish to "hmqc.hookmq.trial"', 'Subscription to "hmqc.hookmq.all"',
        'Subscription to "hmqc.hookmq.node.a"', 'Publish to "$JS.FC.HOOKMQ_hookmq.trial"',
    ):  # fmt: skip
        assert words in texts
    assert len(found["permission"]) == 4


def test_attempts_change_nothing_in_a_replicated_stream(check: Checked) -> None:
    with closing(started(3)) as servers:
        bench = NatsBench(servers.urls, "hookmq", 3)
        with closing(bench):
            engine = bench.engine()
            for number in range(3):
                appended(bench, engine, Entry(NAMES.own("x"), b"%d" % number))
            before = opened(bench)
            check(0, *servers.urls, replicas=3)
            after = opened(bench)
            assert before is not None
            assert after is not None
            assert before["state"] == after["state"]
            appended(bench, engine, Entry(NAMES.own("x"), b"more"))


def test_workers_have_their_own_server(check: Checked) -> None:
    [(state, text)] = check(0, workers=2, replicas=3)["server"]
    assert state == "ok"
    assert "the broker starts nats-server 2." in text


def test_workers_with_servers_are_several_nodes(
    check: Checked, nats: NatsCluster, bench: NatsBench
) -> None:
    engine = bench.engine()
    try:
        found = check(0, *nats.urls, workers=2, node="site")
        assert [text for _, text in found["node"][:2]] == [
            "no other process is node site-w0", "no other process is node site-w1",
        ]  # fmt: skip
    finally:
        delete(engine, bench)


def test_the_report_for_people(
    tmp_path: Path, nats: NatsCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "node.yaml"
    config = {"servers": nats.urls, "replicas": 3}
    file.write_text(json.dumps({**CONFIG, "plugins": [{"use": "cluster", "config": config}]}))
    assert run_command(["cluster", "check", "-c", str(file)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ok      server      nats://")
    assert any(line.startswith("FAILED  stream      replicas: 3 copies") for line in lines)
