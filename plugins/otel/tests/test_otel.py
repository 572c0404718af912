"""Test the spans and metrics that a real OTLP receiver gets. An unreachable collector must not slow down the broker."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hookmq.plugin import Context, Deny, Drop, Handled, Message, Peer, Plugin, ReasonCode, hookimpl
from hookmq_otel.export_health import ExportHealth
from hookmq_otel.metric_export import by_family
from hookmq_otel.plugin import OtelPlugin
from hookmq_otel.propagation import extract, inject, span_context, traceparent
from hookmq_testing import DurableStore, Harness, MemoryClient, SlowStore, make_plugin
from hookmq_testing.contracts import PluginContract
from hookmq_toolkit.spans import SERVICE, SpanRecorder
from opentelemetry.trace import NonRecordingSpan
from otlp_collector import Collector, collecting, values

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{SPAN}-01"
NOT_SAMPLED = f"00-{TRACE}-{SPAN}-00"
DEAD = {"endpoint": "http://127.0.0.1:1", "timeout": "100ms", "metrics_interval": "0s"}
"""An unreachable URL: nothing listens on port 1."""
Make = Callable[..., Harness]


class TestContract(PluginContract):
    kind = OtelPlugin
    use = "otel"
    configs = (DEAD | {"sampling": 1.0}, DEAD | {"sampling": 0.0}, DEAD | {"spans": ["connect"]})
    bad_configs = (
        {"endpoint": "collector:4318"}, {"endpoint": "http://u:p@c"}, {"sampling": 1.5}, {"spans": []},
        {"metrics_interval": "10ms"}, {"max_queue": 0}, {"x": 1},
    )  # fmt: skip


class Changer(Plugin):
    """A plugin that refuses, drops or takes over messages, depending on their topic. It refuses the client `bad`."""

    @hookimpl
    def on_connect(self, client: Any) -> Deny | None:
        return Deny(ReasonCode.BANNED, "go away") if client.client_id == "bad" else None

    @hookimpl
    def on_publish(self, message: Message) -> Deny | Drop | Handled | None:
        verdicts: dict[str, Deny | Drop | Handled]
        verdicts = {"deny": Deny(), "drop": Drop(), "handled": Handled()}
        return verdicts.get(message.topic)


@pytest.fixture
def collector() -> Iterator[Collector]:

    with collecting() as found:
        yield found


@pytest.fixture
def make(collector: Collector) -> Iterator[Make]:
    opened: list[Harness] = []

    def build(store: SlowStore | None = None, **config: Any) -> Harness:
        given = {"endpoint": collector.url, "sampling": 1.0, "metrics_interval": "0s"} | config
        changer = Changer(None, Context("changer"))
        found = Harness([make_plugin(OtelPlugin, given, "otel"), changer], store=store)
        opened.append(found)
        return found

    yield build
    for harness in opened:
        harness.close()


def properties(client: MemoryClient) -> dict[str, str]:
    """Return the user properties of the last message received."""
    return dict(client.messages[-1].properties.user_property or ())


def test_a_message_from_connect_to_delivery(make: Make, collector: Collector) -> None:

    harness = make(service="plant", headers={"authorization": "Bearer x"})
    reader = harness.connect("reader")
    reader.subscribe("a/#", qos=1)
    client = harness.connect("sender", peer=Peer("192.0.2.7", 99))
    client.publish("a/b", b"hello", qos=1, expect=0)
    got = properties(reader)
    harness.close()
    connects, [publish], [deliver] = (
        collector.named(name) for name in ("connect", "publish", "deliver")
    )
    assert [values(one.attributes)["hookmq.result"] for one in connects] == ["created", "created"]
    assert values(connects[1].attributes)["client.address"] == "192.0.2.7"
    found = values(publish.attributes)
    assert found["messaging.destination.name"] == "a/b"
    assert (found["messaging.client.id"], found["mqtt.qos"]) == ("sender", 1)
    assert (found["messaging.message.body.size"], found["hookmq.matched"]) == (5, 1)
    assert (deliver.trace_id, deliver.parent_span_id) == (publish.trace_id, publish.span_id)
    assert values(deliver.attributes)["messaging.client.id"] == "reader"
    # The SDK also sets the flag for random trace ids, 02.
    assert got == {"traceparent": f"00-{publish.trace_id.hex()}-{publish.span_id.hex()}-03"}
    for span in collector.spans:
        assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.status.code == 0
        assert b"hello" not in span.SerializeToString()
    assert collector.services == {"plant"}
    assert {one["authorization"] for one in collector.headers} == {"Bearer x"}


def with_slow_store(make: Make, **config: Any) -> tuple[Harness, SlowStore]:
    """Create a broker whose store delays each commit. An offline client is subscribed to `q`."""
    store = SlowStore(DurableStore(), slow=False)
    harness = make(store=store, **config)
    away = harness.connect("away", session_expiry_interval=600)
    away.subscribe("q", qos=1)
    away.disconnect()
    harness.settle()
    store.slow = True
    return harness, store


def test_the_commit_of_a_message(make: Make, collector: Collector) -> None:
    """A stored message has a `commit` span, which ends with the commit. Other messages have none."""
    harness, store = with_slow_store(make)
    client = harness.connect("sender")
    client.publish("nobody", b"x", qos=1, expect=0x10)
    client.publish("q", b"x", qos=1)
    harness.advance(0.5)
    store.finish()
    harness.settle()
    harness.close()
    [commit] = collector.named("commit")
    [publish] = [
        one for one in collector.named("publish")
        if values(one.attributes)["messaging.destination.name"] == "q"
    ]  # fmt: skip
    assert (commit.trace_id, commit.parent_span_id) == (publish.trace_id, publish.span_id)
    found = values(commit.attributes)
    assert found["messaging.operation.name"] == "commit"
    assert found["messaging.destination.name"] == "q"
    assert commit.status.code == 0
    assert commit.end_time_unix_nano - commit.start_time_unix_nano > 490_000_000
    assert publish.end_time_unix_nano < commit.end_time_unix_nano


def test_a_commit_that_fails(make: Make, collector: Collector) -> None:
    harness, store = with_slow_store(make)
    harness.connect("sender").publish("q", b"x", qos=1)
    harness.settle()
    store.fail("disk on fire")
    harness.settle()
    harness.close()
    [commit] = collector.named("commit")
    assert (commit.status.code, commit.status.message) == (2, "the store failed: disk on fire")


def test_commits_that_are_not_selected(make: Make, collector: Collector) -> None:
    harness, store = with_slow_store(make, spans=["publish"])
    harness.connect("sender").publish("q", b"x", qos=1)
    harness.settle()
    store.finish()
    harness.settle()
    harness.close()
    assert len(collector.named("publish")) == 1
    assert collector.named("commit") == []


def test_spans_that_other_plugins_report(make: Make, collector: Collector) -> None:
    """Spans are recorded only for messages that the plugin traced, no matter what context a client sends."""
    harness = make(max_rate=1, spans=["publish", "plugins"])
    reader = harness.connect("reader")
    reader.subscribe("a")
    harness.connect("sender").publish("a", b"x")
    context = properties(reader)["traceparent"]
    recorder = harness.handle("changer").services(SERVICE)["otel"]
    assert isinstance(recorder, SpanRecorder)
    now = harness.clock.time()
    recorder.record("other", SAMPLED, now, now, {})
    recorder.record("other", "rubbish", now, now, {})
    recorder.record("webhook", context, now - 2, now - 1, {"hookmq.plugin": "hook"}, "status 503")
    for _ in range(20):
        recorder.record("more", context, now, now, {})
    harness.close()
    recorder.record("late", context, now, now, {})
    [publish], [span] = collector.named("publish"), collector.named("webhook")
    assert (span.trace_id, span.parent_span_id) == (publish.trace_id, publish.span_id)
    assert span.end_time_unix_nano - span.start_time_unix_nano == 1_000_000_000
    assert values(span.attributes) == {"hookmq.plugin": "hook"}
    assert (span.status.code, span.status.message) == (2, "status 503")
    assert len(collector.named("more")) == 9
    assert len(collector.spans) == 11


def test_a_plugin_that_reports_wrong_spans_stops_no_others(
    make: Make, collector: Collector
) -> None:
    """A wrong value is refused at once. It is never queued, so it cannot spoil the exporter's batch."""
    harness = make(spans=["publish", "plugins"], max_queue=10)
    reader = harness.connect("reader")
    reader.subscribe("a")
    harness.connect("sender").publish("a", b"x")
    context = properties(reader)["traceparent"]
    recorder: Any = harness.handle("changer").services(SERVICE)["otel"]
    now = harness.clock.time()
    for wrong in (math.nan, math.inf, -1.0, 1e12, None, "now"):
        for times in ((wrong, now), (now, wrong)):
            with pytest.raises((TypeError, ValueError)):
                recorder.record("wrong", context, *times, {})
    for name in (None, 5, "", "\ud800"):
        with pytest.raises((TypeError, ValueError)):
            recorder.record(name, context, now, now, {})
    with pytest.raises((TypeError, ValueError)):
        recorder.record("wrong", context, now, now, {}, "\ud800")
    with pytest.raises((TypeError, ValueError)):
        recorder.record("wrong", context, now, now, {"key": "\ud800"})
    with pytest.raises((TypeError, ValueError)):
        recorder.record("wrong", context, now, now, 5)
    recorder.record("right", context, now, now - 1, {"key": "value"})
    harness.close()
    assert sorted(one.name for one in collector.spans) == ["publish", "right"]


def test_no_service_without_spans_of_plugins(make: Make) -> None:
    for config in ({"sampling": 0.0}, {"spans": ["publish"]}, {"spans": ["plugins"]}):
        assert make(**config).handle("changer").services(SERVICE) == {}


def test_the_trace_of_the_client_continues(make: Make, collector: Collector) -> None:
    harness = make(sampling=0.000001)
    reader = harness.connect("reader")
    reader.subscribe("a")
    pairs = (("unit", "bar"), ("traceparent", SAMPLED), ("tracestate", "vendor=1"))
    harness.connect("sender").publish("a", b"x", user_property=pairs)
    got = reader.messages[-1].properties.user_property
    harness.close()
    [publish] = collector.named("publish")
    assert publish.trace_id.hex() == TRACE
    assert publish.parent_span_id.hex() == SPAN
    assert got == (
        ("unit", "bar"),
        ("traceparent", f"00-{TRACE}-{publish.span_id.hex()}-01"),
        ("tracestate", "vendor=1"),
    )


@pytest.mark.parametrize("sent", [NOT_SAMPLED, "rubbish", f"00-{'0' * 32}-{SPAN}-01", "x" * 5000])
def test_messages_that_are_not_sampled_keep_their_properties(
    make: Make, collector: Collector, sent: str
) -> None:
    harness = make(sampling=0.000001)
    reader = harness.connect("reader")
    reader.subscribe("a")
    harness.connect("sender").publish("a", b"x", user_property=(("traceparent", sent),))
    assert properties(reader) == {"traceparent": sent}
    harness.close()
    assert collector.spans == []


def test_clients_cannot_force_a_trace_if_their_context_is_ignored(
    make: Make, collector: Collector
) -> None:
    harness = make(sampling=0.000001, parent=False)
    client = harness.connect("sender")
    client.publish("a", b"x", user_property=(("traceparent", SAMPLED),))
    harness.close()
    assert collector.spans == []


def test_clients_can_cause_max_rate_traces_a_second(make: Make, collector: Collector) -> None:
    harness = make(max_rate=10)
    client = harness.connect("sender")
    harness.advance(2)
    for _ in range(50):
        client.publish("a", b"x", user_property=(("traceparent", SAMPLED),))
    harness.close()
    assert len(collector.named("publish")) == 10


def test_a_client_that_repeats_a_context_causes_few_deliveries(
    make: Make, collector: Collector
) -> None:
    """A subscriber can resend a traced message's context as often as it likes. Only a few deliveries are recorded."""
    harness = make(max_rate=1, spans=["publish", "deliver"])
    client, receiver = harness.connect("sender"), harness.connect("receiver")
    receiver.subscribe("#")
    client.publish("a", b"x")
    context = properties(receiver)["traceparent"]
    for _ in range(50):
        client.publish("a", b"x", user_property=(("traceparent", context),))
    harness.close()
    assert len(collector.named("publish")) == 1
    assert len(collector.named("deliver")) == 10


def test_a_share_of_the_messages_is_traced(make: Make, collector: Collector) -> None:
    harness = make(sampling=0.2, max_rate=100_000, spans=["publish"])
    client = harness.connect("sender")
    for _ in range(500):
        client.publish("a", b"x")
    harness.close()
    assert 50 < len(collector.named("publish")) < 160
    assert len(collector.spans) == len(collector.named("publish"))


@pytest.mark.parametrize(
    ("topic", "code", "name", "value"),
    [
        ("deny", 2, "hookmq.reason", "denied"),
        ("drop", 2, "hookmq.reason", "plugin"),
        ("handled", 0, "hookmq.result", "unknown"),
    ],
)
def test_messages_that_other_plugins_stop(
    make: Make, collector: Collector, topic: str, code: int, name: str, value: str
) -> None:

    harness = make()
    harness.connect("sender").publish(topic, b"x")
    harness.advance(61)
    harness.close()
    [publish] = collector.named("publish")
    assert publish.status.code == code
    assert values(publish.attributes)[name] == value


def test_a_refused_client(make: Make, collector: Collector) -> None:
    harness = make()
    harness.connect("bad", expect=0x8A)
    harness.close()
    [span] = collector.named("connect")
    assert span.status.code == 2
    assert span.status.message == "0x8A go away"


def test_off_costs_nothing(make: Make, collector: Collector) -> None:
    """If sampling is off, no hook is registered and no thread is started."""
    harness = make(sampling=0.0)
    registered = {name for name, found in harness.hooks.registry.items() for one in found
                  if one.instance.id == "otel"}  # fmt: skip
    assert registered == {"on_startup", "on_shutdown", "register_metrics"}
    reader = harness.connect("reader")
    reader.subscribe("a")
    harness.connect("sender").publish("a", b"x", user_property=(("traceparent", SAMPLED),))
    assert properties(reader) == {"traceparent": SAMPLED}
    harness.close()
    assert collector.headers == []


def test_the_metrics_of_the_broker(make: Make, collector: Collector) -> None:

    harness = make(sampling=0.0, metrics_interval="1h")
    client = harness.connect("sender")
    for _ in range(3):
        client.publish("a", b"x")
    client.publish("drop", b"x")
    harness.close()
    [received] = collector.metrics["hookmq.messages_received"]
    assert received.as_double or received.as_int == 4
    drops = {tuple(sorted(values(p.attributes).items())): p.as_int or p.as_double
             for p in collector.metrics["hookmq.messages_dropped"]}  # fmt: skip
    assert drops[("direction", "in"), ("reason", "plugin")] == 1


@pytest.mark.parametrize("status", [503, 400, None])
def test_a_collector_that_fails_costs_spans_that_are_counted(
    make: Make, collector: Collector, status: int | None
) -> None:
    """At most `max_queue` spans wait, and the rest are dropped. Messages are still delivered."""
    config = {"max_queue": 20, "max_rate": 100_000, "timeout": "200ms", "spans": ["publish"]}
    if status is None:
        config["endpoint"] = DEAD["endpoint"]
    else:
        collector.status = status
    harness = make(**config)
    plugin = next(one.plugin for one in harness.hooks.plugins if isinstance(one.plugin, OtelPlugin))
    reader = harness.connect("reader")
    reader.subscribe("a")
    client = harness.connect("sender")
    for _ in range(300):
        client.publish("a", b"x")
    assert len(reader.messages) == 300
    spans = plugin._spans
    assert spans is not None
    harness.close()
    assert spans.counts.exported == 0
    assert spans.dropped > 0
    assert spans.counts.failed + spans.dropped == 300
    assert len(harness.logged("otel.export_failed")) == 1


def test_a_collector_that_is_back_is_logged() -> None:
    logged: list[tuple[str, str]] = []
    health = ExportHealth(lambda level, event, **_: logged.append((level, event)), "traces", "u")
    for succeeded in (True, False, False, True, True):
        health.note(succeeded)
    assert logged == [("warning", "otel.export_failed"), ("info", "otel.exporting_again")]


# parts ------------------------------------------------------------------------------------------------------------


def test_user_properties_hold_one_context() -> None:
    context = extract([("traceparent", SAMPLED), ("traceparent", NOT_SAMPLED)])
    assert context is not None
    span = span_context(context)
    pairs = inject(
        (("a", "1"), ("traceparent", "old"), ("tracestate", "old")), NonRecordingSpan(span)
    )
    assert pairs == (("a", "1"), ("traceparent", SAMPLED))
    assert traceparent(pairs) == SAMPLED
    assert extract([("other", "x")]) is None


def test_counters_are_grouped_by_family() -> None:
    counters = {'d_total{reason="a\\"b",way="in"}': 2.0, "d_total": 1.0, 's_bucket{le="1"}': 9.0}
    assert by_family(counters) == {
        "d_total": [({"reason": 'a"b', "way": "in"}, 2.0), ({}, 1.0)],
    }
