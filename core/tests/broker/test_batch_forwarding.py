"""Test that publishing a batch has the same visible effects as publishing its messages one by one: the same messages,
order, counters and codes.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.plugin import ClientRequest, Properties, ReasonCode
from hookmq_testing import DurableStore, Harness, HookRecorder

Make = Callable[..., Harness]
COUNTERS = ("messages_received", "messages_delivered", "protocol_errors")
LONG = bytes(200)
"""A payload that needs a Remaining Length of two bytes."""
MIXED: list[tuple[Any, ...]] = [
    ("a", b"1"), ("a", b"2", 0), ("a", b"", 0), ("a", LONG), ("a", b"3", 1), ("a", b"4", 1), ("a", LONG, 1),
    ("b", b"5"), ("a", b"6", 2), ("a", b"7"), ("a", b"8", 0, True), ("a", b"9"),
    ("a", b"p", 1, False, Properties(content_type="x")), ("none", b"nobody", 1), ("none", b"nobody", 1), ("a", b"z"),
]  # fmt: skip


def play(make: Make, many: bool, **options: Any) -> dict[str, Any]:
    """Publish `MIXED` three times, either together or one by one. Return everything that is visible from outside."""
    slow = options.pop("slow", False)
    harness = make([HookRecorder(options.pop("hook", "on_event"), id="gw")], **options)
    clients: list[tuple[str, int, dict[str, Any]]] = [
        ("five", 5, {"high_water": 50} if slow else {}),
        ("three", 4, {}),
        ("durable", 5, {"session_expiry_interval": 60}),
    ]
    others = [harness.connect(name, version=version, **given) for name, version, given in clients]
    for other, qos in zip(others, (1, 2, 1), strict=True):
        other.subscribe("a", qos)
        other.subscribe("b", 0)
        if slow and other is others[0]:
            other.pause()
    client = harness.clock.run(harness.handle("gw").connect(ClientRequest("c")))
    codes: list[ReasonCode] = []
    for _ in range(3):
        if many:
            codes += harness.clock.run(client.publish_many(iter(MIXED)))
        else:
            for message in MIXED:
                codes.append(harness.clock.run(client.publish(*message)))
    if slow:
        others[0].resume()
    harness.settle()
    got = [
        [(m.topic, m.payload, m.qos, m.retain, m.properties) for m in one.messages]
        for one in others
    ]
    shown = harness.metrics.snapshot()
    return {"codes": codes, "got": got, "counters": {name: shown[name] for name in COUNTERS}}


@pytest.mark.parametrize(
    "options", [{}, {"durable": True}, {"hook": "on_publish"}, {"hook": "on_published"}]
)
def test_a_batch_is_equal_to_single_messages(broker_harness: Make, options: dict[str, Any]) -> None:
    ends = []
    for many in (True, False):
        given = {key: value for key, value in options.items() if key != "durable"}
        if "durable" in options:
            given["store"] = DurableStore()
        ends.append(play(broker_harness, many, **given))
    assert ends[0] == ends[1]
    got = ends[0]["got"][1]
    assert [one[1] for one in got][:4] == [b"1", b"2", b"", LONG]
    assert len(got) == 3 * (len(MIXED) - 2)


def test_a_slow_receiver_gets_all_messages_in_order(broker_harness: Make) -> None:
    first, second = (play(broker_harness, many, slow=True)["got"][0] for many in (True, False))
    # QoS 0 messages do not wait behind QoS 1, so only the order of each QoS is certain.
    for qos in (0, 1):
        assert [one for one in first if one[2] == qos] == [one for one in second if one[2] == qos]


def test_a_large_batch_takes_several_turns(broker_harness: Make) -> None:
    harness = broker_harness([HookRecorder("on_event", id="gw")])
    subscriber = harness.connect("subscriber")
    subscriber.subscribe("a")
    client = harness.clock.run(harness.handle("gw").connect(ClientRequest("c")))
    harness.clock.run(client.publish_many([("a", b"first")]))
    codes: list[Any] = []
    harness.clock.spawn(client.publish_many([("a", b"x")] * 1000), lambda *end: codes.append(end))
    began = harness.clock.turns
    harness.settle()
    assert len(subscriber.messages) == 1001
    assert harness.clock.turns - began >= 4
    assert codes == [([ReasonCode.SUCCESS] * 1000, None)]
