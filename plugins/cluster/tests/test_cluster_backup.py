"""A backup has everything of one moment, although nodes write meanwhile, and fills an empty cluster again."""

import io
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cluster_world import ClusterWorld
from filled_clusters import EXPIRY, NAMES, Filled, run, stored
from hookmq.plugin import StoreError
from hookmq.storage_api import PutState
from hookmq_cluster import backup_file, compaction
from hookmq_cluster.backup import Backup, BackupCounts, write_backup
from hookmq_cluster.backup_file import BackupReader
from hookmq_cluster.engine import Entry
from hookmq_cluster.facts import ClusterFacts
from hookmq_cluster.frames import MessageItem, Origin, PeerFrame, encode_peer
from hookmq_cluster.log_writer import LogWriter
from hookmq_testing import MemoryClient
from hookmq_testing.runtime import VirtualRuntime
from lane_records import contents, message
from simulated_engine import Faults


def back_up(cluster: Filled, file: Path) -> BackupCounts:
    """Back up a cluster into a file."""
    with file.open("wb") as out:
        return run(cluster.runtime, write_backup(cluster.engine, NAMES, cluster.runtime, out))


def restore(cluster: Filled, file: Path, replace: bool = False) -> BackupCounts:
    """Restore a file into a cluster."""
    found = Backup(BackupReader(file))
    writer = LogWriter(cluster.engine, NAMES, cluster.runtime, "hookmq cluster restore")
    run(
        cluster.runtime,
        found.restore(writer, cluster.engine, NAMES, cluster.runtime, replace),
    )
    return found.counts


def everything(cluster: Filled) -> dict[str, Any]:
    """Return the contents of a cluster."""
    found = cluster.contents()
    lanes: dict[str, Any] = {name: contents(lane.state) for name, lane in found.lanes.items()}
    lanes[""] = sorted(
        (one.message.topic, bytes(one.message.payload), repr(one.publisher))
        for one in found.retained
    )
    lanes["undelivered"] = found.undelivered
    return lanes


def test_a_restored_cluster_is_the_same(tmp_path: Path) -> None:
    cluster = Filled(VirtualRuntime(1))
    cluster.fill(stored())
    counts = back_up(cluster, tmp_path / "b")
    assert (counts.lanes, counts.sessions, counts.retained, counts.undelivered) == (2, 6, 1, 0)
    other = Filled(VirtualRuntime(2))
    other.log.append([Entry("hmq.other", b"")] * 1000)  # so that all sequences differ
    assert restore(other, tmp_path / "b") == counts
    assert everything(other) == everything(cluster)


def test_what_plugins_share_is_restored_until_it_ends(tmp_path: Path) -> None:
    cluster = Filled(VirtualRuntime(1))
    facts = ClusterFacts()
    run(cluster.runtime, facts.start(cluster.engine, NAMES, cluster.runtime))
    facts.put("bans", "short", b"1", 10)
    facts.put("bans", "long", b"2", 600)
    cluster.runtime.advance(1.0)
    back_up(cluster, tmp_path / "b")
    other = Filled(cluster.runtime)
    cluster.runtime.advance(100.0)
    restore(other, tmp_path / "b")
    cluster.runtime.advance(2.0)
    again = ClusterFacts()
    run(other.runtime, again.start(other.engine, NAMES, other.runtime))
    told: list[Any] = []
    again.follow("bans", lambda *one: told.append(one))
    [(key, value, seconds)] = told
    assert (key, value) == ("long", b"2")
    assert seconds == pytest.approx(500, abs=10)


@pytest.mark.parametrize("returned", [False, True])
def test_the_state_that_a_drained_node_has_stored_is_restored(
    tmp_path: Path, returned: bool
) -> None:
    world = ClusterWorld("a", "b", faults=Faults(page=2))
    world.engines["a"].max_entry = 500
    world.change_state("a", old=b"1", gone=b"1")
    world.complete_drain("a")
    world.change_state("a", old=b"2", gone=None, large=b"2" * 2000)
    assert len(world.log.messages(["hmq.test.away.a"])) > 3
    if returned:
        world.complete_undrain("a")
        world.change_state("a", old=b"3")
    wanted = world.read_state("a")
    assert wanted == [("large", b"2" * 2000), ("old", b"3" if returned else b"2")]
    cluster = Filled(world.clock, world.log)
    back_up(cluster, tmp_path / "b")
    exported, _ = cluster.export()
    state = [one for one in exported.load() if isinstance(one, PutState)]
    assert sorted((one.key, one.value) for one in state) == wanted
    again = ClusterWorld("a", "b")
    again.complete_drain("a")
    again.change_state("a", old=b"4", stale=b"4")
    again.stop_together()
    again.advance(20.0)
    filled = Filled(again.clock, again.log)
    with pytest.raises(StoreError, match="2 keys of plugins"):
        restore(filled, tmp_path / "b")
    restore(filled, tmp_path / "b", replace=True)
    again.start("a")
    again.start("b")
    assert again.read_state("a") == wanted
    world.close()
    again.close()


def test_undelivered_messages_are_delivered_after_a_restore(tmp_path: Path) -> None:
    world = ClusterWorld("a", "b")
    client = world.connect("a", "s", session_expiry_interval=EXPIRY)
    client.subscribe("t/#", 1)
    client.disconnect()
    publisher = world.connect("b", "p")
    publisher.publish("t/1", b"delivered", 1)
    world.settle()
    world.kill("a")
    for number in range(3):
        publisher.publish("t/2", b"%d" % number, 1)
    world.settle()
    cluster = Filled(world.clock, world.log)
    back_up(cluster, tmp_path / "b")
    world.close()
    again = ClusterWorld()
    filled = Filled(again.clock, again.log)
    assert restore(filled, tmp_path / "b").undelivered > 0
    again.start("a")
    again.start("b")
    resumed = again.connect("b", "s", clean_start=False, session_expiry_interval=EXPIRY)
    again.advance(1.0)
    assert [one.payload for one in resumed.messages] == [b"delivered", b"0", b"1", b"2"]
    again.close()


def test_parts_of_a_frame_stay_together(tmp_path: Path) -> None:
    cluster = Filled(VirtualRuntime(1), faults=Faults(page=2))
    cluster.fill(stored())
    frame = PeerFrame(Origin("b", "b1", 1), (MessageItem(message(1), (), True),) * 20)
    parts = encode_peer(frame, 300)
    assert len(parts) > 3
    cluster.log.append([Entry(NAMES.lane("a"), part) for part in parts])
    assert back_up(cluster, tmp_path / "b").lanes == 2
    other = Filled(VirtualRuntime(2))
    assert restore(other, tmp_path / "b").undelivered == len(parts)
    assert everything(other) == everything(cluster)


@pytest.mark.parametrize("seed", range(6))
def test_a_backup_under_load_is_of_one_moment(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sessions on two nodes get the same messages, while the log is read slowly and trimmed often. Each message is
    acknowledged before the next one is sent, so a moment has a prefix of them, without gaps.
    """
    for name, value in (("SLACK", 0), ("LEAST", 1000), ("TRIM", 1)):
        monkeypatch.setattr(compaction, name, value)
    world = ClusterWorld("a", "b", faults=Faults(page=4, lag=0.02), seed=seed)
    for name in ("a", "b"):
        client = world.connect(name, f"s{name}", session_expiry_interval=EXPIRY)
        client.subscribe("t", 1)
        client.disconnect()
    publisher = world.connect("a", "p")
    sent = 0

    def publish(count: int) -> None:
        nonlocal sent
        for _ in range(count):
            publisher.publish("t", b"%d" % sent, 1, expect=0)
            publisher.publish("kept", b"%d" % sent, 1, retain=True, expect=16)
            sent += 1

    publish(20)
    cluster = Filled(world.clock, world.log)
    read = cluster.engine.read

    def slowly(filters: Sequence[str], after: int, done: Callable[[Any], None]) -> None:
        world.clock.call_later(0.1, partial(read, filters, after, done))

    monkeypatch.setattr(cluster.engine, "read", slowly)
    out = io.BytesIO()
    ended: list[Any] = []
    world.clock.spawn(
        write_backup(cluster.engine, NAMES, world.clock, out), lambda *result: ended.append(result)
    )
    first = sent
    while sent < first + 30:
        publish(1)
    world.advance(60.0)
    [(counts, error)] = ended
    assert error is None
    (tmp_path / "b").write_bytes(out.getvalue())
    world.close()
    again = Filled(VirtualRuntime(seed))
    assert restore(again, tmp_path / "b").sessions == counts.sessions
    found = again.contents()
    queues = {
        name: [int(one.payload) for _, one in found.lanes[name].state.queue(f"c/s{name}")]
        for name in ("a", "b")
    }
    for queue in queues.values():
        assert queue == list(range(len(queue)))
    here, there = len(queues["a"]), len(queues["b"]) + found.undelivered.get("b", 0)
    assert here >= first + 1, "nothing was written meanwhile"
    # One commit has the queue entry here and the message for the other lane. The retained message follows.
    assert here == there
    [kept] = found.retained
    assert here - 2 <= int(kept.message.payload) <= here - 1


def test_a_damaged_or_newer_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Filled(VirtualRuntime(1))
    cluster.fill(stored())
    file = tmp_path / "b"
    back_up(cluster, file)
    good = file.read_bytes()
    for place in (len(good) - 1, len(good) // 2, 60):
        file.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        with pytest.raises(
            StoreError, match=r"b is damaged or cut off: the checksum of its [\d,]+ bytes"
        ):
            BackupReader(file)
    for size in (len(good) - 1, len(good) // 2, 40, 23):
        file.write_bytes(good[:size])
        with pytest.raises(StoreError, match="b is damaged or cut off"):
            BackupReader(file)
    for text in (b"", b"{}", b"HOOKMQ"):
        file.write_bytes(text)
        with pytest.raises(StoreError, match="b is not a backup of a cluster"):
            BackupReader(file)
    monkeypatch.setattr(backup_file, "VERSION", 2)
    back_up(cluster, file)
    monkeypatch.undo()
    with pytest.raises(StoreError, match=r"has version 2 of backups; .* reads versions up to 1"):
        BackupReader(file)
    with pytest.raises(StoreError, match="missing: No such file"):
        BackupReader(tmp_path / "missing")


def test_a_cluster_with_contents_is_not_overwritten_unless_asked(tmp_path: Path) -> None:
    cluster = Filled(VirtualRuntime(1))
    cluster.fill(stored())
    back_up(cluster, tmp_path / "b")
    before = everything(cluster)
    with pytest.raises(StoreError, match="already has 6 sessions"):
        restore(cluster, tmp_path / "b")
    assert everything(cluster) == before
    restore(cluster, tmp_path / "b", replace=True)
    assert everything(cluster) == before


def test_clients_that_have_gone_stay_away(tmp_path: Path) -> None:
    """The entry that a session has ended is newer than the one that it began."""
    world = ClusterWorld("a")
    world.connect("a", "s", session_expiry_interval=EXPIRY).disconnect()
    gone: MemoryClient = world.connect("a", "gone", session_expiry_interval=EXPIRY)
    gone.disconnect(session_expiry_interval=0)
    world.settle()
    cluster = Filled(world.clock, world.log)
    assert back_up(cluster, tmp_path / "b").sessions == 1
    again = ClusterWorld()
    restore(Filled(again.clock, again.log), tmp_path / "b")
    again.start("a")
    assert not again.connect("a", "gone", clean_start=False).session_present
    assert again.connect("a", "s", clean_start=False).session_present
    again.close()
