"""See the cluster and move lanes, through the API and on the command line."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from admin_cluster import TwoNodes
from admin_site import Site
from hookmq_testing import PluginInstance, make_plugin, run_command
from hookmq_toolkit.cluster import ClusterError


@pytest.fixture(scope="module")
def cluster() -> PluginInstance:
    """Return a plugin that offers a cluster."""
    return make_plugin(TwoNodes, None, "cluster")


@pytest.fixture(scope="module")
def site(cluster: PluginInstance, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Run a broker with the plugin."""
    made = Site(tmp_path_factory.mktemp("admin"), (cluster,))
    yield made
    made.close()


@pytest.fixture
def nodes(site: Site, cluster: PluginInstance, monkeypatch: pytest.MonkeyPatch) -> TwoNodes:
    """Return the plugin, and let commands reach the broker."""
    monkeypatch.setenv("HOOKMQ_ADMIN_URL", site.url)
    monkeypatch.setenv("HOOKMQ_ADMIN_TOKEN", site.tokens["admin"])
    found = cluster.plugin
    assert isinstance(found, TwoNodes)
    found.state, found.refusal = "ready", None
    found.moves.clear()
    found.drains.clear()
    found.next_states, found.problem = [], ""
    monkeypatch.setattr("hookmq_admin.cluster_cli.INTERVAL", 0.0)
    return found


def test_status_is_a_table_or_json(
    site: Site, nodes: TwoNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = site.ask("GET", "/cluster", "viewer").json
    assert shown["lanes"][2] == {
        "name": "c", "owner": "", "live": False, "sessions": None, "bytes": None,
    }  # fmt: skip
    assert run_command(["cluster", "status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == shown
    assert run_command(["cluster", "status"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["name", "plant"],
        ["node", "a"],
        ["state", "ready"],
        ["lease", "15"],
        ["lease_age", "1.25"],
        [],
        ["node", "address"],
        ["a", "10.0.0.1:7222"],
        ["b", "10.0.0.2:7222"],
        [],
        ["lane", "owner", "live", "sessions", "bytes"],
        ["a", "a", "yes", "3", "900"],
        ["b", "b", "yes", "-", "-"],
        ["c", "-", "no", "-", "-"],
    ]


@pytest.mark.parametrize("option", [[], ["--json"]])
def test_status_of_a_node_that_is_not_ready_exits_with_1(
    nodes: TwoNodes, capsys: pytest.CaptureFixture[str], option: list[str]
) -> None:
    nodes.state = "isolated"
    assert run_command(["cluster", "status", *option]) == 1
    assert "isolated" in capsys.readouterr().out


def test_move(site: Site, nodes: TwoNodes, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["cluster", "move", "c", "b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"lane": "c", "owner": "b"}
    assert nodes.moves == [("c", "b")]
    assert (site.audit()[0]["action"], site.audit()[0]["status"]) == ("moveLane", 200)


@pytest.mark.parametrize(
    ("refusal", "status"),
    [
        (ClusterError("missing", "no live node 'x'; found: b", "node"), 404),
        (ClusterError("conflict", "node 'b' is stopping", "node"), 409),
        (ClusterError("failed", "lane 'c' was not moved: the log does not answer"), 503),
    ],
)
def test_refused_moves(
    site: Site,
    nodes: TwoNodes,
    capsys: pytest.CaptureFixture[str],
    refusal: ClusterError,
    status: int,
) -> None:
    nodes.refusal = refusal
    answer = site.ask("POST", "/cluster/lanes/c/move", json={"node": "x"})
    assert (answer.status, answer.json["detail"]) == (status, str(refusal))
    assert answer.json.get("field", "") == refusal.field
    assert run_command(["cluster", "move", "c", "x"]) == 1
    assert str(refusal) in capsys.readouterr().err


def test_drain_and_undrain(site: Site, nodes: TwoNodes, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["cluster", "drain", "a", "--over", "1m", "--moved", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"node": "a", "state": "drained"}
    assert nodes.drains == [("a", 60.0, True)]
    assert (site.audit()[0]["action"], site.audit()[0]["status"]) == ("drainNode", 200)
    assert run_command(["cluster", "undrain", "a", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"node": "a", "state": "ready"}
    assert (site.audit()[0]["action"], site.audit()[0]["status"]) == ("undrainNode", 200)
    assert run_command(["cluster", "drain", "a", "--no-wait", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"node": "a", "state": "draining"}
    assert nodes.drains[1:] == [("a", 10.0, False)]


@pytest.mark.parametrize("verb", ["drain", "undrain"])
def test_a_drain_is_refused_or_fails(
    site: Site, nodes: TwoNodes, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    nodes.problem = "lane 'a' was not given to node 'b': the log does not answer"
    assert run_command(["cluster", verb, "a"]) == 1
    assert nodes.problem in capsys.readouterr().err
    nodes.refusal = ClusterError("conflict", "this is node 'a'; ask node 'b' itself", "node")
    assert run_command(["cluster", verb, "b"]) == 1
    assert "ask node 'b' itself" in capsys.readouterr().err
    assert site.ask("POST", f"/cluster/nodes/b/{verb}").status == 409


def test_a_drain_that_takes_too_long(
    nodes: TwoNodes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hookmq_admin.cluster_cli.PATIENCE", -1.0)
    assert run_command(["cluster", "drain", "a", "--over", "0s"]) == 1
    assert "node 'a' is still draining" in capsys.readouterr().err


def test_a_broker_without_a_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path)
    monkeypatch.setenv("HOOKMQ_ADMIN_URL", site.url)
    monkeypatch.setenv("HOOKMQ_ADMIN_TOKEN", site.tokens["viewer"])
    try:
        assert run_command(["cluster", "status"]) == 1
        assert "the plugin cluster is not configured" in capsys.readouterr().err
    finally:
        site.close()
