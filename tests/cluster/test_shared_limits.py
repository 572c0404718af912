"""A ban that one node of a cluster makes applies to all nodes, and shared limits are divided."""

from collections.abc import Iterator
from typing import Any

import pytest
from cluster_world import ClusterWorld
from hookmq.mqtt_api import Puback
from hookmq_ratelimit.plugin import _RUNNING, RateLimitPlugin
from hookmq_testing import HookRecorder, make_plugin


def start(world: ClusterWorld, name: str, **config: Any) -> None:
    """Start a node with the plugin ratelimit, and another one that can ask for bans."""
    _RUNNING.clear()  # all nodes of a world have one runtime, so this would look like a reload
    limits = make_plugin(RateLimitPlugin, config, "ratelimit")
    world.start(name, plugins=(limits, HookRecorder("on_event", id="guard")))


def emit(world: ClusterWorld, name: str, event: str, **fields: object) -> None:
    """Ask a node for a ban, or for its end."""
    world.nodes[name].handle("guard").emit(f"ratelimit.{event}", **fields)
    world.settle()


@pytest.fixture(autouse=True)
def nothing_runs() -> Iterator[None]:
    """Forget the plugins of killed nodes."""
    yield
    _RUNNING.clear()


@pytest.fixture
def world() -> Iterator[ClusterWorld]:
    """Return two nodes."""
    world = ClusterWorld()
    for name in ("a", "b"):
        start(world, name)
    yield world
    world.close()


def test_a_ban_applies_to_all_nodes_and_to_later_ones(world: ClusterWorld) -> None:
    online = world.connect("b", "pump")
    emit(world, "a", "ban", client_id="pump", seconds=600, reason="tampered with")
    online.expect_disconnect(0x96)
    start(world, "c")
    for name in ("a", "b", "c"):
        world.connect(name, "pump", expect=0x8A)
        world.connect(name, "other")
    world.advance(600.0)
    for name in ("a", "b", "c"):
        world.connect(name, "pump")


def test_a_ban_is_lifted_on_all_nodes(world: ClusterWorld) -> None:
    emit(world, "a", "ban", client_id="pump", seconds=600)
    emit(world, "b", "unban", client_id="pump")
    for name in ("a", "b"):
        world.connect(name, "pump")


def test_a_ban_survives_the_restart_of_all_nodes(world: ClusterWorld) -> None:
    emit(world, "a", "ban", client_id="pump", seconds=3600)
    world.stop_together()
    start(world, "b")
    world.connect("b", "pump", expect=0x8A)


def test_a_longer_ban_of_another_node_counts(world: ClusterWorld) -> None:
    emit(world, "a", "ban", client_id="pump", seconds=60)
    emit(world, "b", "ban", client_id="pump", seconds=600)
    world.advance(120.0)
    world.connect("a", "pump", expect=0x8A)


def test_flapping_on_one_node_bans_on_the_other_one() -> None:
    world = ClusterWorld()
    for name in ("a", "b"):
        start(world, name, flapping={"after": "3/min", "duration": 600})
    for _ in range(4):
        world.connect("a", "wild", expect=None)
    world.settle()
    world.connect("b", "wild", expect=0x8A)
    world.close()


def test_bans_of_a_node_can_stay_there() -> None:
    world = ClusterWorld()
    start(world, "a", share_bans=False)
    start(world, "b")
    emit(world, "a", "ban", client_id="pump", seconds=600)
    world.connect("b", "pump")
    emit(world, "b", "ban", client_id="drill", seconds=600)
    world.connect("a", "drill")
    world.close()


def accepted(world: ClusterWorld, name: str, attempts: int) -> int:
    """Return how many of a user's messages a node accepts at once."""
    client = world.connect(name, f"c{name}", username="ann", expect=0)
    for number in range(attempts):
        client.publish("t", b"%d" % number, 1)
    world.settle()
    codes = [one.code for one in client.received if isinstance(one, Puback)]
    return sum(code < 0x80 for code in codes)


def test_a_shared_limit_is_divided_by_the_live_nodes() -> None:
    world = ClusterWorld()
    limit = {"what": "publishes", "per": "user", "rate": "12/h", "mode": "reject", "shared": True}
    for name in ("a", "b", "c"):
        start(world, name, limits=[limit])
    world.advance(5.0)
    assert [accepted(world, name, 12) for name in ("a", "b", "c")] == [4, 4, 4]
    world.kill("c")
    world.advance(1230.0)
    # Each of the two nodes gets 6 in an hour now, so 2 in 20 minutes. All that it had is used.
    assert [accepted(world, name, 12) for name in ("a", "b")] == [2, 2]
    world.close()


def test_other_limits_count_on_each_node() -> None:
    world = ClusterWorld()
    limit = {"what": "publishes", "per": "user", "rate": "12/h", "mode": "reject"}
    for name in ("a", "b"):
        start(world, name, limits=[limit])
    world.advance(5.0)
    assert [accepted(world, name, 20) for name in ("a", "b")] == [12, 12]
    world.close()
