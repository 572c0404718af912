"""Test that a hostile client can flood queues without harm. The broker stores only a bounded amount of data for it,
and still serves other clients.
"""

from typing import Any

from hookmq.mqtt_api import Puback, Publish, Suback
from hookmq_queues.plugin import QueuesPlugin
from hookmq_testing import Harness, MemoryClient

MANY = 120
LIMIT = 20
QUEUES = (
    {
        "name": "jobs",
        "groups": [{"name": "default", "settle": "explicit"}],
        "groups_on_first_use": True,
        "max_groups": 4,
        "dedupe_window": "1h",
        "dedupe_ids": LIMIT,
        "max_delayed": LIMIT,
        "max_messages": 100,
    },
)


def plugin_of(harness: Harness) -> QueuesPlugin:
    instance = harness.hooks.instance("queues")
    assert instance is not None
    assert isinstance(instance.plugin, QueuesPlugin)
    return instance.plugin


def codes(client: MemoryClient) -> set[int]:
    """Take the reason codes of all responses to the client's PUBLISH packets."""
    client.harness.settle()
    found = {one.code for one in client.unread if isinstance(one, Puback)}
    client.unread.clear()
    return found


def test_a_stranger_cannot_make_the_broker_keep_more_than_its_limits(make: Any) -> None:
    harness: Harness = make(queues=QUEUES)
    stranger, worker = harness.connect("stranger"), harness.connect("worker")
    assert worker.subscribe("$queue/jobs", 1).codes == (1,)
    plugin = plugin_of(harness)
    queue = plugin.queues["jobs"]
    folders = sorted(one.name for one in make.path.iterdir())
    for number in range(MANY):
        stranger.publish(f"$queue/none{number}/{'x/' * 20}", b"", 1)
    assert codes(stranger) == {0x90}
    for number in range(MANY):
        property = (("message-id", f"jobs:{number}-{number + 10**17}"),)
        for verb in ("$ack", "$nack", "$reject", "$drop"):
            stranger.publish(f"$queue/jobs/{verb}", b"", 1, user_property=property)
    assert codes(stranger) == {0x97, 0x90}
    for number in range(MANY):
        property = (("message-id", f"jobs:{number}-{number + 9_999}"),)
        stranger.publish("$queue/jobs/$ack", b"", 1, user_property=property)
    assert codes(stranger) == {0x87}
    assert (queue.depth, queue.log.end) == (0, 0)
    for number in range(MANY):
        stranger.send_subscribe(f"$share/group{number}/$queue/jobs", 1)
    answers = [one.codes[0] for one in stranger.unread if isinstance(one, Suback)]
    stranger.unread.clear()
    assert answers.count(1) == 3
    assert len(queue.dispatchers) == 4
    for _ in range(MANY):
        stranger.publish("$queue/jobs", b"", 1, user_property=(("delay", "1000"),))
    assert codes(stranger) == {0, 0x97}
    delays, duplicates = queue.intake.delays, queue.intake.duplicates
    assert delays is not None
    assert len(delays) == LIMIT
    assert queue.log.end == 0
    for number in range(MANY):
        stranger.publish(
            "$queue/jobs", b"%d" % number, 1, user_property=(("message-id", f"{number}"),)
        )
    assert codes(stranger) == {0, 0x97}
    assert queue.depth == 100
    assert duplicates is not None
    assert len(duplicates) == LIMIT
    assert sorted(one.name for one in make.path.iterdir()) == folders
    taken = [one for one in worker.unread if isinstance(one, Publish)]
    assert taken[0].payload == b"0"
    harness.connect("p").publish(
        "$queue/jobs/$ack", b"", 1, user_property=(("message-id", "jobs:0"),)
    )
    property = (("message-id", "jobs:0"),)
    worker.publish("$queue/jobs/$ack", b"", 1, user_property=property, expect=0)
