"""A ban that one node of a cluster makes applies to all nodes."""

from collections.abc import Iterator
from typing import Any

import pytest
from cluster_world import ClusterWorld
from hookmq_ratelimit.plugin import RateLimitPlugin
from hookmq_testing import HookRecorder, make_plugin


def start(world: ClusterWorld, name: str, **config: Any) -> None:
    """Start a node with the plugin ratelimit, and another one that can ask for bans."""
    limits = make_plugin(RateLimitPlugin, config, "ratelimit")
    world.start(name, plugins=(limits, HookRecorder("on_event", id="guard")))


def emit(world: ClusterWorld, name: str, event: str, **fields: object) -> None:
    """Ask a node for a ban, or for its end."""
    world.nodes[name].handle("guard").emit(f"ratelimit.{event}", **fields)
    world.settle()


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
