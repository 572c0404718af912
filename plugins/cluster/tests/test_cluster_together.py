"""Test which node clients that belong together use."""

from pathlib import Path

import pytest
from hookmq.cluster_api import Here, Transfer
from hookmq.plugin import ConfigError
from hookmq_cluster.config import ClusterConfig
from hookmq_cluster.relay_counters import RelayCounters
from hookmq_cluster.together import Together, choose
from hookmq_cluster.transfer import Transfers, socket_path

NODES = ("a", "b", "c")


def log(level: str, event: str, /, **fields: object) -> None:
    pass


def together(folder: Path, node: str, pattern: str = r"^(site\d+)-") -> Together:
    others = [one for one in NODES if one != node]
    transfers = Transfers(folder, "c", node, RelayCounters(log))
    return Together(pattern, node, transfers, lambda: others)


def test_all_nodes_choose_the_same_one(tmp_path: Path) -> None:
    for node in NODES:
        socket_path(tmp_path, node).touch()
    stayed = dict.fromkeys(NODES, 0)
    for site in range(60):
        places = {node: together(tmp_path, node).place(f"site{site}-{node}") for node in NODES}
        [home] = [node for node, place in places.items() if isinstance(place, Here)]
        stayed[home] += 1
        for place in places.values():
            if not isinstance(place, Here):
                assert isinstance(place, Transfer)
                assert isinstance(place.otherwise, Here)
    assert min(stayed.values()) > 5  # all nodes get some


@pytest.mark.parametrize("client_id", ["", "other", "site-x", "xsite1-a"])
def test_other_clients_stay(tmp_path: Path, client_id: str) -> None:
    for node in NODES:
        socket_path(tmp_path, node).touch()
    for node in NODES:
        assert together(tmp_path, node).place(client_id) == Here()


def test_a_long_client_id_is_not_searched(tmp_path: Path) -> None:
    for node in NODES:
        socket_path(tmp_path, node).touch()
    slow = [together(tmp_path, node, "^(.+)-(?:.+)-x") for node in NODES]
    assert not all(isinstance(one.place("-" * 253 + "--x"), Here) for one in slow)
    assert all(isinstance(one.place("-" * 65_000 + "--x"), Here) for one in slow)


def test_an_empty_text_is_none(tmp_path: Path) -> None:
    for node in NODES:
        socket_path(tmp_path, node).touch()
        for pattern in ("^(x*)", "^(x)?"):
            assert together(tmp_path, node, pattern).place("client") == Here()


def test_nodes_on_other_machines_get_none(tmp_path: Path) -> None:
    socket_path(tmp_path, "a").touch()
    for site in range(20):
        assert together(tmp_path, "a").place(f"site{site}-x") == Here()


def test_only_the_texts_of_a_node_that_leaves_move() -> None:
    for number in range(200):
        before = choose(str(number), NODES)
        after = choose(str(number), ("a", "b"))
        assert after == before or before == "c"


def test_any_text_has_a_node() -> None:
    assert choose("\ud800", NODES) in NODES


def test_the_choice_never_changes() -> None:
    # Nodes of different versions must agree, also after an upgrade.
    assert [choose(str(number), NODES) for number in range(8)] == list("baabcaba")


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({}, "together: workers or transfers is required"),
        ({"workers": 2}, None),
        ({"transfers": Path("x")}, None),
        ({"workers": 2, "together": "("}, r"together: '\(': missing \), unterminated subpattern"),
        ({"workers": 2, "together": "a"}, "together: expected one group in 'a', found 0"),
        ({"workers": 2, "together": "(a)(b)"}, r"together: expected one group .*, found 2"),
    ],
)
def test_the_setting_is_checked(settings: dict[str, object], error: str | None) -> None:
    config = {"together": "(a)", **settings}
    if error is None:
        assert ClusterConfig(**config).together == "(a)"  # type: ignore[arg-type]
        return
    with pytest.raises(ConfigError, match=error):
        ClusterConfig(**config)  # type: ignore[arg-type]
