"""Test groups with `settle: explicit`: consumers settle messages by publishing to $ack, $nack and $reject."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hookmq.mqtt_api import Puback, Publish
from hookmq.plugin import Action, Deny
from hookmq_queues.settlement import (
    MAX_IDS,
    MAX_MESSAGES,
    MAX_REASON,
    Settlement,
    SettlementError,
    parse,
)
from hookmq_testing import Harness, HookRecorder, MemoryClient
from hypothesis import given
from hypothesis import strategies as st

from .conftest import plugin_of

Make = Callable[..., Harness]
JOBS = "$queue/jobs"
GROUP = {"name": "work", "settle": "explicit"}


def queue(**group: Any) -> dict[str, Any]:
    return {"name": "jobs", "groups": [{**GROUP, **group}]}


def settle(
    client: MemoryClient, verb: str, ids: str | Iterable[str], to: str = JOBS, **properties: str
) -> tuple[int, str | None]:
    """Publish a settlement. Return the reason code and reason string of its PUBACK."""
    ids = (ids,) if isinstance(ids, str) else ids
    pairs = (*(("message-id", one) for one in ids), *properties.items())
    number = client.publish(f"{to}/${verb}", b"", 1, user_property=pairs)
    client.harness.settle()
    for at, packet in enumerate(client.unread):
        if isinstance(packet, Puback) and packet.packet_id == number:
            del client.unread[at]
            return packet.code, packet.properties.reason_string
    raise AssertionError("no PUBACK")


def take(client: MemoryClient) -> list[tuple[str, int]]:
    """Take the messages that a client has received. Return their payloads and delivery counts."""
    client.harness.settle()
    found = [one for one in client.unread if isinstance(one, Publish)]
    client.unread.clear()
    return [
        (one.payload.decode(), int(dict(one.properties.user_property or ())["delivery-count"]))
        for one in found
    ]


def properties(message: Publish) -> dict[str, str]:
    return dict(message.properties.user_property or ())


def consumer(harness: Harness, name: str = "c", **connect: Any) -> MemoryClient:
    client = harness.connect(name, **connect)
    assert client.subscribe(JOBS, 1).codes == (1,)
    return client


def publish(harness: Harness, *payloads: str, to: str = JOBS) -> None:
    client = harness.connect("publisher")
    for one in payloads:
        client.publish(to, one.encode(), 1, expect=0)
    client.drop()


def results(harness: Harness) -> dict[str, int]:
    return {k: v for k, v in plugin_of(harness).queues["jobs"].results.items() if v}


def leases(harness: Harness, group: str = "work") -> list[int]:
    return sorted(plugin_of(harness).queues["jobs"].dispatchers[group].group.leases)


# --- settling -------------------------------------------------------------------------------------------------------


def test_puback_does_not_settle(make: Make) -> None:
    harness = make(queues=[queue()])
    publish(harness, "a", "b")
    client = consumer(harness)
    assert take(client) == [("a", 1), ("b", 1)]
    assert leases(harness) == [0, 1]
    assert settle(client, "ack", "jobs:0") == (0, None)
    assert leases(harness) == [1]
    assert results(harness) == {"accepted": 2, "delivered": 2, "acknowledged": 1}


def test_consumers_are_told_how_their_group_settles(make: Make) -> None:
    harness = make(queues=[{"name": "jobs", "groups": [GROUP, "plain"]}])
    sender = harness.connect("sender")
    sender.publish(JOBS, b"a", 1, user_property=(("settle", "forged"),), expect=0)
    for name, expected in (("work", "explicit"), ("plain", None)):
        client = harness.connect(name)
        client.subscribe(f"$share/{name}/{JOBS}", 1)
        assert properties(client.expect(Publish)).get("settle") == expected


def test_a_settlement_goes_to_nobody(make: Make) -> None:
    harness = make(queues=[{**queue(), "bindings": ["in/#"]}, {"name": "other"}])
    publish(harness, "a")
    client, listener = consumer(harness), harness.connect("listener")
    listener.subscribe("#", 1)
    take(client)
    settle(client, "ack", "jobs:0")
    listener.expect_nothing()
    assert plugin_of(harness).queues["jobs"].log.end == 1
    assert harness.metrics.messages_handled == 1


def test_nack_delivers_again_to_the_only_consumer(make: Make) -> None:
    harness = make(queues=[queue()])
    publish(harness, "a")
    client = consumer(harness)
    assert take(client) == [("a", 1)]
    for count in (2, 3):
        assert settle(client, "nack", "jobs:0", reason="busy") == (0, None)
        assert take(client) == [("a", count)]
    assert results(harness)["nacked"] == 2


def test_nack_with_a_delay(make: Make) -> None:
    harness = make(queues=[queue()])
    publish(harness, "a", "b")
    client = consumer(harness)
    take(client)
    assert settle(client, "nack", "jobs:0", delay="2.5") == (0, None)
    assert settle(client, "nack", "jobs:1", delay="0") == (0, None)
    assert take(client) == [("b", 2)]
    harness.advance(2.4)
    assert take(client) == []
    harness.advance(0.2)
    assert take(client) == [("a", 2)]


def test_backoff(make: Make) -> None:
    backoff = {"initial": 1, "multiplier": 3, "maximum": 5, "jitter": 0, "causes": ["nack", "lost"]}
    harness = make(queues=[queue(backoff=backoff)])
    publish(harness, "a")
    client = consumer(harness)
    for count, delay in enumerate((1, 3, 5, 5), 1):
        assert take(client) == [("a", count)]
        assert settle(client, "nack", "jobs:0") == (0, None)
        harness.advance(delay - 0.1)
        assert take(client) == []
        harness.advance(0.1)
    assert take(client) == [("a", 5)]
    client.drop()
    client = consumer(harness)
    assert take(client) == []
    harness.advance(5)
    assert take(client) == [("a", 6)]


def test_backoff_after_the_visibility_timeout(make: Make) -> None:
    backoff = {"initial": 10, "jitter": 0, "causes": ["timeout"]}
    harness = make(queues=[queue(backoff=backoff)])
    publish(harness, "a")
    client = consumer(harness)
    take(client)
    harness.advance(39)
    assert take(client) == []
    harness.advance(2)
    assert take(client) == [("a", 2)]
    assert results(harness)["timed_out"] == 1


def test_the_backoff_of_a_group_that_settles_by_puback(make: Make) -> None:
    backoff = {"initial": 10, "jitter": 0, "causes": ["lost"]}
    harness = make(queues=[{"name": "jobs", "groups": [{"name": "work", "backoff": backoff}]}])
    publish(harness, "a")
    client = harness.connect("c", auto_ack=False)
    client.subscribe(JOBS, 1)
    take(client)
    client.drop()
    client = consumer(harness)
    assert take(client) == []
    harness.advance(10)
    assert take(client) == [("a", 2)]


def test_nacks_count_against_the_delivery_limit(make: Make) -> None:
    queues = [{**queue(), "delivery_limit": 2, "dead_letter": "dead"}, {"name": "dead"}]
    harness = make(queues=queues)
    publish(harness, "a")
    client, dead = consumer(harness), harness.connect("dead")
    dead.subscribe("$queue/dead", 1)
    assert take(client) == [("a", 1)]
    settle(client, "nack", "jobs:0", reason="first")
    assert take(client) == [("a", 2)]
    settle(client, "nack", "jobs:0", delay="3600", reason="second")
    assert take(client) == []
    found = properties(dead.expect_message("$queue/dead", b"a"))
    assert found["dead-letter-reason"] == "delivery-limit"
    assert found["dead-letter-count"] == "2"
    assert found["dead-letter-description"] == "second"


def test_reject_makes_a_dead_letter(make: Make) -> None:
    harness = make(queues=[{**queue(), "dead_letter": "dead"}, {"name": "dead"}])
    publish(harness, "a", "b")
    client, dead = consumer(harness), harness.connect("dead")
    dead.subscribe("$queue/dead", 1)
    take(client)
    assert settle(client, "reject", "jobs:0", reason="not a picture") == (0, None)
    found = properties(dead.expect_message("$queue/dead", b"a"))
    assert found["dead-letter-reason"] == "rejected"
    assert found["dead-letter-description"] == "not a picture"
    assert found["dead-letter-id"] == "jobs:0"
    assert found["dead-letter-count"] == "1"
    assert leases(harness) == [1]
    assert results(harness)["dead_lettered"] == 1


def test_reject_without_a_queue_for_dead_letters(make: Make) -> None:
    harness = make(queues=[queue()])
    publish(harness, "a")
    client = consumer(harness)
    take(client)
    assert settle(client, "reject", "jobs:0") == (0, None)
    assert results(harness) == {"accepted": 1, "delivered": 1, "discarded": 1}
    assert plugin_of(harness).queues["jobs"].depth == 0


def test_reject_if_the_queue_for_dead_letters_is_full(make: Make) -> None:
    harness = make(queues=[{**queue(), "dead_letter": "dead"}, {"name": "dead", "max_messages": 1}])
    publish(harness, "a", "b")
    client = consumer(harness)
    take(client)
    full = (0x97, "the queue for dead letters is full")
    assert settle(client, "reject", "jobs:0-1") == (0, None)
    publish(harness, "c")
    take(client)
    assert settle(client, "reject", "jobs:2") == full
    assert leases(harness) == [2]


def test_reject_of_messages_that_are_not_in_memory(make: Make) -> None:
    harness = make(queues=[{**queue(), "memory": 0, "dead_letter": "dead"}, {"name": "dead"}])
    publish(harness, *(str(number) for number in range(5)))
    client = consumer(harness)
    assert len(take(client)) == 5
    assert settle(client, "reject", ["jobs:0-3", "jobs:2"]) == (0, None)
    assert results(harness)["dead_lettered"] == 4
    assert leases(harness) == [4]


def test_ranges_and_lists(make: Make) -> None:
    harness = make(queues=[queue()])
    publish(harness, *"abcdefgh")
    client = consumer(harness)
    take(client)
    assert settle(client, "ack", ["jobs:0", "jobs:2-4"]) == (0, None)
    assert leases(harness) == [1, 5, 6, 7]
    assert settle(client, "ack", "jobs:0-6") == (0, None)
    assert leases(harness) == [7]
    code, text = settle(client, "ack", "jobs:0-6")
    assert (code, text) == (0x83, "jobs:0 is settled already")


def test_one_bad_id_refuses_the_whole_settlement(make: Make) -> None:
    harness = make(queues=[queue()])
    publish(harness, "a", "b")
    client = consumer(harness)
    take(client)
    for verb in ("ack", "nack", "reject"):
        assert settle(client, verb, ["jobs:0", "jobs:9"]) == (
            0x83, "jobs:9 was not delivered to the group",
        )  # fmt: skip
    assert leases(harness) == [0, 1]
    assert results(harness) == {"accepted": 2, "delivered": 2}


def test_a_settlement_before_the_puback(make: Make) -> None:
    harness = make(queues=[{**queue(), "prefetch": 1}])
    publish(harness, "a", "b")
    client = harness.connect("c", auto_ack=False)
    client.subscribe(JOBS, 1)
    first = client.expect_message(JOBS, b"a")
    assert settle(client, "ack", "jobs:0") == (0, None)
    client.expect_nothing()  # the delivery has not ended
    client.ack(first)
    client.expect_message(JOBS, b"b")


def test_prefetch_counts_messages_that_are_not_settled(make: Make) -> None:
    harness = make(queues=[{**queue(), "prefetch": 2}])
    publish(harness, *"abcd")
    client = consumer(harness)
    assert take(client) == [("a", 1), ("b", 1)]
    settle(client, "ack", "jobs:1")
    assert take(client) == [("c", 1)]
    settle(client, "ack", ["jobs:0", "jobs:2"])
    assert take(client) == [("d", 1)]


def test_the_receive_maximum_is_freed_by_puback(make: Make) -> None:
    harness = make(queues=[queue()])
    publish(harness, *"abc")
    client = harness.connect("c", auto_ack=False, receive_maximum=1)
    client.subscribe(JOBS, 1)
    for payload in (b"a", b"b", b"c"):
        message = client.expect_message(JOBS, payload)
        client.expect_nothing()
        client.ack(message)
    harness.settle()
    assert leases(harness) == [0, 1, 2]


# --- messages that come back ----------------------------------------------------------------------------------------


def test_the_visibility_timeout_and_a_late_settlement(make: Make) -> None:
    harness = make(queues=[{**queue(), "visibility_timeout": 5, "prefetch": 1}])
    publish(harness, "a", "b")
    client = consumer(harness)
    assert take(client) == [("a", 1)]
    harness.advance(6)
    assert take(client) == [("a", 2)]
    harness.advance(6)
    client.drop()
    harness.settle()
    assert leases(harness) == []


def test_a_late_ack_counts_until_another_consumer_has_the_message(make: Make) -> None:
    backoff = {"initial": 10, "jitter": 0, "causes": ["timeout"]}
    harness = make(queues=[{**queue(backoff=backoff), "visibility_timeout": 5}])
    publish(harness, "a", "b")
    client = consumer(harness)
    take(client)
    harness.advance(6)
    assert leases(harness) == []
    assert settle(client, "nack", "jobs:0") == (
        0x83, "the time to settle jobs:0 is over: it will be delivered again",
    )  # fmt: skip
    assert settle(client, "ack", "jobs:0") == (0, None)
    other = consumer(harness, "other")
    client.unsubscribe(JOBS)
    harness.advance(10)
    assert take(other) == [("b", 2)]


def test_the_messages_of_a_consumer_that_disconnects(make: Make) -> None:
    harness = make(queues=[queue()])
    publish(harness, "a", "b")
    client = consumer(harness, session_expiry_interval=60, clean_start=False)
    take(client)
    client.drop()
    other = consumer(harness, "other")
    assert take(other) == [("a", 2), ("b", 2)]


def test_the_messages_of_a_consumer_that_unsubscribes(make: Make) -> None:
    harness = make(queues=[queue()])
    publish(harness, "a")
    client, other = consumer(harness), None
    take(client)
    client.unsubscribe(JOBS)
    assert settle(client, "ack", "jobs:0") == (
        0x87, "the client does not consume the queue jobs",
    )  # fmt: skip
    other = consumer(harness, "other")
    assert take(other) == [("a", 2)]


def test_the_messages_of_a_connection_that_was_taken_over(make: Make) -> None:
    harness = make(queues=[queue()])
    publish(harness, "a")
    how: dict[str, Any] = {"session_expiry_interval": 60, "clean_start": False}
    client = consumer(harness, **how)
    assert take(client) == [("a", 1)]
    again = harness.connect("c", **how)
    assert take(again) == [("a", 2)]
    assert settle(again, "ack", "jobs:0") == (0, None)
    assert plugin_of(harness).queues["jobs"].depth == 0


def test_no_consumer_keeps_a_place_after_its_messages_left(make: Make) -> None:
    """However a lease ends, the consumers' counters return to 0."""
    harness = make(queues=[{**queue(), "visibility_timeout": 5}])
    publish(harness, *"abcde")
    client = consumer(harness)
    take(client)
    settle(client, "ack", "jobs:0")
    settle(client, "nack", "jobs:1", delay="100")
    settle(client, "reject", "jobs:2")
    harness.advance(6)
    take(client)
    settle(client, "ack", "jobs:3-4")
    harness.settle()
    dispatcher = plugin_of(harness).queues["jobs"].dispatchers["work"]
    (one,) = dispatcher.consumers.by_key.values()
    assert one.held == 0
    assert leases(harness) == []


def test_a_stream_takes_messages_from_their_consumer(make: Make) -> None:
    """A consumer no longer holds a message after the stream deletes it, or after the group is moved."""
    retention = {"retention": {"messages": 2}}
    harness = make(queues=[{**queue(), "type": "stream", **retention, "prefetch": 2}])
    publish(harness, "a", "b")
    client = consumer(harness)
    assert take(client) == [("a", 1), ("b", 1)]
    publish(harness, "c", "d")
    harness.settle()
    assert ("d", 1) in take(client)
    assert settle(client, "ack", "jobs:0")[0] == 0x83
    moved: list[int] = []
    seek = plugin_of(harness).queues["jobs"].seek("work", "first")
    harness.clock.spawn(seek, lambda offset, error: moved.append(offset))
    harness.settle()
    assert moved == [2]
    assert len(take(client)) == 2
    dispatcher = plugin_of(harness).queues["jobs"].dispatchers["work"]
    (one,) = dispatcher.consumers.by_key.values()
    assert one.held == len(leases(harness)) == 2


def test_mqtt_3_settles_by_puback(make: Make) -> None:
    harness = make(queues=[queue()])
    publish(harness, "a", "b")
    client = harness.connect("c", 4)
    client.subscribe(JOBS, 1)
    client.expect_message(JOBS, b"a")
    client.expect_message(JOBS, b"b")
    harness.settle()
    assert plugin_of(harness).queues["jobs"].depth == 0


def test_settlements_and_delays_survive_a_crash(make: Any) -> None:
    harness = make(queues=[queue()])
    publish(harness, *"abc")
    client = consumer(harness)
    take(client)
    assert settle(client, "ack", "jobs:0") == (0, None)
    assert settle(client, "nack", "jobs:1", delay="60") == (0, None)
    make.crash(harness)
    harness = make(queues=[queue()])
    client = consumer(harness)
    assert take(client) == [("c", 2)]
    harness.advance(61)
    assert ("b", 2) in take(client)


# --- refusals -------------------------------------------------------------------------------------------------------

BAD: tuple[tuple[tuple[tuple[str, str], ...], int, str], ...] = (
    ((), 0x99, "the property message-id is missing: expected jobs:OFFSET"),
    ((("message-id", ""),), 0x99, "the property message-id is '': expected jobs:OFFSET or jobs:FIRST-LAST"),
    ((("message-id", "jobs"),), 0x99, "the property message-id is 'jobs': expected"),
    ((("message-id", "jobs:-1"),), 0x99, "the property message-id is 'jobs:-1': expected"),
    ((("message-id", "jobs:1 "),), 0x99, "the property message-id is 'jobs:1 ': expected"),
    ((("message-id", "jobs:\u0661"),), 0x99, "the property message-id is 'jobs:\u0661': expected"),
    ((("message-id", "jobs:0x1"),), 0x99, "the property message-id is 'jobs:0x1': expected"),
    ((("message-id", "jobs:" + "9" * 60000),), 0x99, "the property message-id is 'jobs:999"),
    ((("message-id", "jobs:2-1"),), 0x99, "'jobs:2-1': the range ends before it begins"),
    ((("message-id", "jobs:0-10000"),), 0x97, "too many messages: at most 10000 at a time"),
    ((("message-id", "jobs:0-999999999999999999"),), 0x97, "too many messages: at most 10000"),
    ((("message-id", "other:0"),), 0x99, "'other:0' is not a message of the queue jobs"),
    ((("message-id", "jobs:7"),), 0x83, "jobs:7 was not delivered to the group"),
    ((("message-id", "jobs:0"), ("group", "no")), 0x99, "the queue jobs has no group 'no'"),
    ((("message-id", "jobs:0"), ("group", "plain")), 0x87, "the client does not consume the queue jobs in the"),
    ((("message-id", "jobs:0"), ("group", "work"), ("group", "work")), 0x99, "the property group occurs more than once"),
    ((("message-id", "jobs:0"), ("delay", "-1")), 0x99, "delay is '-1': expected seconds from 0 to 604800"),
    ((("message-id", "jobs:0"), ("delay", "nan")), 0x99, "delay is 'nan': expected"),
    ((("message-id", "jobs:0"), ("delay", "1e3")), 0x99, "delay is '1e3': expected"),
    ((("message-id", "jobs:0"), ("delay", "604801")), 0x99, "delay is '604801': expected"),
    ((("message-id", "jobs:0"), ("reason", "x" * 257)), 0x99, "the property reason is longer than 256 characters"),
)  # fmt: skip


@pytest.mark.parametrize(("properties", "code", "text"), BAD, ids=range(len(BAD)))
def test_bad_settlements(
    make: Make, properties: tuple[tuple[str, str], ...], code: int, text: str
) -> None:
    harness = make(queues=[{"name": "jobs", "groups": [GROUP, "plain"]}, {"name": "other"}])
    publish(harness, "a")
    client = consumer(harness)
    take(client)
    client.publish(f"{JOBS}/$nack", b"", 1, user_property=properties)
    answer = client.expect(Puback)
    assert answer.code == code
    assert (answer.properties.reason_string or "").startswith(text)
    client.expect_nothing()
    assert leases(harness) == [0]


def test_refusals_that_depend_on_the_client(make: Make) -> None:
    groups = [GROUP, {"name": "second", "settle": "explicit"}, "plain"]
    harness = make(queues=[{"name": "jobs", "groups": groups}])
    publish(harness, "a")
    client, other, plain = (harness.connect(name) for name in ("c", "other", "plain"))
    stranger = harness.connect("stranger")
    client.subscribe(JOBS, 1)
    take(client)
    other.subscribe(["$queue/jobs", "$share/second/$queue/jobs"], 1)
    plain.subscribe("$share/plain/$queue/jobs", 1)
    take(other)
    assert settle(stranger, "ack", "jobs:0") == (0x87, "the client does not consume the queue jobs")
    assert settle(plain, "ack", "jobs:0") == (
        0x83, "messages of the group plain are settled by PUBACK",
    )  # fmt: skip
    assert settle(other, "ack", "jobs:0") == (
        0x83, "the client consumes in 2 groups of the queue jobs: name one in the property group",
    )  # fmt: skip
    assert settle(other, "ack", "jobs:0", group="work") == (
        0x87, "jobs:0 is held by another consumer of the group",
    )  # fmt: skip
    assert settle(other, "ack", "jobs:0", group="second") == (0, None)
    assert settle(other, "ack", "jobs:0", group="second") == (0x83, "jobs:0 is settled already")
    assert settle(client, "ack", "jobs:0", "$queue/none") == (0x90, "there is no queue 'none'")
    assert settle(client, "ack", "jobs:0", group="work") == (0, None)


def test_too_many_ids() -> None:
    ids = [("message-id", "jobs:0")] * (MAX_IDS + 1)
    with pytest.raises(SettlementError, match="too many properties message-id: at most 1000"):
        parse("$ack", "jobs", ids)
    assert len(parse("$ack", "jobs", ids[1:]).ranges) == MAX_IDS


def test_a_message_that_waits_for_another_consumer(make: Make) -> None:
    harness = make(queues=[queue()])
    publish(harness, "a")
    client = consumer(harness)
    take(client)
    settle(client, "nack", "jobs:0", delay="60")
    assert settle(client, "ack", "jobs:0") == (
        0x87, "jobs:0 is not held by this client: it waits for a consumer",
    )  # fmt: skip


def test_plugins_cannot_settle(make: Make) -> None:
    harness = make(HookRecorder("on_will", id="other"), queues=[queue()])
    publish(harness, "a")
    take(consumer(harness))
    harness.handle("other").publish(f"{JOBS}/$ack", b"", 1)
    harness.settle()
    assert leases(harness) == [0]


def test_settlements_need_permission(make: Make) -> None:
    rules = HookRecorder("authorize", id="rules")
    harness = make(rules, queues=[queue()])
    publish(harness, "a")
    client = consumer(harness)
    take(client)
    rules.clear()
    rules.answer("authorize", Deny(reason="not here"))
    assert settle(client, "ack", "jobs:0") == (0x87, "not here")
    assert [(one.action, one.topic) for one in rules.calls()] == [
        (Action.PUBLISH, f"{JOBS}/$ack"),
    ]  # fmt: skip
    assert leases(harness) == [0]


TEXT = st.text(max_size=40) | st.sampled_from(
    ["jobs:0", "jobs:0-1", "jobs:1-0", "jobs:99", "other:0", "jobs:0-9999", "1.5", "0", "work"]
)
NAMES = st.sampled_from(["message-id", "group", "delay", "reason", "x"])


@given(st.sampled_from(["$ack", "$nack", "$reject"]), st.lists(st.tuples(NAMES, TEXT), max_size=8))
def test_whatever_clients_send(verb: str, properties: list[tuple[str, str]]) -> None:
    found: Settlement | SettlementError
    try:
        found = parse(verb, "jobs", properties)
    except SettlementError as error:
        found = error
    if isinstance(found, SettlementError):
        assert found.code.failed
        assert 0 < len(str(found)) < 300
        return
    assert 1 <= len(found.ranges) <= MAX_IDS
    assert 1 <= sum(last - first + 1 for first, last in found.ranges) <= MAX_MESSAGES
    assert len(found.reason) <= MAX_REASON
    assert found.delay is None or 0 <= found.delay <= 604_800


@given(st.integers(0, 10**18 - 1), st.integers(0, 9999))
def test_ranges_are_read(first: int, more: int) -> None:
    last = min(first + more, 10**18 - 1)
    found = parse("$ack", "jobs", [("message-id", f"jobs:{first}-{last}")])
    assert found.ranges == ((first, last),)
