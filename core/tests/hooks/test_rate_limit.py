"""Test rate limits from `provide_rate_limiter`. Packets above a limit wait in order, are refused or are dropped. No
packet is lost silently.
"""

from collections.abc import Callable

import pytest
from hookmq.hooks.rate_limit import LimitExceeded, PublishLimit, RateLimiter
from hookmq.model.events import DropReason
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import Disconnect, Pingresp, Puback, Pubcomp, Publish, Pubrec, Suback
from hookmq.plugin import Deny, Drop, ReasonCode
from hookmq_testing import Harness, HookRecorder
from limiters import Gate, Measure, Metering, Slope


def drops(harness: Harness, recorder: HookRecorder) -> list[tuple[str, str]]:
    harness.settle()
    return [(c.why.reason, c.why.detail) for c in recorder.calls("on_dropped")]


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_provide_rate_limiter_holds_a_publish_and_those_behind_it(version: int, qos: int) -> None:
    gate = Gate()
    with Harness([Metering(Measure(gate))]) as harness:
        other = harness.connect("other")
        other.subscribe("a/#", 2)
        client = harness.connect("measured", version)
        gate.tokens = 1
        for number in range(5):
            client.publish("a/b", b"%d" % number, qos)
        client.ping()  # PINGREQ is answered nevertheless
        assert [m.payload for m in other.messages] == [b"0"]
        while gate.waiting:
            gate.let()
        assert [m.payload for m in other.messages] == [b"0", b"1", b"2", b"3", b"4"]
        assert len(gate.taken) == 5
        answers = [p.packet_id for p in client.received if isinstance(p, Puback | Pubcomp)]
        assert answers == ([1, 2, 3, 4, 5] if qos else [])


def test_the_short_way_is_measured_by_the_same() -> None:
    gate = Gate()
    with Harness([Metering(Measure(gate))]) as harness:
        other = harness.connect("other")
        other.subscribe("a/#")
        client = harness.connect("measured")
        gate.tokens = 3
        for _ in range(5):
            client.publish("a/b", b"12")
        assert len(client.connection.memo) == 1
        # 2 + 3 bytes for the topic, 1 for no properties, 2 for the payload.
        assert gate.taken == [8, 8, 8]
        assert len(gate.waiting) == 1
        gate.let()
        gate.let()
        assert len(other.messages) == 5


def test_a_client_that_disconnects_stops_waiting() -> None:
    gate = Gate()
    with Harness([Metering(Measure(gate))]) as harness:
        client = harness.connect("measured")
        client.publish("a", b"", 1)
        assert len(gate.waiting) == 1
        client.drop()
        assert not gate.waiting


def test_a_goodbye_behind_what_waits_is_said_when_its_turn_comes() -> None:
    gate = Gate()
    with Harness([Metering(Measure(gate))]) as harness:
        other = harness.connect("other")
        other.subscribe("a")
        client = harness.connect("measured")
        client.publish("a", b"1")
        client.publish("a", b"2")
        client.disconnect()
        gate.let()
        gate.let()
        assert [m.payload for m in other.messages] == [b"1", b"2"]
        assert harness.broker.state.sessions.get("measured") is None


@pytest.mark.parametrize(
    ("version", "qos", "code"), [(5, 1, 0x97), (5, 2, 0x97), (4, 1, 0), (4, 2, 0), (3, 1, 0)]
)
def test_refused(version: int, qos: int, code: int) -> None:
    gate = Gate()
    gate.verdict = Deny(ReasonCode.QUOTA_EXCEEDED)
    recorder = HookRecorder("on_dropped", "on_denied")
    with Harness([Metering(Measure(gate)), recorder]) as harness:
        client = harness.connect("measured", version)
        client.publish("a", b"", qos, expect=code)
        assert drops(harness, recorder) == [(DropReason.RATE_LIMITED, "gate/rate")]
        (denied,) = recorder.calls("on_denied")
        assert (denied.code, denied.rule) == (ReasonCode.QUOTA_EXCEEDED, "gate/rate")


def test_refused_after_waiting() -> None:
    gate = Gate()
    with Harness([Metering(Measure(gate))]) as harness:
        client = harness.connect("measured")
        client.publish("a", b"", 1)
        client.publish("a", b"", 1)
        gate.let(LimitExceeded("x", Deny(ReasonCode.QUOTA_EXCEEDED)))
        assert client.expect(Puback).code == 0x97
        gate.let()
        assert client.expect(Puback).code == 0x10


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_dropped_but_acknowledged(qos: int) -> None:
    gate = Gate()
    gate.verdict = Drop()
    recorder = HookRecorder("on_dropped", "on_denied")
    with Harness([Metering(Measure(gate)), recorder]) as harness:
        client = harness.connect("measured")
        client.publish("a", b"", qos, expect=0 if qos else None)
        assert drops(harness, recorder) == [(DropReason.RATE_LIMITED, "gate/rate")]
        assert not recorder.calls("on_denied")


def test_a_repeated_publish_of_qos_2_is_not_measured_again() -> None:
    gate = Gate()
    gate.tokens = 1
    with Harness([Metering(Measure(gate))]) as harness:
        client = harness.connect("measured", auto_ack=False)
        client.publish("a", b"", 2, packet_id=7)
        assert client.expect(Pubrec).code == 0x10
        gate.verdict = Deny(ReasonCode.QUOTA_EXCEEDED)
        client.publish("a", b"", 2, packet_id=7, dup=True)
        assert client.expect(Pubrec).code == 0


def test_subscriptions() -> None:
    measure = Measure()
    measure.refuses = True
    with Harness([Metering(measure)]) as harness:
        assert harness.connect("measured").subscribe(["a", "$share/g/b"]).codes == (0x97, 0x97)
        assert measure.filters == ["a", "b"]
        assert harness.connect("measured", 4).subscribe("a").codes == (0x80,)
        assert harness.connect("other").subscribe("a").codes == (0,)


def test_qos_0_may_be_dropped_where_others_wait() -> None:
    slope = Slope()
    slope.drops = True
    recorder = HookRecorder("on_dropped")
    with Harness([Metering(Measure(None, slope)), recorder]) as harness:
        client = harness.connect("measured")
        client.subscribe("a", 1)
        other = harness.connect("other")
        other.publish("a", b"0")
        other.publish("a", b"1", 1)
        assert drops(harness, recorder) == [(DropReason.RATE_LIMITED, "gate/out")]
        slope.let(1)
        harness.settle()
        assert [m.payload for m in client.messages] == [b"1"]


@pytest.mark.parametrize("answer", [RuntimeError("no limits today"), "nonsense"])
def test_a_failure_lets_nobody_in(answer: object) -> None:
    with Harness([Metering(answer)]) as harness:
        harness.connect("measured", expect=0x88)
        harness.connect("other")
        assert harness.logged("plugin.failed")


def test_a_reload_measures_anew() -> None:
    first, second, slope = Gate(), Gate(), Slope()
    with Harness([Metering(Measure(first, slope))]) as harness:
        client = harness.connect("measured")
        client.subscribe("out")
        harness.connect("other").publish("out", b"")
        client.publish("a", b"", 1)
        harness.reload(plugins=[Metering(Measure(second))])
        assert len(client.messages) == 1  # messages that waited for the old limit are sent now
        assert harness.broker.state.sessions["measured"].paused == 0
        first.let()
        assert client.expect(Puback).code == 0x10
        client.publish("a", b"", 1)
        assert (len(first.waiting), len(second.waiting)) == (0, 1)
        harness.reload(plugins=[Metering(RuntimeError("x"))])
        assert client.closed


def test_the_meters_of_several_plugins_all_hold() -> None:
    gates, slopes = [Gate(), Gate(), Gate()], [Slope(), Slope()]
    measures = [
        Measure(gates[0], slopes[0]),
        Measure(gates[1], slopes[1]),
        Measure(gates[2]),
        Measure(),
    ]
    plugins = [Metering(measure, f"m{n}") for n, measure in enumerate(measures)]
    with Harness(plugins) as harness:
        client = harness.connect("measured")
        slopes[0].tokens = slopes[1].tokens = 9
        assert client.subscribe("b").codes == (0,)
        assert [measure.filters for measure in measures] == [["b"]] * 4
        gates[0].tokens = 2
        gates[1].tokens = 1
        client.publish("a", b"", 1)
        assert (len(gates[0].taken), len(gates[1].taken), len(gates[2].taken)) == (1, 1, 0)
        gates[2].let()
        assert client.expect(Puback).code == 0x10
        client.publish("a", b"", 1)  # the first limit was asked only once
        gates[1].let()
        assert [len(gate.taken) for gate in gates] == [2, 2, 1]
        gates[2].let(LimitExceeded("x", Deny(ReasonCode.QUOTA_EXCEEDED)))
        assert client.expect(Puback).code == 0x97
        gates[2].verdict = Deny(ReasonCode.QUOTA_EXCEEDED)
        gates[0].tokens = 1
        client.publish("a", b"", 1)
        gates[1].let()
        assert client.expect(Puback).code == 0x97
        client.publish("a", b"", 1)
        assert len(gates[0].waiting) == 1
        client.drop()
        assert not gates[0].waiting


def test_paces_of_several_plugins() -> None:
    slopes = [Slope(), Slope()]
    plugins = [Metering(Measure(None, slope), f"m{n}") for n, slope in enumerate(slopes)]
    with Harness(plugins) as harness:
        client = harness.connect("measured")
        slopes[0].tokens = 1
        client.subscribe("a", 1)
        harness.connect("other").publish("a", b"", 1)
        assert not client.messages
        slopes[1].let(1)
        harness.settle()
        assert len(client.messages) == 1
        assert [slope.tokens for slope in slopes] == [0, 0]


def test_ping_and_suback_while_a_publish_waits() -> None:
    gate = Gate()
    with Harness([Metering(Measure(gate))]) as harness:
        client = harness.connect("measured")
        client.publish("a")
        client.send_subscribe("b")
        client.ping()
        assert not any(isinstance(p, Suback) for p in client.received)
        gate.let()
        client.expect(Suback)
        assert any(isinstance(p, Pingresp) for p in client.received)


def test_reading_stops_behind_a_held_publish_at_the_byte_limit() -> None:
    gate = Gate()
    with Harness(
        [Metering(Measure(gate))], config={"broker": {"max_held_inbound_bytes": 5000}}
    ) as harness:
        other = harness.connect("other")
        other.subscribe("a")
        client = harness.connect("measured")
        packets = [encode(Publish("a", b"%03d" % n + bytes(1000)), 5) for n in range(100)]
        for first in range(0, 100, 10):  # ten in one read
            client.raw(b"".join(packets[first : first + 10]))
        client.send(Disconnect(0))
        for number in range(100):
            connection = client.connection
            partial = len(connection.partial) if connection.partial is not None else 0
            # The held bytes, the packet that exceeded the limit, and the rest of one read.
            assert connection.held_bytes + partial < 5000 + 2 * 1100 + 10 * 1100
            assert len(other.messages) == number
            gate.let()
        assert [m.payload[:3] for m in other.messages] == [b"%03d" % n for n in range(100)]
        assert client.closed


def test_an_alias_counts_as_the_topic_it_stands_for(broker_harness: Callable[..., Harness]) -> None:
    gate = Gate()
    gate.tokens = 10
    harness = broker_harness(plugins=[Metering(Measure(gate))])
    client = harness.connect("measured")
    topic = "t" * 1000
    client.publish(topic, topic_alias=1)
    client.publish("", topic_alias=1)
    assert min(gate.taken) >= 1000


def test_two_rate_limiters_without_a_limit_on_deliveries_limit_none() -> None:
    class Publishes(RateLimiter):
        def publish_limit(self, topic: str) -> PublishLimit:
            return gates.setdefault(topic, Gate())

    gates: dict[str, Gate] = {}
    plugins = [Metering(Publishes(), "first"), Metering(Publishes(), "second")]
    with Harness(plugins) as harness:
        client = harness.connect("one")
        client.subscribe("#")
        gates.setdefault("a", Gate()).tokens = 2
        client.publish("a", b"x")
        client.expect_message("a", b"x")
