"""Everything in a store moves to a cluster and back, also if the move is interrupted and repeated."""

from typing import Any

import pytest
from cluster_world import ClusterWorld
from filled_clusters import EXPIRY, NAMES, Filled, run, stored
from hookmq.mqtt_api import Pubrec
from hookmq.plugin import HookMQError, StoreError
from hookmq.storage_api import PutState, group_owner, state_space
from hookmq_cluster import log_writer
from hookmq_cluster.engine import Entry
from hookmq_cluster.frames import MessageItem, Origin, PeerFrame, encode_peer
from hookmq_testing import DurableStore
from hookmq_testing.runtime import VirtualRuntime
from hypothesis import given, settings
from hypothesis import strategies as st
from lane_records import BATCHES, Ids, contents, message
from simulated_engine import Faults

FAULTS = Faults(lost_request=0.1, lost_answer=0.1, page=3)


def shown(store: DurableStore) -> list[Any]:
    """Return the contents of a store. The ids of publishers differ, so they are replaced by the client ids."""
    clients = {one.id: one.client.client_id for one in store.publishers.values()}
    retained = {
        (topic, bytes(one.message.payload), clients.get(one.publisher, ""))
        for topic, one in store.retained.items()
    }
    others = (one for one in contents(store) if one[0] not in ("PutPublisher", "PutRetained"))
    return [repr(one).replace("mappingproxy({})", "{}") for one in (*others, *sorted(retained))]


def test_a_store_moves_to_a_cluster_and_back() -> None:
    store = stored()
    cluster = Filled(VirtualRuntime(1))
    counts = cluster.fill(store)
    assert counts.sessions == 6
    assert counts.in_flight == 20
    assert counts.queue_entries == 20 + 3 * 21 + 5
    assert (counts.shared_entries, counts.received, counts.wills, counts.retained) == (5, 1, 1, 1)
    lanes = cluster.contents().lanes
    assert all(len(lanes[name].state.clients) for name in ("a", "b"))
    back, exported = cluster.export()
    assert shown(back) == shown(store)
    assert exported.fields() == counts.fields()


@pytest.mark.parametrize("lanes", [("a",), ("a", "b", "c")])
def test_the_clients_go_on_in_the_cluster(lanes: tuple[str, ...]) -> None:
    world = ClusterWorld()
    store = stored(world.clock)
    Filled(world.clock, world.log).fill(store, *lanes)
    for name in lanes:
        world.start(name)
    world.advance(1.0)
    node = lanes[-1]
    flying = world.connect(node, "flying", clean_start=False, session_expiry_interval=EXPIRY)
    assert flying.session_present
    world.advance(1.0)
    # The QoS 2 message after PUBREC is completed, not repeated.
    assert [one.payload for one in flying.messages] == [b"%d" % n for n in range(2, 20)] + [b"half"]
    for number in range(3):
        offline = world.connect(
            node, f"offline{number}", clean_start=False, session_expiry_interval=EXPIRY
        )
        world.advance(1.0)
        for topic in (0, 1):
            got = [int(one.payload) for one in offline.messages if one.topic == f"t/{topic}"]
            assert got == list(range(topic, 20, 2))
    publisher = world.connect(
        node, "publisher", clean_start=False, session_expiry_interval=EXPIRY, auto_ack=False
    )
    publisher.publish("t/9", b"half", 2, packet_id=77, dup=True)
    publisher.expect(Pubrec)
    world.advance(1.0)
    assert [one.payload for one in flying.messages].count(b"half") == 1
    reader = world.connect(node, "reader")
    reader.subscribe("kept/#", 1)
    world.settle()
    assert [one.payload for one in reader.messages] == [b"one"]
    world.advance(100.0)
    assert [one.payload for one in flying.messages][-1] == b"gone"
    world.close()


def test_a_shared_queue_is_in_the_lane_of_a_member() -> None:
    world = ClusterWorld()
    Filled(world.clock, world.log).fill(stored(world.clock), "a", "b", "c")
    for name in ("a", "b", "c"):
        world.start(name)
    world.advance(1.0)
    got: list[bytes] = []
    clients = [
        world.connect("b", f"offline{n}", clean_start=False, session_expiry_interval=EXPIRY)
        for n in range(3)
    ]
    world.advance(5.0)
    for one in clients:
        got += [message.payload for message in one.messages if message.payload[:1] == b"w"]
    assert sorted(got) == [b"w%d" % n for n in range(5)]
    world.close()


@given(st.lists(BATCHES, max_size=12), st.sampled_from([("a",), ("a", "b", "c")]))
@settings(deadline=None, max_examples=50)
def test_any_store_comes_back_as_it_was(batches: list[Any], lanes: tuple[str, ...]) -> None:
    store, ids = DurableStore(), Ids()
    for batch in batches:
        store.commit(ids.with_messages(batch), lambda _: None)
    cluster = Filled(VirtualRuntime(1), faults=Faults(page=3))
    counts = cluster.fill(store, *lanes)
    back, exported = cluster.export()
    assert shown(back) == shown(store)
    assert exported.sessions == counts.sessions == len(store.sessions)


def test_a_cluster_with_contents_is_refused_unless_they_are_replaced() -> None:
    cluster = Filled(VirtualRuntime(1))
    cluster.fill(stored())
    other = DurableStore()
    other.commit([PutState(state_space("p"), "key", b"value")], lambda _: None)
    before = cluster.log.sequence
    with pytest.raises(StoreError, match=r"already has 6 sessions, 88 queued messages, 1 retained"):
        cluster.try_fill(other)
    assert cluster.log.sequence == before
    with pytest.raises(StoreError, match="--replace"):
        cluster.fill(other)
    assert shown(cluster.export()[0]) == shown(stored())
    cluster.fill(other, replace=True)
    assert shown(cluster.export()[0]) == shown(other)


def test_a_dry_run_changes_nothing() -> None:
    cluster = Filled(VirtualRuntime(1))
    assert cluster.try_fill(stored()).queue_entries == 88
    assert cluster.log.sequence == 0


@pytest.mark.parametrize("commits", [1, 2, 3, 5, 7])
def test_an_interrupted_import_keeps_nodes_away_and_is_repeated(
    commits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writer, "BATCH_SIZE", 200_000)
    world = ClusterWorld()
    store = stored(world.clock)
    for number in range(400):
        state = PutState(state_space("p"), f"{number}", bytes(2000))
        store.commit([state], lambda _: None)
    first = Filled(world.clock, world.log)
    ended: list[Any] = []
    cancel = world.clock.spawn(first.filling(store), lambda *result: ended.append(result))
    while len(world.log.commits) < commits:
        world.advance(0.0001)
    first.engine.crash()
    cancel()
    assert not ended, "the import was faster"
    with pytest.raises(HookMQError, match="is incomplete, because this command has not finished"):
        world.start("a")
    again = Filled(world.clock, world.log)
    again.fill(store)
    assert shown(again.export()[0]) == shown(store)
    world.engines.pop("a").crash()
    world.start("a")
    assert world.connect(
        "a", "flying", clean_start=False, session_expiry_interval=9
    ).session_present


def test_running_nodes_are_refused() -> None:
    world = ClusterWorld("a")
    cluster = Filled(world.clock, world.log)
    for fill in (cluster.try_fill, cluster.fill):
        with pytest.raises(StoreError, match=r"these nodes of cluster 'test' are running.*: a"):
            fill(stored(world.clock))
    world.start("b")  # no mark is left
    world.close()


def test_two_imports_at_once_do_not_mix() -> None:
    runtime = VirtualRuntime(1)
    one = Filled(runtime)
    other = Filled(runtime, one.log)
    results: list[tuple[Any, BaseException | None]] = []
    store = stored()
    for cluster in (one, other):
        runtime.spawn(cluster.filling(store), lambda *result: results.append(result))
    runtime.advance(60.0)
    errors = [error for _, error in results if error is not None]
    assert len(results) == 2
    assert errors
    assert all("repeat the command" in str(error) for error in errors)
    again = Filled(runtime, one.log)
    if len(errors) == 2:
        again.fill(store)
    assert shown(again.export()[0]) == shown(store)


def test_lost_requests_and_answers_do_no_harm() -> None:
    cluster = Filled(VirtualRuntime(5), faults=FAULTS)
    store = stored()
    cluster.fill(store)
    assert shown(cluster.export()[0]) == shown(store)


def test_undelivered_messages_are_not_left_behind() -> None:
    cluster = Filled(VirtualRuntime(1))
    cluster.fill(stored())
    frame = PeerFrame(Origin("b", "b1", 1), (MessageItem(message(1), (), True),))
    [data] = encode_peer(frame, 1000)
    cluster.log.append([Entry(NAMES.lane("a"), data)])
    with pytest.raises(StoreError, match=r"not delivered yet \(frames: 1 in lane 'a'\)"):
        cluster.export()


def test_shared_queues_of_several_lanes_become_one() -> None:
    world = ClusterWorld("a", "b")
    for name in ("a", "b"):
        client = world.connect(name, f"c{name}", session_expiry_interval=EXPIRY)
        client.subscribe("$share/g/work", 1)
        client.disconnect()
    sender = {name: world.connect(name, f"s{name}") for name in ("a", "b")}
    for number in range(6):
        sender["ab"[number % 2]].publish("work", b"%d" % number, 1)
        world.advance(0.5)
    world.stop_together()
    world.advance(20.0)
    back, counts = Filled(world.clock, world.log).export()
    queue = back.queues[group_owner("g", "work")]
    assert [back.messages[one.message_ref].payload for _, one in sorted(queue.items())] == [
        b"%d" % number for number in range(6)
    ]
    assert counts.shared_entries == 6


def test_the_state_of_plugins_of_two_nodes_is_not_mixed() -> None:
    runtime = VirtualRuntime(1)
    one, other = DurableStore(), Filled(runtime)
    one.commit([PutState(state_space("p"), "key", b"value")], lambda _: None)
    other.fill(one, "a")
    contents = other.contents()
    contents.lanes["b"] = contents.lanes["a"]
    with pytest.raises(StoreError, match=r"'key' in the lanes 'a' and 'b'; .* --state-lane"):
        run(runtime, _all(contents.items(runtime)))
    with pytest.raises(StoreError, match="no lane 'c'; found: a, b"):
        run(runtime, _all(contents.items(runtime, "c")))
    assert len(run(runtime, _all(contents.items(runtime, "b")))) == 1


async def _all(items: Any) -> list[Any]:
    return [item async for item in items]
