"""Whole brokers in a cluster, on a simulated log and one clock."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cluster_world import ClusterWorld
from hookmq.mqtt_api import Publish, Pubrec, WillFields
from hookmq.plugin import ConfigError, MetricRegistry, PluginError
from hookmq.storage_api import StoreFailed
from hookmq_cluster.config import ClusterConfig
from hookmq_cluster.engine import Stored, Unavailable
from hookmq_testing import MemoryClient, will

LEASE = 15.0


@pytest.fixture
def two() -> Iterator[ClusterWorld]:
    """Return two nodes."""
    world = ClusterWorld("a", "b")
    yield world
    world.close()


@pytest.fixture
def three() -> Iterator[ClusterWorld]:
    """Return three nodes that have run for some time."""
    world = ClusterWorld("a", "b", "c")
    world.advance(2 * LEASE)
    yield world
    world.close()


def payloads(client: MemoryClient) -> list[bytes]:
    """Return the payloads that a client got."""
    return [one.payload for one in client.messages]


def test_nodes_see_each_other(two: ClusterWorld) -> None:
    assert set(two.cluster("a").membership.others) == {"b"}
    assert set(two.cluster("b").membership.others) == {"a"}
    assert two.cluster("a").keeper.open == {"a"}


def test_a_node_with_the_name_of_another_one_does_not_start(two: ClusterWorld) -> None:
    subscriber = two.connect("b", "s", session_expiry_interval=3600)
    subscriber.subscribe("t", 1)
    first = two.plugins["b"], two.engines["b"]
    with pytest.raises(PluginError) as error:
        two.start("b")
    two.plugins["b"], two.engines["b"] = first
    assert str(error.value).endswith(
        "another process is already node 'b' of cluster 'test', at b:1: give each node its own name"
    )
    assert two.cluster("b").keeper.open == {"b"}
    two.connect("a", "p").publish("t", b"x", 1)
    two.settle()
    assert payloads(subscriber) == [b"x"]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("expiry", [0, 3600])
def test_a_message_reaches_the_other_node(two: ClusterWorld, qos: int, expiry: int) -> None:
    subscriber = two.connect("b", "s", session_expiry_interval=expiry)
    subscriber.subscribe("t/#", qos)
    publisher = two.connect("a", "p")
    for number in range(20):
        publisher.publish("t/1", b"%d" % number, qos)
    two.settle()
    assert payloads(subscriber) == [b"%d" % number for number in range(20)]


def test_without_subscribers_elsewhere_nothing_is_sent(two: ClusterWorld) -> None:
    subscriber = two.connect("a", "s", session_expiry_interval=0)
    subscriber.subscribe("t", 1)
    publisher = two.connect("a", "p", session_expiry_interval=0)
    two.settle()
    sequence = two.log.sequence
    assert publisher.publish("t", b"x", 1) is not None
    assert payloads(subscriber) == [b"x"]
    assert two.log.sequence == sequence
    assert two.cluster("a").forwarding.forwarded == 0


def test_unsubscribing_ends_the_traffic(two: ClusterWorld) -> None:
    subscriber = two.connect("b", "s")
    subscriber.subscribe("t", 1)
    publisher = two.connect("a", "p")
    publisher.publish("t", b"1", 1)
    subscriber.unsubscribe("t")
    two.settle()
    publisher.publish("t", b"2", 1)
    two.settle()
    assert two.cluster("a").forwarding.forwarded == 1
    assert payloads(subscriber) == [b"1"]


def test_an_offline_session_gets_its_messages_on_another_node(two: ClusterWorld) -> None:
    subscriber = two.connect("b", "s", session_expiry_interval=3600)
    subscriber.subscribe("t", 2)
    subscriber.disconnect()
    publisher = two.connect("a", "p")
    for number in range(5):
        publisher.publish("t", b"%d" % number, 2)
    two.settle()
    again = two.connect("a", "s", session_expiry_interval=3600, clean_start=False)
    assert again.session_present
    two.settle()
    assert payloads(again) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_client_takes_over_its_connection_to_another_node(two: ClusterWorld) -> None:
    first = two.connect("b", "s", session_expiry_interval=3600)
    second = two.connect("a", "s", session_expiry_interval=3600, clean_start=False)
    two.settle()
    first.expect_disconnect(0x8E)
    assert second.session_present


def test_a_volatile_client_takes_over_its_connection_to_another_node(two: ClusterWorld) -> None:
    first = two.connect("b", "s", session_expiry_interval=0)
    two.advance(1.0)
    second = two.connect("a", "s", session_expiry_interval=0)
    two.settle()
    first.expect_disconnect(0x8E)
    second.ping()


def test_a_clean_start_elsewhere_discards_the_session(two: ClusterWorld) -> None:
    first = two.connect("b", "s", session_expiry_interval=3600)
    first.subscribe("t", 1)
    first.disconnect()
    second = two.connect("a", "s", clean_start=True, session_expiry_interval=0)
    assert not second.session_present
    two.connect("a", "p").publish("t", b"x", 1)
    two.settle()
    assert payloads(second) == []


@pytest.mark.parametrize("qos", [1, 2])
def test_a_survivor_adopts_the_sessions_of_a_dead_node(three: ClusterWorld, qos: int) -> None:
    subscriber = three.connect("b", "s", session_expiry_interval=3600)
    subscriber.subscribe("t", qos)
    publisher = three.connect("a", "p", session_expiry_interval=3600)
    publisher.publish("t", b"1", qos)
    subscriber.disconnect()
    publisher.publish("t", b"2", qos)
    three.settle()
    three.kill("b")
    publisher.publish("t", b"3", qos)
    three.advance(3 * LEASE)
    assert three.cluster("a").keeper.adopted + three.cluster("c").keeper.adopted == 1
    publisher.publish("t", b"4", qos)
    again = three.connect("c", "s", session_expiry_interval=3600, clean_start=False)
    assert again.session_present
    three.settle()
    assert payloads(again) == [b"2", b"3", b"4"]


def test_a_client_cannot_connect_until_its_session_is_adopted(three: ClusterWorld) -> None:
    three.connect("b", "s", session_expiry_interval=3600).disconnect()
    three.kill("b")
    options = {"session_expiry_interval": 3600, "clean_start": False}
    assert three.connect("a", "s", expect=None, **options).closed
    three.advance(3 * LEASE)
    assert three.connect("a", "s", **options).session_present


def test_a_node_gets_its_lane_back(three: ClusterWorld) -> None:
    subscriber = three.connect("b", "s", session_expiry_interval=3600)
    subscriber.subscribe("t", 1)
    subscriber.disconnect()
    three.kill("b")
    three.advance(3 * LEASE)
    three.start("b")
    assert three.cluster("b").keeper.open == {"b"}
    assert "b" not in three.cluster("a").keeper.open | three.cluster("c").keeper.open
    three.connect("a", "p").publish("t", b"x", 1)
    again = three.connect("c", "s", session_expiry_interval=3600, clean_start=False)
    three.settle()
    assert payloads(again) == [b"x"]


def test_clients_that_come_back_while_their_lane_moves_keep_their_sessions(
    three: ClusterWorld,
) -> None:
    names = [f"s{number}" for number in range(60)]
    options = {"session_expiry_interval": 3600, "clean_start": False}
    for name in names:
        three.connect("b", name, **options).disconnect()
    three.kill("b")
    three.advance(3 * LEASE)
    owner, other = ("a", "c") if "b" in three.cluster("a").keeper.open else ("c", "a")
    given: list[str] = []
    back: list[MemoryClient] = []
    busy = three.connect(owner, "busy", session_expiry_interval=3600)
    busy.subscribe("t", 1)
    with three.nodes[owner].together():
        for number, name in enumerate(names, 1):
            if number == 20:
                three.cluster(owner).keeper.give("b", three.cluster(other).me, given.append)
            busy.send(Publish("t", b"x", 1, packet_id=number))
            back.append(three.connect(owner, name, expect=None, **options))
            three.advance(0.0005)
    three.settle()
    assert given == [""]
    codes = [client.connack.code for client in back if client.connack is not None]
    assert {0, 0x88} <= set(codes) <= {0, 0x88, 0x9C}
    assert all(one.session_present for one in back if one.connack and not one.connack.code)
    for name in names:
        assert three.connect("a", name, **options).session_present


def test_a_node_that_stops_gives_its_lane_away_at_once(three: ClusterWorld) -> None:
    subscriber = three.connect("b", "s", session_expiry_interval=3600)
    subscriber.subscribe("t", 1)
    three.nodes.pop("b").close()
    three.advance(1.0)
    assert "b" in three.cluster("a").keeper.open | three.cluster("c").keeper.open
    three.connect("a", "p").publish("t", b"x", 1)
    again = three.connect("c", "s", session_expiry_interval=3600, clean_start=False)
    three.settle()
    assert again.session_present
    assert payloads(again) == [b"x"]


def test_nodes_that_stop_together_start_again_at_once(three: ClusterWorld) -> None:
    three.connect("b", "s", session_expiry_interval=3600).subscribe("t", 1)
    three.stop_together()
    began = three.clock.now()
    for name in "abc":
        three.start(name)
    assert three.clock.now() - began < 0.6 * LEASE
    assert [three.cluster(name).keeper.open for name in "abc"] == [{"a"}, {"b"}, {"c"}]
    three.connect("a", "p").publish("t", b"x", 1)
    again = three.connect("c", "s", session_expiry_interval=3600, clean_start=False)
    three.settle()
    assert payloads(again) == [b"x"]


def test_no_message_is_acknowledged_before_the_sessions_of_dead_nodes_are_known(
    three: ClusterWorld,
) -> None:
    subscriber = three.connect("b", "s", session_expiry_interval=3600)
    subscriber.subscribe("t", 1)
    for name in "abc":
        three.kill(name)
    three.advance(2 * LEASE)
    three.start("a")
    three.connect("a", "p").publish("t", b"x", 1)
    again = three.connect("a", "s", session_expiry_interval=3600, clean_start=False)
    three.settle()
    assert payloads(again) == [b"x"]
    three.start("b")
    assert three.cluster("b").keeper.open == {"b"}


def test_a_node_takes_up_the_lanes_that_it_had_adopted(three: ClusterWorld) -> None:
    three.connect("b", "s", session_expiry_interval=3600)
    three.kill("b")
    three.kill("c")
    three.advance(3 * LEASE)
    assert three.cluster("a").keeper.open == {"a", "b", "c"}
    three.kill("a")
    three.start("a")
    assert three.cluster("a").keeper.open == {"a", "b", "c"}


def test_the_will_of_a_dead_node_is_published_once(three: ClusterWorld) -> None:
    watcher = three.connect("a", "w", session_expiry_interval=3600)
    watcher.subscribe("will/#", 1)
    for name, expiry in (("durable", 3600), ("volatile", 0)):
        three.connect(
            "b", name, session_expiry_interval=expiry, will=will(f"will/{name}", b"dead", 1)
        )
    three.settle()
    three.kill("b")
    three.advance(4 * LEASE)
    assert sorted(one.topic for one in watcher.messages) == ["will/durable", "will/volatile"]


@pytest.mark.parametrize(("durable", "joined"), [(False, True), (True, True), (False, False)])
@pytest.mark.parametrize("last", [None, will("will", b"a", 1)])
def test_a_session_that_exists_twice_ends_with_its_will_when_its_lane_is_adopted(
    two: ClusterWorld, last: WillFields | None, durable: bool, joined: bool
) -> None:
    """Only a session with a will has a record in a lane. A durable watcher has its session in the adopted lane."""
    two.advance(2 * LEASE)
    watcher = two.connect("a", "w")
    watcher.subscribe("will", 1)
    if durable:
        two.connect("b", "durable", session_expiry_interval=3600).subscribe("will", 1)
    two.log.break_route(two.engines["a"], two.engines["b"])
    with two.nodes["a"].together(), two.nodes["b"].together():
        one = two.connect("a", "one", will=last, expect=None)
        two.connect("b", "one", will=will("will", b"b", 1), expect=None)
    two.settle()
    assert payloads(watcher) == []
    keeper = two.cluster("a").keeper
    keeper.joined = joined
    two.kill("b")
    two.advance(4 * LEASE)
    assert keeper.has("b")
    assert payloads(watcher) == ([b"b"] if joined else [])
    keeper.join()
    two.settle()
    assert payloads(watcher) == [b"b"]
    if durable:
        second = two.connect("a", "durable", session_expiry_interval=3600, clean_start=False)
        two.settle()
        assert payloads(second) == [b"b"]
    states = two.cluster("a").store.lanes()
    assert ["one" in states[lane].clients for lane in "ab"] == [last is not None, False]
    one.drop()
    two.settle()
    assert payloads(watcher) == ([b"b"] if last is None else [b"b", b"a"])
    assert "one" not in states["a"].clients


def test_a_will_that_waits_for_a_node_to_join_leaves_with_its_lane(two: ClusterWorld) -> None:
    two.advance(2 * LEASE)
    watcher = two.connect("a", "w")
    watcher.subscribe("will", 1)
    two.log.break_route(two.engines["a"], two.engines["b"])
    with two.nodes["a"].together(), two.nodes["b"].together():
        two.connect("a", "one", expect=None)
        two.connect("b", "one", will=will("will", b"b", 1), expect=None)
    two.settle()
    keeper = two.cluster("a").keeper
    keeper.joined = False
    two.kill("b")
    two.advance(4 * LEASE)
    assert keeper.has("b")
    two.start("b")
    assert not keeper.has("b")
    keeper.join()
    two.advance(LEASE)
    assert payloads(watcher) == [b"b"]


def test_a_node_that_starts_publishes_both_wills_of_a_session_that_exists_twice() -> None:
    world = ClusterWorld("a", "b")
    world.advance(2 * LEASE)
    world.connect("a", "w", session_expiry_interval=3600).subscribe("will", 1)
    world.log.break_route(world.engines["a"], world.engines["b"])
    with world.nodes["a"].together(), world.nodes["b"].together():
        for name in "ab":
            world.connect(name, "one", will=will("will", name.encode(), 1), expect=None)
    world.settle()
    world.kill("a")
    world.kill("b")
    world.start("a")  # It adopts the other lane before it has joined.
    assert world.cluster("a").owns("b")
    watcher = world.connect("a", "w", session_expiry_interval=3600, clean_start=False)
    world.advance(LEASE)
    assert sorted(payloads(watcher)) == [b"a", b"b"]
    states = world.cluster("a").store.lanes()
    assert not any("one" in states[lane].clients for lane in "ab")
    world.close()


@pytest.mark.parametrize(
    ("subscribed", "qos", "follows"), [(1, 0, True), (0, 0, True), (0, 1, True), (0, 0, False)]
)
def test_a_session_that_moves_gets_late_copies_of_messages_at_qos_0_once(
    three: ClusterWorld, subscribed: int, qos: int, follows: bool
) -> None:
    """Unless the publisher's node `follows` the owners in the log, it hears from the next owner itself."""
    three.advance(2 * LEASE)
    moving = three.connect("b", "s", session_expiry_interval=3600)
    moving.subscribe("t", subscribed)
    staying = three.connect("a", "v")
    staying.subscribe("t", qos)
    publisher = three.connect("c", "p")
    three.settle()
    three.log.break_route(three.engines["c"], three.engines["a"])
    publisher.publish("t", b"before", qos, expect=None)
    three.advance(0.1)
    assert payloads(moving) == [b"before"]
    if not follows:
        three.cluster("c").lanes.close()
    three.clock.spawn(three.cluster("b").give_lane("b", three.cluster("a").me), lambda *_: None)
    three.advance(LEASE / 2)
    assert three.cluster("a").owns("b")
    again = three.connect("a", "s", session_expiry_interval=3600, clean_start=False)
    if not follows:
        three.log.mend_routes()
        three.advance(2 * LEASE)
    publisher.publish("t", b"after", qos, expect=None)
    three.log.mend_routes()
    three.advance(2 * LEASE)
    assert payloads(staying) == [b"before", b"after"]
    assert payloads(again) == [b"after"]


def test_a_will_that_is_due_at_the_start_of_a_node_reaches_the_others() -> None:
    world = ClusterWorld("a", "b")
    subscriber = world.connect("a", "s", session_expiry_interval=3600)
    subscriber.subscribe("w", 1)
    subscriber.disconnect()
    last = will("w", b"gone", 1, delay=6)
    world.connect("b", "c", will=last, session_expiry_interval=60).drop()
    world.settle()
    world.kill("b")
    world.advance(1.0)
    # The node opens its lane some seconds before it knows the subscriptions of the other one.
    world.engines["a"].cut()
    world.clock.call_later(8.0, world.engines["a"].heal)
    world.start("b")
    world.advance(20.0)
    again = world.connect("a", "s", session_expiry_interval=3600, clean_start=False)
    world.settle()
    assert payloads(again) == [b"gone"]
    world.close()


def test_retained_messages_are_the_same_everywhere(three: ClusterWorld) -> None:
    publisher = three.connect("a", "p")
    for number in range(30):
        publisher.publish(f"r/{number}", b"%d" % number, 1, retain=True)
    publisher.publish("r/3", b"", 1, retain=True)
    three.settle()
    reader = three.connect("c", "r")
    reader.subscribe("r/#", 1)
    three.settle()
    assert sorted(int(one.payload) for one in reader.messages) == [
        number for number in range(30) if number != 3
    ]
    assert all(one.retain for one in reader.messages)
    three.kill("b")
    three.start("b")
    late = three.connect("b", "late")
    late.subscribe("r/#", 0)
    three.settle()
    assert len(late.messages) == 29


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_shared_subscription_spans_nodes(three: ClusterWorld, qos: int) -> None:
    members = [three.connect(name, f"m{name}") for name in "bc"]
    for member in members:
        member.subscribe("$share/g/t", qos)
    three.settle()
    publisher = three.connect("a", "p")
    for number in range(40):
        publisher.publish("t", b"%d" % number, qos)
    three.settle()
    got = [payloads(member) for member in members]
    assert sorted(int(one) for found in got for one in found) == list(range(40))
    assert all(got)
    local = three.connect("a", "ma")
    local.subscribe("$share/g/t", qos)
    publisher.publish("t", b"here", qos)
    three.settle()
    assert payloads(local) == [b"here"]


def test_messages_of_a_dead_member_go_to_living_members(three: ClusterWorld) -> None:
    member = three.connect("b", "m1", session_expiry_interval=3600)
    member.auto_ack = False
    member.subscribe("$share/g/t", 1)
    three.settle()
    publisher = three.connect("a", "p")
    for number in range(10):
        publisher.publish("t", b"%d" % number, 1)
    three.settle()
    other = three.connect("c", "m2", session_expiry_interval=3600)
    other.subscribe("$share/g/t", 1)
    three.kill("b")
    three.advance(4 * LEASE)
    publisher.publish("t", b"10", 1)
    three.settle()
    assert sorted(int(one) for one in payloads(other)) == list(range(11))


@pytest.mark.parametrize("waiting", [0, 1, 9])
def test_waiting_messages_of_two_nodes_for_a_shared_subscription_are_merged(
    three: ClusterWorld, waiting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hookmq_cluster.group_queues._PAGE", 4)
    members = [three.connect(name, f"m{name}", session_expiry_interval=3600) for name in "ab"]
    for member in members:
        member.subscribe("$share/g/t", 1)
    three.settle()
    for member in members:
        member.disconnect()
    three.settle()
    sent: list[bytes] = []
    for name, count in (("a", waiting), ("b", 9)):
        publisher = three.connect(name, f"p{name}")
        for number in range(count):
            sent.append(b"%s%d" % (name.encode(), number))
            publisher.publish("t", sent[-1], 1)
    three.settle()
    three.kill("c")
    three.kill("b")
    three.advance(4 * LEASE)
    assert three.cluster("a").keeper.open >= {"a", "b"}
    sent.append(b"later")
    three.connect("a", "late").publish("t", sent[-1], 1)
    three.settle()
    assert three.cluster("a").store.lanes()["b"].groups == []
    assert len(three.cluster("a").store.lanes()["a"].read("g/g/t", 0, 1000, 1 << 30)) == len(sent)
    three.kill("a")
    three.start("a")
    member = three.connect("a", "ma", session_expiry_interval=3600, clean_start=False)
    three.settle()
    assert sorted(payloads(member)) == sorted(sent)


def test_a_node_keeps_the_state_of_its_plugins(three: ClusterWorld) -> None:
    three.nodes["b"].handle("cluster").state.put("key", b"value")
    three.settle()
    three.kill("b")
    three.advance(3 * LEASE)
    assert three.nodes["a"].handle("cluster").state.get("key") is None
    back = three.start("b")
    assert back.handle("cluster").state.get("key") == b"value"


@pytest.mark.parametrize("seed", range(10))
def test_a_client_that_ends_its_session_may_begin_another_one_at_once(seed: int) -> None:
    """The entry of the first session may be read before its end is committed."""
    durable: dict[str, Any] = {"session_expiry_interval": 3600, "clean_start": False}
    world = ClusterWorld("a", "b", seed=seed)
    client = world.connect("a", "s", **durable)
    with world.nodes["a"].together():
        client.disconnect(session_expiry_interval=0)
        again = world.nodes["a"].connect("s", expect=None, **durable)
        world.advance(0.5)
    again.subscribe("t", 1)
    again.disconnect()
    world.connect("a", "p").publish("t", b"x", 1)
    resumed = world.connect("b", "s", **durable)
    world.settle()
    assert payloads(resumed) == [b"x"]
    world.close()


def test_relays_to_a_dead_node_are_closed(three: ClusterWorld) -> None:
    three.kill("c")
    three.advance(3 * LEASE)
    assert [three.plugins[name].relays_ended for name in "abc"] == [["c"], ["c"], []]


@pytest.mark.parametrize("seconds", [5.0, 40.0, 300.0])
def test_acknowledgements_wait_while_the_log_is_away(three: ClusterWorld, seconds: float) -> None:
    subscriber = three.connect("b", "s", session_expiry_interval=3600)
    subscriber.subscribe("t", 2)
    publisher = three.connect("a", "p", session_expiry_interval=3600)
    three.log.stop()
    for number in range(3):
        publisher.send(Publish("t", b"%d" % number, 2, packet_id=number + 1))
    three.advance(seconds)
    assert not [one for one in publisher.received if isinstance(one, Pubrec)]
    assert payloads(subscriber) == []
    three.log.start()
    three.advance(60.0)
    assert {one.packet_id for one in publisher.received if isinstance(one, Pubrec)} == {1, 2, 3}
    assert payloads(subscriber) == [b"0", b"1", b"2"]
    assert [three.cluster(name).keeper.open for name in "abc"] == [{"a"}, {"b"}, {"c"}]


@pytest.mark.parametrize("expiry", [0, 3600])
@pytest.mark.parametrize("made", [True, False])
def test_a_commit_with_an_unknown_result_is_made_once(made: bool, expiry: int) -> None:
    world = ClusterWorld("a", "b", lease=300.0)
    subscriber = world.connect("b", "s", session_expiry_interval=3600)
    subscriber.subscribe("t", 2)
    publisher = world.connect("a", "p", session_expiry_interval=expiry)
    world.settle()
    before = world.log.sequence
    with world.nodes["a"].together():
        publisher.send(Publish("t", b"x", 2, packet_id=1))
        while made and world.log.sequence == before:
            world.advance(0.00001)
        world.engines["a"].cut()
    world.advance(60.0)
    assert world.nodes["a"].logged("cluster.commit_unknown")
    assert not [one for one in publisher.received if isinstance(one, Pubrec)]
    assert payloads(subscriber) == ([b"x"] if made else [])
    world.engines["a"].heal()
    world.advance(30.0)
    assert [one for one in publisher.received if isinstance(one, Pubrec)]
    assert payloads(subscriber) == [b"x"]
    publisher.publish("t", b"y", 2)
    world.settle()
    assert payloads(subscriber) == [b"x", b"y"]
    world.close()


def test_metrics(three: ClusterWorld) -> None:
    subscriber = three.connect("b", "s", session_expiry_interval=3600)
    subscriber.subscribe("t", 1)
    three.connect("a", "p").publish("t", b"x", 1)
    three.settle()
    registry = MetricRegistry()
    three.plugins["a"].register_metrics(registry)
    values = registry.values()
    assert values["cluster_ready"] == 1
    assert values["cluster_members"] == 3
    assert values["cluster_lanes"] == 1
    assert values["cluster_forwarded_messages_total"] == 1
    assert values["cluster_lost_lanes_total"] == 0
    assert values["cluster_forwarded_frames_total"] == 1
    assert values["cluster_drained"] == values["cluster_lag_seconds"] == 0
    assert 0 <= values["cluster_lease_age_seconds"] <= LEASE / 2
    commits = three.cluster("a").store.counters.durations
    assert commits.count == 1  # the message for lane b
    assert 0 < commits.sum < 1.0
    text = registry.text()
    assert "hookmq_cluster_commit_seconds_count 1" in text
    assert 'hookmq_cluster_commit_seconds_bucket{le="+Inf"} 1' in text


def test_metrics_of_trouble(three: ClusterWorld) -> None:
    subscriber = three.connect("a", "s", session_expiry_interval=3600)
    subscriber.subscribe("t", 1)
    registry = MetricRegistry()
    three.plugins["a"].register_metrics(registry)
    cluster = three.cluster("a")
    reader = cluster.inbox._lanes["a"]
    reader.waiting.append(Stored("hmq.test.lane.a", 1, b"", three.clock.time()))
    three.advance(2.0)
    assert registry.values()["cluster_lag_seconds"] == pytest.approx(2.0)
    reader.waiting.clear()
    lanes = cluster.lanes
    lanes.renew("a", lambda _: None)
    three.settle()
    three.connect("a", "p").publish("t", b"x", 1)
    three.settle()
    assert registry.values()["cluster_refused_commits_total"] == 1
    three.engines["a"].cut()
    three.advance(LEASE / 2)
    assert registry.values()["cluster_ready"] == 0


def test_a_lost_lane_is_counted(three: ClusterWorld) -> None:
    three.kill("c")
    three.advance(3 * LEASE)
    owner, other = ("a", "b") if three.cluster("a").owns("c") else ("b", "a")
    lanes = three.cluster(other).lanes
    lanes.take("c", lanes.owners["c"], lambda _: None)
    three.settle()
    registry = MetricRegistry()
    three.plugins[owner].register_metrics(registry)
    assert registry.values()["cluster_lost_lanes_total"] == 1
    assert not three.cluster(owner).owns("c")


@pytest.mark.parametrize("answers", [True, False])
def test_an_adopted_publisher_does_not_overtake_its_own_messages(
    monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    world = ClusterWorld("a", "b")
    world.advance(2 * LEASE)
    subscriber = world.connect("a", "s", session_expiry_interval=3600)
    subscriber.subscribe("t", 1)
    publisher = world.connect("b", "p", session_expiry_interval=3600)
    inbox = world.cluster("a").inbox
    reader = inbox._lanes["a"]
    assert reader.stop is not None
    reader.stop()  # the log is slow to answer this node
    for number in range(5):
        publisher.publish("t", b"%d" % number, 1)
    engine = world.engines["a"]
    last = engine.last

    def silent(subject: str, done: Callable[[Any], None], exact: bool = False) -> None:
        if subject == "hmq.test.lane.a":
            done(Unavailable("no answer"))
        else:
            last(subject, done, exact)

    if not answers:
        monkeypatch.setattr(engine, "last", silent)
    world.kill("b")
    world.advance(2 * LEASE)
    assert set(world.cluster("a").lanes.fences) == {"a", "b"}
    assert world.cluster("a").keeper.open == {"a"}
    monkeypatch.undo()
    inbox._follow(reader)
    world.advance(5.0)
    assert world.cluster("a").keeper.open == {"a", "b"}
    again = world.connect("a", "p", session_expiry_interval=3600, clean_start=False)
    again.publish("t", b"5", 1)
    world.settle()
    assert payloads(subscriber) == [b"%d" % number for number in range(6)]
    world.close()


def test_a_lane_that_could_not_be_loaded_is_tried_again(
    three: ClusterWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    three.connect("b", "s", session_expiry_interval=36000).disconnect()
    tried: list[str] = []
    for name in "ac":
        store = three.cluster(name).store

        def fail(lane: str, fence: int, done: Callable[[StoreFailed], None]) -> None:
            tried.append(lane)
            done(StoreFailed("the log does not answer"))

        monkeypatch.setattr(store, "open_lane", fail)
    three.kill("b")
    three.advance(3 * LEASE)
    assert tried == ["b"]
    monkeypatch.undo()
    three.advance(61.0)
    assert "b" in three.cluster("a").keeper.open | three.cluster("c").keeper.open
    options = {"session_expiry_interval": 36000, "clean_start": False}
    assert three.connect("a", "s", **options).session_present


@pytest.mark.parametrize("filter_", ["t", "$share/g/t"])
def test_qos_2_arrives_once_if_the_node_dies_before_it_has_committed(
    three: ClusterWorld, filter_: str
) -> None:
    subscriber = three.connect("b", "s", session_expiry_interval=0)
    subscriber.subscribe(filter_, 2)
    publisher = three.connect("a", "p", session_expiry_interval=3600)
    three.settle()
    three.log.available = False
    publisher.send(Publish("t", b"x", 2, packet_id=7))
    three.settle()
    three.kill("a")
    three.log.available = True
    three.advance(4 * LEASE)
    again = three.connect("b", "p", session_expiry_interval=3600, clean_start=False)
    assert again.session_present
    again.send(Publish("t", b"x", 2, dup=True, packet_id=7))
    three.settle()
    assert [one for one in again.received if isinstance(one, Pubrec)]
    assert payloads(subscriber) == [b"x"]


# readiness -------------------------------------------------------------------------------------------------------


def test_a_node_is_ready_while_the_log_confirms_its_lease(three: ClusterWorld) -> None:
    cluster = three.cluster("a")
    for _ in range(100):
        three.advance(1.0)
        assert cluster.unready() == ""
    three.log.available = False
    three.advance(LEASE)
    assert [three.cluster(name).unready() for name in "abc"] == ["isolated"] * 3
    three.log.available = True
    three.advance(LEASE)
    assert [three.cluster(name).unready() for name in "abc"] == [""] * 3


def test_a_node_that_is_cut_off_is_not_ready(three: ClusterWorld) -> None:
    three.engines["a"].cut()
    three.advance(LEASE / 2)
    assert [three.cluster(name).unready() for name in "abc"] == ["isolated", "", ""]
    three.engines["a"].heal()
    three.advance(LEASE / 2)
    assert three.cluster("a").unready() == ""


def test_a_node_that_joins_or_leaves_is_not_ready(two: ClusterWorld) -> None:
    assert two.cluster("b").unready() == ""
    two.clock.spawn(two.cluster("b").leave(), lambda *_: None)
    two.settle()
    assert two.cluster("b").unready() == "leaving"
    two.kill("b")
    states: list[str] = []

    def look() -> None:
        joined = two.plugins["b"].joined
        if joined is not None:
            states.append(joined.unready())
        if "b" not in two.nodes:
            two.clock.call_later(0.1, look)

    two.clock.call_later(0.1, look)
    two.start("b")
    assert (states[0], two.cluster("b").unready()) == ("joining", "")


# redirect --------------------------------------------------------------------------------------------------------


def test_an_mqtt5_client_is_sent_to_the_node_with_its_session() -> None:
    addresses = {"a": "a.example:1883", "b": "b.example:1883"}
    world = ClusterWorld("a", "b", clients=addresses, redirect=True)
    options: dict[str, Any] = {"session_expiry_interval": 3600, "clean_start": False}
    world.connect("b", "s", **options).disconnect()
    refused = world.connect("a", "s", expect=0x9C, **options)
    assert refused.connack is not None
    assert refused.connack.properties.server_reference == "b.example:1883"
    assert world.connect("b", "s", **options).session_present
    # Older clients cannot be told. They are passed on.
    world.connect("b", "old", version=4, clean_start=False).disconnect()
    assert world.connect("a", "old", version=4, clean_start=False).session_present
    # Clients without a session stay where they are.
    world.connect("a", "new", **options)
    world.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"redirect": True}, "redirect: client_address is required"),
        ({"client_address": "a\nb"}, "client_address: expected at most 1024 characters"),
        ({"client_address": "a" * 1025}, "client_address: expected at most 1024 characters"),
    ],
)
def test_wrong_settings_of_a_redirect(settings: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ClusterConfig(**settings)
