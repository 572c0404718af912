"""Test the console's page of a cluster in a real browser, with brokers on a real NATS server."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest
from admin_browser import AXE, Open
from nats_server import NatsServer
from serving import Served, serving

ENDED = r"ERR_CONNECTION_REFUSED"
"""What a page that is still open logs when its broker has ended, as it does at the end of a test."""
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("console")]

CONFIG = """\
version: 1
listeners:
  - {{name: tcp, bind: "127.0.0.1:0"}}
  - {{name: http, type: http, bind: "127.0.0.1:0"}}
auth: {{default: allow}}
authz: {{default: allow}}
plugins:
  - use: cluster
    config: {{servers: ["{nats}"], node: {name}, lease: 3s, replicas: 1, allow_single_replica: true}}
  - use: admin
    config: {{first_token_file: {folder}/{name}.token}}
"""


@dataclass
class Console:
    """A console's address and its tokens."""

    url: str
    tokens: dict[str, str]


class Nodes:
    """Starts brokers of one cluster."""

    def __init__(self, folder: Path, nats: str) -> None:
        self._folder = folder
        self._nats = nats

    def start(self, name: str) -> AbstractContextManager[Served]:
        """Run the node `name` until the block ends."""
        file = self._folder / f"{name}.yaml"
        file.write_text(CONFIG.format(nats=self._nats, name=name, folder=self._folder))
        return serving("-c", str(file))

    def console(self, name: str, served: Served) -> Console:
        """Return the console of a running node."""
        token = (self._folder / f"{name}.token").read_text().strip()
        return Console(f"http://127.0.0.1:{served.ports['http']}/plugins/admin/", {"admin": token})


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    """Run a NATS server."""
    nats = NatsServer()
    yield Nodes(tmp_path, nats.url)
    nats.close()


def test_an_administrator_sees_the_cluster_and_moves_a_lane(tab: Open, nodes: Nodes) -> None:
    with nodes.start("a") as a:
        view = tab(ENDED, at=nodes.console("a", a)).sign_in()
        with nodes.start("b"):
            view.go("cluster", "Cluster")
            view.count("Nodes", 2)
            view.count("Lanes", 2)
            view.sees(view.page.get_by_text("ready", exact=True))
            assert view.rows("Lanes").get_by_role("button").count() == 0
            assert not AXE.is_file() or not view.violations({})
        view.sees(
            view.rows("Lanes").filter(has_text="aopen").nth(1)
        )  # it has the lane of the node that stopped
        with nodes.start("c") as c:
            view.page.get_by_role("button", name="Move the lane b").click()
            view.page.get_by_label("To").select_option("c")
            view.confirm("Move")
            view.says("Done: Move the lane b.")
            other = tab(ENDED, at=nodes.console("c", c)).sign_in()
            other.go("cluster", "Cluster")
            row = other.rows("Lanes").filter(
                has=other.page.get_by_role("cell", name="b", exact=True)
            )
            other.sees(row.get_by_role("cell", name="c", exact=True))
            view.page.get_by_role("button", name="Drain", exact=True).click()
            view.confirm("Drain", Seconds="0")
            view.says("Done: Drain the node.")
            view.page.get_by_role("button", name="Put back").click()
            view.sees(view.page.get_by_text("drained", exact=True))
            view.confirm("Put back")
            view.sees(view.page.get_by_text("ready", exact=True))


def test_a_broker_alone_says_so(tab: Open) -> None:
    view = tab(r"status of 409").sign_in()
    view.go("cluster", "Cluster")
    view.sees(view.page.get_by_text("This broker is not in a cluster."))
