"""Test a QoS 0 PUBLISH that plugins see. It reaches plain receivers of each MQTT version, whether they are online, slow
or offline.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hookmq.model.events import DropReason
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import Publish
from hookmq.mqtt.properties import EMPTY, Properties
from hookmq.plugin import ClientRequest, Delivery
from hookmq_testing import Harness, HookRecorder
from hypothesis import given, settings
from hypothesis import strategies as st

Make = Callable[..., Harness]


@pytest.mark.parametrize("hook", ["on_publish", "on_published"])
@pytest.mark.parametrize("version", [4, 5])
def test_receivers_of_both_versions(broker_harness: Make, version: int, hook: str) -> None:
    plugin = HookRecorder(hook)
    harness = broker_harness(plugins=[plugin])
    receivers = [harness.connect(f"c{n}", version=v) for n, v in enumerate((4, 5, 5))]
    for receiver in receivers:
        receiver.subscribe("t/#")
    publisher = harness.connect("publisher", version=version)
    for number in range(5):
        publisher.publish("t/1", b"%d" % number)
    for receiver in receivers:
        found = [receiver.expect_message("t/1").payload for _ in range(5)]
        assert found == [b"0", b"1", b"2", b"3", b"4"]
    harness.settle()
    assert [call.message.payload for call in plugin.calls()] == found
    assert harness.metrics.messages_delivered == 15


def test_a_receiver_that_does_not_read(broker_harness: Make) -> None:
    plugin = HookRecorder("on_publish", "on_dropped")
    config: dict[str, Any] = {"session": {"queue_bytes": 3000}}
    harness = broker_harness(plugins=[plugin], config=config)
    slow, quick = harness.connect("slow", high_water=50), harness.connect("quick")
    for receiver in (slow, quick):
        receiver.subscribe("t")
    publisher = harness.connect("publisher")
    publisher.publish("t", b"first")
    slow.pause()
    for number in range(20):
        publisher.publish("t", b"%d" % number + bytes(200))
    assert len(plugin.calls("on_publish")) == 21
    harness.settle()
    dropped = plugin.calls("on_dropped")
    assert {call.why.reason for call in dropped} == {DropReason.QUEUE_BYTES}
    assert [quick.expect_message("t").payload[:1] for _ in range(3)] == [b"f", b"0", b"1"]
    slow.resume()
    harness.settle()
    assert slow.expect_message("t").payload == b"first"


# --- plugin clients ----------------------------------------------------------------------------------------------------

MESSAGES = st.lists(
    st.tuples(
        st.sampled_from(("t/1", "t/1", "t/1", "t/2")),
        st.sampled_from((b"", b"a", b"b", b"cc", bytes(130))),
        st.sampled_from((0, 0, 0, 1, 2)),
        st.sampled_from((EMPTY, EMPTY, EMPTY, Properties(content_type="x"))),
    ),
    max_size=60,
)


@given(
    messages=MESSAGES,
    cuts=st.lists(st.integers(1, 400), max_size=20),
    version=st.sampled_from((4, 5)),
    watched=st.booleans(),
    hook=st.sampled_from(("on_event", "on_publish", "on_published", "on_deliver")),
    qos=st.integers(0, 2),
)
@settings(max_examples=60, deadline=None)
def test_plugin_clients_get_what_sockets_get(
    messages: list[tuple[str, bytes, int, Properties]],
    cuts: list[int],
    version: int,
    watched: bool,
    hook: str,
    qos: int,
) -> None:
    """Each of two plugin clients gets every message once, in order, however the packets are divided into reads."""
    got: list[list[tuple[Any, ...]]] = [[], []]
    with Harness([HookRecorder(hook, id="gw")]) as harness:
        broker, run = harness.handle("gw"), harness.clock.run
        for found in got:
            client = run(broker.connect(ClientRequest(receive_maximum=200)))
            run(client.subscribe("t/#", qos))

            def take(deliveries: list[Delivery], found: Any = found, client: Any = client) -> None:
                found += [
                    (one.topic, one.payload, one.qos, one.message.properties) for one in deliveries
                ]
                assert all(one.message.sender == "publisher" for one in deliveries)
                client.acknowledge_many(deliveries)

            client.on_messages = take
        if watched:
            harness.connect("watcher").subscribe("t/#", qos)
        publisher = harness.connect("publisher", version=version)
        data = b"".join(
            encode(
                Publish(
                    topic, payload, level, False, False, number + 1 if level else 0,
                    properties if version == 5 else EMPTY,
                ),
                version,
            )
            for number, (topic, payload, level, properties) in enumerate(messages)
        )  # fmt: skip
        for size in cuts:
            publisher.connection.feed(data[:size])
            data = data[size:]
        publisher.connection.feed(data)
        harness.settle()
        metrics = harness.metrics.snapshot()
        sent = [
            (topic, payload, min(level, qos), properties if version == 5 else EMPTY)
            for topic, payload, level, properties in messages
        ]
        assert got == [sent, sent]
        assert metrics["messages_received"] == len(messages)
        assert metrics["messages_delivered"] == len(messages) * (2 + watched)
        inflight = [session.inflight for session in harness.broker.sessions.values()]
        assert not any(inflight)


def test_a_run_of_messages_is_limited_in_a_turn(broker_harness: Make) -> None:
    """If one read contains many small messages, a plugin client gets them over several turns."""
    recorder = HookRecorder("on_dropped", id="gw")
    harness = broker_harness([recorder])
    client = harness.clock.run(harness.handle("gw").connect(ClientRequest("c")))
    harness.clock.run(client.subscribe("t"))
    sizes: list[int] = []
    client.on_messages = lambda deliveries: sizes.append(len(deliveries))
    publisher = harness.connect("publisher")
    publisher.publish("t", b"first")
    harness.settle()
    publisher.connection.feed(encode(Publish("t", b"x"), 5) * 2000)
    harness.settle()
    assert sum(sizes) == 2001
    assert max(sizes) <= 256
    assert not recorder.calls("on_dropped")
