"""Test what hostile or unlucky clients and operators can do to queues, beyond sending a single bad message."""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.mqtt_api import Properties, Puback, Publish
from hookmq.plugin import (
    Action,
    ClientInfo,
    ConfigError,
    Context,
    Deny,
    Plugin,
    Subscription,
    hookimpl,
)
from hookmq_queues.config import QueueConfig
from hookmq_queues.consumers import weight_in
from hookmq_queues.outgoing import UserProperties
from hookmq_testing import Harness, MemoryClient
from hookmq_testing.client import will
from hookmq_toolkit.queues import QueueError, RedriveRequest

from .conftest import plugin_of
from .test_queues_making import begin, manager_of, run

Make = Callable[..., Harness]
LONG = (
    "$queue/jobs/" + "x" * 65_523,
    "in/" + "x" * 65_532,
    "$queue/jobs" + 199 * "/",
    "in" + 200 * "/",
)
"""Topics of the maximum length, and with the maximum number of levels."""
DEADLY: Any = ({"name": "jobs", "delivery_limit": 1, "dead_letter": "dead"}, {"name": "dead"})


def taken(client: MemoryClient) -> list[Publish]:
    client.harness.settle()
    found = [one for one in client.unread if isinstance(one, Publish)]
    client.unread.clear()
    return found


def lose(harness: Harness, filter: str) -> None:
    """Let a consumer take all messages and leave without acknowledging them."""
    consumer = harness.connect("bad", auto_ack=False)
    consumer.subscribe(filter, 1)
    harness.settle()
    consumer.drop()
    harness.settle()


def test_a_publisher_cannot_hide_its_dead_letters(make: Make) -> None:
    harness = make(queues=DEADLY)
    harness.connect("p").publish(
        "$queue/jobs", b"x", 1, user_property=(("redrive-group", "nobody"),), expect=0
    )
    lose(harness, "$queue/jobs")
    undertaker = harness.connect("undertaker")
    undertaker.subscribe("$queue/dead", 1)
    assert [one.payload for one in taken(undertaker)] == [b"x"]


def test_a_message_becomes_a_dead_letter_again_after_its_redrive(make: Make) -> None:
    jobs = {**DEADLY[0], "groups": ["a", "b"]}
    harness = make(queues=(jobs, DEADLY[1]))
    harness.connect("p").publish("$queue/jobs", b"x", 1, expect=0)
    lose(harness, "$share/a/$queue/jobs")
    run_redrive(harness)
    lose(harness, "$share/a/$queue/jobs")
    undertaker = harness.connect("undertaker")
    undertaker.subscribe("$queue/dead", 1)
    assert [one.payload for one in taken(undertaker)] == [b"x"]


def run_redrive(harness: Harness) -> None:
    manager = manager_of(harness)
    manager.start_redrive("dead", RedriveRequest())
    harness.settle()
    assert manager.redrive_status("dead").moved == 1


def test_expired_messages_need_a_queue_for_dead_letters() -> None:
    with pytest.raises(ConfigError, match="dead_letter: jobs has dead_letter_expired"):
        QueueConfig("jobs", message_ttl=1.0, dead_letter_expired=True)


def test_a_weight_with_zeros_in_front_is_limited() -> None:
    assert weight_in((("weight", "0007"),)) == 7
    for text in ("0001000000", "0" * 5000 + "1"):
        with pytest.raises(ValueError, match="weight: expected a number from 1 to 100"):
            weight_in((("weight", text),))


@pytest.mark.parametrize("topic", LONG)
def test_a_topic_of_maximum_length_blocks_no_group(make: Make, topic: str) -> None:
    harness = make(queues=({**DEADLY[0], "bindings": ["in/#"]}, DEADLY[1]))
    publisher = harness.connect("p")
    publisher.publish(topic, b"long", 1)
    publisher.publish("$queue/jobs/a", b"short", 1)
    consumer = harness.connect("c")
    consumer.subscribe("$queue/jobs/#", 1)
    assert b"short" in [one.payload for one in taken(consumer)]


@pytest.mark.parametrize("topic", LONG)
def test_a_dead_letter_with_a_topic_of_maximum_length_is_kept(make: Make, topic: str) -> None:
    harness = make(queues=({**DEADLY[0], "bindings": ["in/#"]}, DEADLY[1]))
    harness.connect("p").publish(topic, b"long", 1)
    lose(harness, "$queue/jobs")
    harness.connect("p").publish("$queue/dead/a", b"short", 1)
    undertaker = harness.connect("undertaker")
    undertaker.subscribe("$queue/dead/#", 1)
    assert [one.payload for one in taken(undertaker)] == [b"long", b"short"]


def test_long_source_topics_take_no_memory_of_a_group() -> None:
    made = UserProperties("jobs", "default", False)
    for number in range(2000):
        made.encode(number, 1, f"{number}/" + "x" * 60_000)
    assert sum(len(one) for key in made._forms for one in made._forms[key]) < 1 << 20


FREE: Any = {"name": "jobs", "groups_on_first_use": True, "max_groups": 3, "group_expiry": 100}


def test_a_group_whose_consumer_comes_and_goes_is_kept(make: Make) -> None:
    harness = make(queues=[FREE])
    for _ in range(6):
        client = harness.connect("c", keep_alive=0)
        client.subscribe("$share/mine/$queue/jobs", 1)
        harness.advance(1)
        client.drop()
        harness.advance(44)  # and no check finds the consumer
    assert "mine" in plugin_of(harness).queues["jobs"].dispatchers
    harness.advance(110)
    assert "mine" not in plugin_of(harness).queues["jobs"].dispatchers


class NoGroups(Plugin):
    """Denies all shared subscriptions, except those of the client `good`."""

    def __init__(self) -> None:
        super().__init__(None, Context("rules"))

    @hookimpl
    def authorize(
        self, client: ClientInfo, action: Action, subscription: Subscription | None
    ) -> Deny | None:
        if subscription is None or subscription.share is None or client.client_id == "good":
            return None
        return Deny()


def test_a_denied_client_makes_no_group(make: Make) -> None:
    harness = make(NoGroups(), queues=[FREE])
    client = harness.connect("c")
    pairs = (("consumer-group", "mine"),)
    assert client.subscribe("$queue/jobs", 1, user_property=pairs).codes == (0x87,)
    harness.settle()
    assert list(plugin_of(harness).queues["jobs"].dispatchers) == ["default"]


def test_a_denied_client_keeps_no_place_of_an_exclusive_consumer(make: Make) -> None:
    jobs = {"name": "jobs", "groups": ["a", "b"], "consumers": "exclusive"}
    harness = make(NoGroups(), queues=[jobs])
    pairs = (("consumer-group", "b"),)
    bad = harness.connect("bad")
    assert bad.subscribe("$queue/jobs", 1, user_property=pairs).codes == (0x87,)
    good = harness.connect("good")
    assert good.subscribe("$queue/jobs", 1, user_property=pairs).codes == (1,)


# --- operators at the same time ---------------------------------------------------------------------------------------


def outcomes(harness: Harness, *calls: Any) -> list[str]:
    ended = [begin(harness, one) for one in calls]
    harness.settle()
    return [one[0].reason if isinstance(one[0], QueueError) else "done" for one in ended]


def test_two_queues_at_once_do_not_exceed_the_limit(make: Any) -> None:
    harness = make(max_stored=1)
    manager = manager_of(harness)
    calls = (manager.create_queue("a", {}), manager.create_queue("b", {}))
    assert outcomes(harness, *calls) == ["done", "conflict"]


def test_first_uses_at_once_do_not_exceed_the_limit_of_a_pattern_with_capitals(make: Any) -> None:
    harness = make(on_first_use=[{"pattern": "Tasks-*", "maximum": 1}])
    publishers = [harness.connect(f"p{number}") for number in range(3)]
    with harness.together():
        for number, one in enumerate(publishers):
            one.publish(f"$queue/Tasks-{number}", b"", 1)
    harness.settle()
    assert sorted(one.expect(Puback).code for one in publishers) == [0, 0x97, 0x97]


def test_a_queue_that_becomes_the_one_for_dead_letters_is_not_deleted(make: Any) -> None:
    harness = make()
    manager = manager_of(harness)
    run(harness, manager.create_queue("dead", {}))
    create = manager.create_queue("work", {"delivery_limit": 1, "dead_letter": "dead"})
    assert outcomes(harness, create, manager.delete_queue("dead", False)) == ["done", "conflict"]


def test_two_changes_at_once_make_no_circle_of_dead_letters(make: Any) -> None:
    harness = make()
    manager = manager_of(harness)
    for name in ("a", "b"):
        run(harness, manager.create_queue(name, {}))
    calls = (
        manager.change_queue("a", {"dead_letter": "b"}),
        manager.change_queue("b", {"dead_letter": "a"}),
    )
    assert outcomes(harness, *calls) == ["done", "invalid"]
    make.crash(harness)
    make()


def test_messages_rejected_while_their_queue_is_deleted_get_an_answer(make: Any) -> None:
    harness = make()
    manager = manager_of(harness)
    settings = {"groups": [{"name": "g", "settle": "explicit"}], "dead_letter": "jobs"}
    run(harness, manager.create_queue("work", settings))
    harness.connect("p").publish("$queue/work", b"x", 1, expect=0)
    client = harness.connect("c")
    client.subscribe("$queue/work", 1)
    assert len(taken(client)) == 1
    plugin_of(harness).queues["work"].log.forget(0)  # so that it is read from the disk
    pairs = (("message-id", "work:0"), ("group", "g"))
    with harness.together():
        client.publish("$queue/work/$reject", b"", 1, user_property=pairs)
        ended = begin(harness, manager.delete_queue("work", True))
    harness.settle()
    assert ended == [1]
    answer = client.expect(Puback)
    assert (answer.code, answer.properties.reason_string) == (0x80, "the queue is closed")
    assert not [one for one in harness.logs if one[0] == "error"]


# --- memory and logs --------------------------------------------------------------------------------------------------


def test_weights_of_former_subscriptions_are_forgotten(make: Make) -> None:
    harness = make()
    client = harness.connect("c")
    for number in range(5):
        filter = f"$queue/jobs/{number}"
        client.subscribe(filter, 1, user_property=(("weight", "5"),))
        if number:
            client.unsubscribe(filter)
    harness.settle()
    plugin = plugin_of(harness)
    info = plugin._broker.client("c")
    assert info is not None
    assert info.state == {"queues": {"$queue/jobs/0": 5}}
    consumers = plugin.queues["jobs"].dispatchers["default"].consumers
    assert [one.weight for one in consumers.by_key.values()] == [5]


def test_queues_that_are_not_made_do_not_flood_the_log(make: Any) -> None:
    harness = make(on_first_use=[{"pattern": "t-*", "maximum": 1}])
    publisher = harness.connect("p", keep_alive=0)
    for number in range(10):
        publisher.publish(f"$queue/t-{number}", b"", 1, expect=0x97 if number else 0)
    assert len(harness.logged("queue.not_created")) == 1
    harness.advance(61)
    publisher.publish("$queue/t-x", b"", 1, expect=0x97)
    assert len(harness.logged("queue.not_created")) == 2


# --- other origins ----------------------------------------------------------------------------------------------------


def test_another_plugin_passes_on_no_forged_dead_letter(make: Make) -> None:
    class Bridge(Plugin):
        def __init__(self) -> None:
            super().__init__(None, Context("bridge"))

    harness = make(Bridge())
    pairs = (("dead-letter-queue", "jobs"), ("redrive-group", "other"), ("mine", "1"))
    harness.handle("bridge").publish(
        "$queue/jobs", b"x", qos=1, properties=Properties(user_property=pairs)
    )
    client = harness.connect("c")
    client.subscribe("$queue/jobs", 1)
    (message,) = taken(client)
    found = dict(message.properties.user_property or ())
    assert sorted(found) == [
        "delivery-count", "group", "message-id", "mine", "offset", "source-topic",
    ]  # fmt: skip


def test_wills_obey_the_rules_of_queues(make: Make) -> None:
    harness = make()
    queue = plugin_of(harness).queues["jobs"]
    settlement = {"user_property": (("message-id", "jobs:0"),)}
    late = {"user_property": (("deliver-at", "9999999999"),)}
    wills: Any = (
        ("$queue/jobs", {}), ("$queue/none", {}), ("$queue/jobs/$ack", settlement), ("$queue/jobs", late),
    )  # fmt: skip
    for topic, properties in wills:
        harness.connect("w", will=will(topic, b"w", 1, True, **properties)).drop()
        harness.settle()
    assert (queue.depth, queue.delayed) == (1, 0)
    client = harness.connect("c")
    assert client.subscribe(["#", "+/jobs", "$queue/+"], 1).codes == (1, 1, 0x8F)
    client.expect_nothing()


def test_a_purge_while_delayed_messages_are_read_loses_no_later_one(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = make()
    delays = plugin_of(harness).queues["jobs"].intake.delays
    assert delays is not None
    reads: list[Any] = []
    fetch = delays._log.fetch
    monkeypatch.setattr(delays._log, "fetch", lambda *given: reads.append(given))
    publisher = harness.connect("p", keep_alive=0)
    for payload in (b"old", b"new"):
        pairs = (("delay", "1"),)
        publisher.publish("$queue/jobs", payload, 1, user_property=pairs, expect=0)
        harness.advance(2)
        if payload == b"old":
            run(harness, manager_of(harness).purge_queue("jobs", ""))
    assert len(reads) == 2
    for one in reads:
        fetch(*one)
    client = harness.connect("c")
    client.subscribe("$queue/jobs", 1)
    assert [one.payload for one in taken(client)] == [b"new"]


def test_many_filters_in_a_packet_are_looked_at_once(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each check takes time for every subscription that the client has. If each filter in a packet caused one, a client
    could stall the broker.
    """
    harness = make()
    plugin = plugin_of(harness)
    consumers = plugin._consumers
    looks: list[str] = []
    refresh = consumers.refresh

    def counted(client_id: str, broker: Any) -> None:
        looks.append(client_id)
        refresh(client_id, broker)

    monkeypatch.setattr(consumers, "refresh", counted)
    client = harness.connect("c")
    client.subscribe(["$queue/jobs"] * 300, 1)
    harness.settle()
    assert len(looks) <= 10  # the events of a packet may take several turns
    assert list(plugin.queues["jobs"].dispatchers["default"].consumers.by_key) == [
        ("c", "$queue/jobs")
    ]
    client.unsubscribe(["$queue/jobs"])
    harness.settle()
    assert not plugin.queues["jobs"].dispatchers["default"].consumers
