"""Regression tests for vulnerabilities that attacks on this broker found."""

from typing import Any

import mqttbytes as m
import pytest
from attacks import at_rest
from bytememory import in_memory, join
from hookmq.config.model import loads
from hookmq.model.client import Scope
from hookmq.model.errors import ConfigError
from hookmq.mqtt.packets import Puback
from hookmq_testing import DurableStore, Harness, SlowStore, will

MEGABYTE = 1 << 20
TENANT = Scope(name="a", mount_point="a/")
OTHER = Scope(name="b", mount_point="b/")

# --- mount points -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("clean", [False, True])
def test_a_client_id_does_not_reach_behind_another_mount_point(
    harness: Harness, version: int, clean: bool
) -> None:
    """A client can neither subscribe behind another mount point, nor take over or end a session there."""
    keep: dict[str, Any] = {"session_expiry_interval": 100} if version == 5 else {}
    victim = harness.connect("same", version, False, scope=TENANT, **keep)
    victim.subscribe("secret", 1)
    refused = 0x85 if version == 5 else 2
    harness.connect("same", version, clean, scope=OTHER, expect=refused)
    victim.ping()
    victim.drop()
    harness.connect("p", scope=TENANT).publish("secret", b"1", qos=1)
    harness.connect("same", version, clean, scope=OTHER, expect=refused)
    victim.reconnect()
    assert victim.session_present
    victim.expect_message("secret", b"1")


def test_nor_while_it_waits_for_its_turn(broker_harness: Any) -> None:
    """The mount point of a session is checked again after the delay of a flapping client id."""
    harness = broker_harness(config={"broker": {"flapping_takeovers": 1, "flapping_delay": 5.0}})
    harness.connect("same", scope=OTHER)
    harness.connect("same", scope=OTHER)
    waits = harness.connect("same", scope=OTHER, expect=None)
    harness.broker.sessions["same"].connection.disconnect(0)
    victim = harness.connect("same", scope=TENANT, session_expiry_interval=100)
    harness.advance(6)
    waits.expect_closed() if not waits.unread else None
    assert waits.closed
    victim.ping()


def test_a_listener_whose_mount_point_changed_starts_sessions_anew(harness: Harness) -> None:
    client = harness.connect("c", scope=TENANT, session_expiry_interval=100)
    client.subscribe("t", 1)
    client.drop()
    client.reconnect(scope=Scope(name="a", mount_point="new/"))
    assert not client.session_present
    assert at_rest(harness)["subscriptions"] == 0


@pytest.mark.parametrize("topic", ["a", "a/"])
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("retain", [False, True])
def test_no_empty_topic_comes_through(
    harness: Harness, topic: str, version: int, retain: bool
) -> None:
    """A message that would have an empty topic is not delivered. "a/#" also matches "a", which
    would become an empty topic behind the mount point and disconnect its subscribers.
    """
    inside = harness.connect(
        "inside", version, scope=TENANT, topic_alias_maximum=9 if version == 5 else None
    )
    inside.subscribe("#", 1)
    sender = harness.connect("p")
    for qos in (0, 1, 2, 0):
        sender.publish(topic, b"poison", qos, retain)
    inside.unsubscribe("#")
    inside.subscribe("#", 1)
    assert inside.messages == []
    sender.publish("a/b", b"good")
    inside.expect_message("b", b"good")
    assert harness.metrics.dropped["denied", "out"] >= 4


def test_a_mount_point_does_not_make_a_topic_too_long(harness: Harness) -> None:
    """A message is refused if the mount point makes its topic too long. It could not be sent to
    anyone, and its failure would also stop deliveries to other subscribers.
    """
    witness = harness.connect("witness")
    witness.subscribe("#")
    for topic, retain in (("x" * 65535, False), ("x" * 65535, True), ("/" * 200, False)):
        client = join(harness, scope=TENANT)
        client.publish(topic, b"x", retain=retain)
        client.refused(0x90)
        refused = in_memory(harness, scope=Scope(mount_point="a/", connect_bytes=100_000))
        refused.connect("w", will=(topic, b""))
        refused.not_accepted(0x90)
    client = join(harness, scope=TENANT)
    client.publish("x" * 65533, b"x")
    client.expect()
    witness.expect_message("a/" + "x" * 65533)
    witness.expect_nothing()
    client.send(
        m.subscribe(
            1,
            ("+/" * 200 + "+", 1),
            ("y" * 65534, 1),
            ("$share/g/" + "+/" * 200 + "+", 1),
            ("ok", 1),
        )
    )
    assert m.body(client.take_one())[-4:] == b"\x8f\x8f\x8f\x01"
    assert set(harness.broker.sessions["c"].subscriptions) == {"ok"}


# --- calls within calls -----------------------------------------------------------------------------------------------


def test_a_chain_of_wills_does_not_recurse(broker_harness: Any) -> None:
    """A chain of wills does not cause recursion. Each client's will makes the next client's queue overflow, which
    disconnects that client.
    """
    config = {"session": {"queue_drop": "disconnect", "queue_messages": 0}}
    harness = broker_harness(config=config)
    count = 400
    chain = []
    for number in range(count):
        client = harness.connect(
            f"c{number}", will=will(f"w/{number}", b"x", 1), receive_maximum=1, auto_ack=False
        )
        client.subscribe([f"w/{number - 1}", "fill"], 1)
        chain.append(client)
    harness.connect("p").publish("fill", b"x", qos=1)
    chain[0].drop()
    harness.settle()
    assert [client.client_id for client in chain if not client.wire.closed] == []
    assert harness.metrics.wills_published == count
    assert at_rest(harness)["sessions"] == 1


# --- memory -----------------------------------------------------------------------------------------------------------


def test_retained_messages_do_not_all_leave_in_one_turn(harness: Harness) -> None:
    """A subscriber that does not read cannot make the broker write all retained messages at once."""
    sender = harness.connect("p")
    for number in range(30):
        sender.publish(f"r/{number}", bytes(MEGABYTE // 2), retain=True)
    client = join(harness)
    client.wire.block()
    client.send(m.subscribe(1, ("r/#", 0)))
    assert client.wire.unsent < 2 * MEGABYTE
    client.wire.unblock()
    assert len(client.take_frames()) == 31


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_nor_does_what_waited(broker_harness: Any, qos: int) -> None:
    harness = broker_harness(config={"session": {"queue_qos0": True, "queue_bytes": 64 * MEGABYTE}})
    client = harness.connect("c", session_expiry_interval=100, auto_ack=False)
    client.subscribe("t", qos)
    client.drop()
    sender = harness.connect("p")
    for _ in range(20):
        sender.publish("t", bytes(MEGABYTE // 2), qos)
    client.reconnect(expect=None)  # a client that reads: what is in flight is sent again below
    assert len(client.messages) == 20
    client.drop()
    for again in range(2):
        client._open()
        client.wire.block()
        client.send_connect()
        assert client.wire.unsent < 2 * MEGABYTE
        if again:
            client.resume()
            assert len(client.messages) == (40 if qos else 20)
        client.drop()


def test_answers_that_wait_for_a_commit_are_bounded() -> None:
    """The number of responses waiting for a commit is limited. Without a limit, four bytes from a
    client could cause three hundred bytes of responses while the disk is stuck.
    """
    store = SlowStore(slow=False)
    with Harness(store=store) as harness:
        client = join(harness, properties=m.session_expiry(100))
        store.slow = True
        client.send(m.subscribe(1, ("a", 1)))
        for _ in range(5):
            client.send(m.pubrel(7) * 5000)
        assert client.connection.answers is not None
        assert len(client.connection.answers) < 3000
        assert not client.wire.reading
        store.slow = False
        store.finish()
        answers = client.take_frames()
        assert answers[0] == m.suback(1, 1)
        assert len(answers) == 25_001  # and none was lost
        assert client.wire.reading


def test_a_stuck_disk_does_not_keep_a_flooding_client() -> None:
    store = SlowStore(slow=False)
    with Harness(store=store) as harness:
        client = join(harness, properties=m.session_expiry(100))
        store.slow = True
        client.send(m.subscribe(1, ("a", 1)))
        client.send(m.pubrel(7) * 5000)
        harness.advance(61)
        assert client.wire.closed
        store.slow = False
        store.finish()


def test_loaded_messages_count_with_all_their_parts() -> None:
    """After a restart, messages loaded from the store count in full against the size limits."""
    store = DurableStore()
    with Harness(store=store) as harness:
        client = harness.connect("c", session_expiry_interval=100)
        client.subscribe("t/#", 1)
        client.drop()
        sender = harness.connect("p")
        sender.publish("t/" + "x" * 1000, b"", 1, user_property=(("k", "v" * 1000),))
        sender.publish("t/r", b"x", 1, True, correlation_data=b"c" * 1000)
        core = harness.broker.state
        sizes = (core.queued_bytes, core.retained_bytes)
        assert sizes[0] > 3000
        assert sizes[1] > 1000
        harness.restart()
        core = harness.broker.state
        assert (core.queued_bytes, core.retained_bytes) == sizes
        client.reconnect()
        assert len(client.messages) == 2
        assert core.queued_bytes == 0


# --- configuration ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number", ["0x" + "f" * 6000, "9" * 400, "0o" + "7" * 5000, "-" + "9" * 5000, "9" * 100_000]
)
@pytest.mark.parametrize(
    "key",
    ["version", "broker.max_qos", "session.max_expiry", "broker.max_packet_size", "log.level"],
)
def test_numbers_beyond_reason_are_mistakes(key: str, number: str) -> None:
    """Numbers that are far too large are configuration errors. Python's conversions used to raise OverflowError and
    ValueError.
    """
    text = "version: 1\nlisteners: [{bind: '127.0.0.1:0'}]\n"
    with pytest.raises(ConfigError):
        loads(text, options=[f"{key}={number}"], environ={})
    section, _, name = key.partition(".")
    line = f"{section}: {{{name}: {number}}}\n" if name else f"{key}: {number}\n"
    with pytest.raises(ConfigError):
        loads(
            text.replace("version: 1\n", "" if key == "version" else "version: 1\n") + line,
            environ={},
        )


def test_puback_of_what_was_never_sent(harness: Harness) -> None:
    """A PUBACK for a packet id that was never used is tolerated and uses no memory."""
    client = harness.connect("c")
    client.send(*(Puback(number) for number in range(1, 5000)))
    client.ping()
    assert harness.broker.sessions["c"].inflight == {}
