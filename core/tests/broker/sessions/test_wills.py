"""Test wills: when they are published, when they are not, and under whose identity."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.hooks.verdicts import Accept, Allow, Deny
from hookmq.model.client import Scope
from hookmq.mqtt.packets import Connack, Connect, Publish
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.plugin import Action
from hookmq_testing import DurableStore, Harness, HookRecorder, MemoryClient, SlowStore, will

Make = Callable[..., Harness]

VERSIONS = pytest.mark.parametrize("version", [3, 4, 5])


@pytest.fixture
def watcher(harness: Harness) -> MemoryClient:
    client = harness.connect("watcher")
    client.subscribe("#", 2)
    return client


# --- which end publishes it ---------------------------------------------------------------------------------------------


@VERSIONS
def test_the_network_fails(harness: Harness, watcher: MemoryClient, version: int) -> None:
    # [MQTT-3.1.2-8]
    client = harness.connect("c", version, will=will("w/x", b"gone", 1))
    client.drop()
    watcher.expect_message("w/x", b"gone", 1, retain=False)
    watcher.expect_nothing()
    assert harness.metrics.wills_published == 1


@VERSIONS
def test_a_goodbye_takes_it_along(harness: Harness, watcher: MemoryClient, version: int) -> None:
    # Edge case 5 [MQTT-3.14.4-3, 3.1.2-10] [MQTT311-3.14.4-3]
    client = harness.connect("c", version, will=will("w", b"gone"))
    client.disconnect()
    harness.advance(1e5)
    watcher.expect_nothing()
    assert harness.metrics.wills_published == 0


@pytest.mark.parametrize("code", [0x04, 0x80, 0x81, 0x82, 0x83, 0x93, 0x94, 0x95, 0x97, 0x98])
def test_any_other_goodbye_does_not(harness: Harness, watcher: MemoryClient, code: int) -> None:
    harness.connect("c", will=will("w", b"gone")).disconnect(code)
    watcher.expect_message("w", b"gone")


def test_a_goodbye_that_is_wrong_does_not(harness: Harness, watcher: MemoryClient) -> None:
    # only the server may send 0x8D [MQTT-3.14.2-1]
    client = harness.connect("c", will=will("w", b"gone"))
    client.raw(b"\xe0\x02\x8d\x00")
    watcher.expect_message("w", b"gone")
    assert client.closed


@VERSIONS
def test_a_protocol_error(harness: Harness, watcher: MemoryClient, version: int) -> None:
    client = harness.connect("c", version, will=will("w", b"gone"))
    client.raw(b"\x20\x02\x00\x00")
    client.expect_disconnect()
    watcher.expect_message("w", b"gone")


def test_keep_alive(harness: Harness, watcher: MemoryClient) -> None:
    harness.connect("c", keep_alive=10, will=will("w", b"gone"))
    harness.advance(14.9)
    watcher.expect_nothing()
    harness.advance(0.2)
    watcher.expect_message("w", b"gone")


@pytest.mark.parametrize("drop", [True, False])
def test_a_plugin_sends_the_client_away(broker_harness: Make, drop: bool) -> None:
    harness = broker_harness([HookRecorder("on_connect")])
    watcher = harness.connect("watcher")
    watcher.subscribe("#")
    client = harness.connect("c", will=will("w", b"gone"))
    assert harness.handle("recorder").disconnect("c", drop_will=drop)
    client.expect_disconnect(ReasonCode.ADMINISTRATIVE_ACTION)
    if not drop:
        watcher.expect_message("w", b"gone")
    watcher.expect_nothing()


def test_the_broker_drains(harness: Harness) -> None:
    # Only a client with a durable session can receive this will.
    watcher = harness.connect("watcher", session_expiry_interval=100)
    watcher.subscribe("w", 1)
    harness.connect("c", will=will("w", b"gone", 1))
    told: list[None] = []
    harness.broker.drain("", lambda: told.append(None))
    harness.settle()
    assert told == [None]
    watcher.expect_disconnect(ReasonCode.SERVER_SHUTTING_DOWN)
    assert harness.metrics.wills_published == 1


def test_a_refused_client_has_none(harness: Harness, watcher: MemoryClient) -> None:
    client = harness.open(version=4)
    client.send(Connect("", 4, False, 0, will=will("w", b"gone")))
    assert client.closed
    watcher.expect_nothing()


def test_a_client_that_never_got_its_connack_has_none(broker_harness: Make) -> None:
    recorder = HookRecorder("on_connect")
    harness = broker_harness([recorder])
    watcher = harness.connect("watcher")
    watcher.subscribe("#")
    recorder.answer("on_connect", harness.clock.event())
    harness.connect("c", will=will("w", b"gone"), expect=None).drop()
    harness.advance(1e4)
    watcher.expect_nothing()


def test_a_client_whose_commit_never_came_has_none(broker_harness: Make) -> None:
    store = SlowStore()
    harness = broker_harness(store=store)
    watcher = harness.connect("watcher")
    watcher.subscribe("#")
    client = harness.connect("c", session_expiry_interval=100, will=will("w", b"x"), expect=None)
    client.drop()
    other = harness.connect("d", session_expiry_interval=100, will=will("w", b"y"), expect=None)
    harness.advance(60)
    assert other.expect(Connack).code == ReasonCode.SERVER_UNAVAILABLE
    store.finish()
    store.slow = False
    harness.advance(200)
    watcher.expect_nothing()


def test_it_is_published_once(harness: Harness, watcher: MemoryClient) -> None:
    client = harness.connect("c", session_expiry_interval=50, will=will("w", b"gone", delay=10))
    client.drop()
    harness.advance(10.1)
    watcher.expect_message("w", b"gone")
    harness.advance(100)
    client.reconnect()
    client.disconnect()
    harness.advance(100)
    watcher.expect_nothing()


def test_each_connection_has_its_own(harness: Harness, watcher: MemoryClient) -> None:
    # [MQTT-3.1.2-7]: only the will in the session's latest CONNECT counts, even if that CONNECT has none
    client = harness.connect("c", session_expiry_interval=100, will=will("w", b"1"))
    client.disconnect()
    client.reconnect(will=will("w", b"2"))
    client.drop()
    watcher.expect_message("w", b"2")
    client.reconnect(will=None)
    client.drop()
    harness.advance(1000)
    watcher.expect_nothing()


# --- delay --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("delay", "expiry", "due"),
    [
        (None, 100, 0),
        (0, 100, 0),
        (10, 100, 10),
        (100, 10, 10),  # the session ends first
        (10, 10, 10),
        (10, None, 0),  # the session ends at once
        (10, 0, 0),
        (0xFFFFFFFF, 50, 50),
        (20, 0xFFFFFFFF, 20),
    ],
)
def test_a_will_is_published_after_its_delay_or_at_the_end_of_the_session(
    harness: Harness, watcher: MemoryClient, delay: int | None, expiry: int | None, due: float
) -> None:
    # Edge case 4: the earlier of the delay and the session's end [MQTT-3.1.2-8]
    client = harness.connect(
        "c", session_expiry_interval=expiry, will=will("w", b"gone", delay=delay)
    )
    client.drop()
    if due:
        harness.advance(due - 0.1)
        watcher.expect_nothing()
        harness.advance(0.2)
    watcher.expect_message("w", b"gone")
    harness.advance(1000)
    watcher.expect_nothing()
    assert harness.metrics.wills_published == 1


def test_the_longest_delay(broker_harness: Make) -> None:
    harness = broker_harness(config={"session": {"max_will_delay": 5.0}})
    watcher = harness.connect("watcher")
    watcher.subscribe("#")
    client = harness.connect("c", session_expiry_interval=100, will=will("w", delay=50))
    client.drop()
    harness.advance(4.9)
    watcher.expect_nothing()
    harness.advance(0.2)
    watcher.expect_message("w")


def test_an_expiry_that_changes_at_the_goodbye(harness: Harness, watcher: MemoryClient) -> None:
    client = harness.connect("c", session_expiry_interval=100, will=will("w", b"gone", delay=50))
    client.disconnect(0x04, session_expiry_interval=10)
    harness.advance(9.9)
    watcher.expect_nothing()
    harness.advance(0.2)
    watcher.expect_message("w", b"gone")


def test_a_session_that_ends_at_the_goodbye(harness: Harness, watcher: MemoryClient) -> None:
    client = harness.connect("c", session_expiry_interval=100, will=will("w", b"gone", delay=50))
    client.disconnect(0x04, session_expiry_interval=0)
    watcher.expect_message("w", b"gone")


def test_a_client_that_is_back_in_time(harness: Harness, watcher: MemoryClient) -> None:
    # [MQTT-3.1.3-9]
    client = harness.connect("c", session_expiry_interval=100, will=will("w", b"1", delay=10))
    client.drop()
    harness.advance(9.9)
    client.reconnect(will=will("w", b"2", delay=20))
    harness.advance(50)
    watcher.expect_nothing()
    client.drop()
    harness.advance(19.9)
    watcher.expect_nothing()
    harness.advance(0.2)
    watcher.expect_message("w", b"2")


def test_a_client_that_begins_anew_in_time(harness: Harness, watcher: MemoryClient) -> None:
    # Clean Start ends the session, so the delay ends too.
    client = harness.connect("c", session_expiry_interval=100, will=will("w", b"1", delay=10))
    client.drop()
    watcher.expect_nothing()
    client.reconnect(clean_start=True, will=None)
    watcher.expect_message("w", b"1")
    harness.advance(100)
    watcher.expect_nothing()


def test_a_client_that_is_back_at_the_last_moment(harness: Harness, watcher: MemoryClient) -> None:
    client = harness.connect("c", session_expiry_interval=100, will=will("w", b"1", delay=10))
    client.drop()
    harness.advance(10)
    watcher.expect_message("w", b"1")
    client.reconnect()
    watcher.expect_nothing()


def test_a_refused_return_is_none(broker_harness: Make) -> None:
    recorder = HookRecorder("on_connect")
    harness = broker_harness([recorder])
    watcher = harness.connect("watcher")
    watcher.subscribe("#")
    client = harness.connect("c", session_expiry_interval=100, will=will("w", b"1", delay=10))
    client.drop()
    recorder.answer("on_connect", Deny())
    client.reconnect(expect=0x87)
    watcher.expect_nothing()
    harness.advance(10.1)
    watcher.expect_message("w", b"1")


def test_a_return_that_waits_for_a_plugin_is_none_yet(broker_harness: Make) -> None:
    recorder = HookRecorder("on_connect")
    recorder.answer("on_connect", Accept())
    harness = broker_harness([recorder])
    watcher = harness.connect("watcher")
    watcher.subscribe("#")
    client = harness.connect("c", session_expiry_interval=100, will=will("w", b"1", delay=2))
    client.drop()
    verdict = harness.clock.event()
    recorder.answer("on_connect", verdict)
    client.reconnect(expect=None)
    harness.advance(2.1)
    watcher.expect_message("w", b"1")
    verdict.set(Accept())
    harness.settle()
    assert client.session_present
    watcher.expect_nothing()


def test_3_has_no_delay(harness: Harness, watcher: MemoryClient) -> None:
    client = harness.connect("c", 4, clean_start=False, will=will("w", b"1", 1))
    client.drop()
    watcher.expect_message("w", b"1")
    client.reconnect()
    harness.advance(1000)
    watcher.expect_nothing()


# --- as a message -------------------------------------------------------------------------------------------------------


def test_properties_travel_with_it(harness: Harness, watcher: MemoryClient) -> None:
    given: dict[str, Any] = {
        "payload_format_indicator": 1,
        "message_expiry_interval": 60,
        "content_type": "text",
        "response_topic": "answer",
        "correlation_data": b"\x00\x01",
        "user_property": (("b", "1"), ("a", "2"), ("b", "1")),
    }
    client = harness.connect(
        "c", session_expiry_interval=100, will=will("w", b"x", 2, delay=50, **given)
    )
    client.drop()
    harness.advance(50.1)
    message = watcher.expect_message("w", b"x", 2)
    for name, value in given.items():
        assert getattr(message.properties, name) == value, name
    assert message.properties.will_delay_interval is None


def test_it_expires_from_its_publication_on(harness: Harness) -> None:
    away = harness.connect("away", session_expiry_interval=1000)
    away.subscribe("w", 1)
    away.drop()
    client = harness.connect(
        "c",
        session_expiry_interval=100,
        will=will("w", b"x", 1, delay=50, message_expiry_interval=20),
    )
    harness.advance(500)
    client.drop()
    harness.advance(60)
    away.reconnect()
    assert away.expect_message("w", b"x").properties.message_expiry_interval == 10
    away.drop()
    client.reconnect()
    client.drop()
    harness.advance(71)
    away.reconnect()
    away.expect_nothing()


def test_it_may_be_retained(harness: Harness, watcher: MemoryClient) -> None:
    # [MQTT-3.1.2-14, 3.1.2-15]
    client = harness.connect("c", will=will("w", b"gone", retain=True))
    client.drop()
    watcher.expect_message("w", b"gone", retain=False)
    late = harness.connect("late")
    late.subscribe("w")
    late.expect_message("w", b"gone", retain=True)
    client.reconnect(will=will("w", b"", retain=True))
    client.drop()
    watcher.expect_message("w", b"")
    late.subscribe("w")
    late.expect_message("w", b"")
    late.expect_nothing()


def test_its_own_sender_may_get_it(harness: Harness) -> None:
    client = harness.connect("c", session_expiry_interval=100, will=will("w", b"gone", 1))
    client.subscribe("w", 1)
    client.drop()
    client.reconnect()
    client.expect_message("w", b"gone")


def test_no_local_holds_for_wills(harness: Harness) -> None:
    client = harness.connect("c", session_expiry_interval=100, will=will("w", b"gone", 1))
    client.subscribe("w", 1, no_local=True)
    client.drop()
    client.reconnect()
    client.expect_nothing()


def test_a_mount_point_holds_for_wills(harness: Harness, watcher: MemoryClient) -> None:
    client = harness.connect("c", scope=Scope(mount_point="tenant/"), will=will("w", b"x"))
    client.drop()
    watcher.expect_message("tenant/w", b"x")


def test_a_shared_subscription_gets_it_once(harness: Harness) -> None:
    members = [harness.connect(f"m{number}") for number in range(3)]
    for member in members:
        member.subscribe("$share/g/w", 1)
    harness.connect("c", will=will("w", b"x", 1)).drop()
    assert sum(len(member.messages) for member in members) == 1


def test_a_will_that_is_denied_is_not_logged_as_published(broker_harness: Make) -> None:
    recorder = HookRecorder("authorize")
    # The verdicts at CONNECT and when the will is due.
    recorder.answer("authorize", Allow(), Deny())
    harness = broker_harness([recorder])
    harness.connect("c", will=will("w", b"x", 1)).drop()
    harness.settle()
    assert harness.metrics.dropped == {("denied", "in"): 1}
    assert harness.logged("will.published") == []


def test_nobody_wants_it(harness: Harness) -> None:
    harness.connect("c", will=will("w", b"x", 1)).drop()
    [said] = harness.logged("will.published")
    assert (said["client_id"], said["topic"], said["matched"]) == ("c", "w", 0)


# --- plugins ------------------------------------------------------------------------------------------------------------


HOOKS = ("authorize", "on_will", "on_publish", "on_published", "on_disconnect", "on_dropped")


@pytest.fixture
def recorder() -> HookRecorder:
    return HookRecorder(*HOOKS)


def observed(broker_harness: Make, recorder: HookRecorder) -> tuple[Harness, MemoryClient]:
    harness = broker_harness([recorder])
    watcher = harness.connect("watcher")
    watcher.subscribe("#", 2)
    recorder.clear()
    return harness, watcher


# --- nobody can decide --------------------------------------------------------------------------------------------------


def test_an_expired_credential_does_not_silence_it(broker_harness: Make) -> None:
    recorder = HookRecorder("on_connect")
    harness = broker_harness([recorder])
    watcher = harness.connect("watcher")
    watcher.subscribe("#")
    recorder.answer("on_connect", Accept("x", expires_at=harness.clock.time() + 10))
    client = harness.connect("c", will=will("w", b"gone"))
    harness.advance(11)
    client.expect_disconnect(ReasonCode.MAXIMUM_CONNECT_TIME)
    watcher.expect_message("w", b"gone")


def test_a_goodbye_behind_a_publish_that_waits(
    broker_harness: Make, recorder: HookRecorder
) -> None:
    # Packets received before DISCONNECT are processed first. DISCONNECT then still discards the will.
    harness, watcher = observed(broker_harness, recorder)
    pending = harness.clock.event()
    client = harness.connect("c", will=will("w", b"gone"))
    recorder.answer("on_publish", pending)
    client.send(Publish("a", b"x", 1, packet_id=1))
    client.disconnect()
    watcher.expect_nothing()
    pending.set(None)
    watcher.expect_message("a", b"x")
    watcher.expect_nothing()
    assert harness.metrics.wills_published == 0


# --- durability ---------------------------------------------------------------------------------------------------------


def test_it_survives_a_crash(broker_harness: Make) -> None:
    harness = broker_harness(store=DurableStore())
    watcher = harness.connect("watcher", session_expiry_interval=1000)
    watcher.subscribe("#", 1)
    client = harness.connect("c", session_expiry_interval=100, will=will("w", b"x", 1, delay=50))
    client.drop()
    harness.advance(20)
    harness.restart()
    watcher.reconnect()
    harness.advance(29)
    watcher.expect_nothing()
    harness.advance(1.1)
    watcher.expect_message("w", b"x")
    harness.restart()
    harness.advance(200)
    watcher.reconnect()
    watcher.expect_nothing()


def test_a_crash_publishes_the_wills_of_connected_clients(broker_harness: Make) -> None:
    harness = broker_harness(store=DurableStore())
    watcher = harness.connect("watcher", session_expiry_interval=1000)
    watcher.subscribe("#", 1)
    harness.connect("c", session_expiry_interval=100, will=will("w", b"x", 1, delay=50))
    harness.restart()
    watcher.reconnect()
    harness.advance(51)
    watcher.expect_message("w", b"x")


def test_a_return_after_a_crash_is_in_time(broker_harness: Make) -> None:
    harness = broker_harness(store=DurableStore())
    watcher = harness.connect("watcher", session_expiry_interval=1000)
    watcher.subscribe("#", 1)
    client = harness.connect("c", session_expiry_interval=100, will=will("w", b"x", 1, delay=50))
    harness.restart()
    watcher.reconnect()
    client.reconnect(will=None)
    assert client.session_present
    harness.advance(200)
    watcher.expect_nothing()


def test_after_a_crash_it_is_still_its_owners(broker_harness: Make) -> None:
    recorder = HookRecorder("on_connect", "authorize")
    recorder.answer("on_connect", Accept("boss", {"level": 3}))
    harness = broker_harness([recorder], store=DurableStore())
    scope = Scope("tls", mount_point="tenant/")
    client = harness.connect(
        "c", 5, True, 0, "u", scope=scope, session_expiry_interval=100, will=will("w", delay=50)
    )
    client.drop()
    harness.restart()
    recorder.clear()
    harness.advance(51)
    [call] = recorder.calls("authorize")
    assert (call.action, call.topic) == (Action.WILL, "tenant/w")
    assert (call.client.client_id, call.client.username) == ("c", "u")
    assert (call.client.identity, call.client.claims) == ("boss", {"level": 3})
    assert call.client.listener == "tls"


def test_it_leaves_with_its_commit(broker_harness: Make) -> None:
    store = SlowStore(slow=False)
    harness = broker_harness(store=store)
    watcher = harness.connect("watcher", session_expiry_interval=1000)
    watcher.subscribe("w", 2)
    client = harness.connect("c", session_expiry_interval=100, will=will("w", b"x", 2))
    store.slow = True
    client.drop()
    watcher.expect_nothing()
    store.finish()
    store.slow = False
    watcher.expect_message("w", b"x", 2)


def test_wills_of_many_at_once(harness: Harness, watcher: MemoryClient) -> None:
    clients = [harness.connect(f"c{n}", will=will(f"w/{n}", b"x", 1)) for n in range(50)]
    with harness.together():
        for client in clients:
            client.wire.lose("power cut")
    assert sorted(message.topic for message in watcher.messages) == sorted(
        f"w/{n}" for n in range(50)
    )
    # One write per connection and turn, however many messages
    turns = [write.turn for write in watcher.wire.writes]
    assert len(turns) == len(set(turns))
