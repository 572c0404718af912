"""Test that each of the core's metrics can change, and that the documentation lists every metric."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from hookmq.hooks.metric_registry import MetricRegistry
from hookmq.model.client import Scope
from hookmq.mqtt.packets import Pubrec, Pubrel
from hookmq.plugin import Allow, Context, Handled, Message, Plugin, hookimpl
from hookmq.server.exporter import register_exported
from hookmq_testing import DurableStore, Harness, HookRecorder, will

Make = Callable[..., Harness]
PAGE: Final = Path(__file__).parents[3] / "docs/reference/hooks.md"
LIMITS: Final = {
    "broker": {"receive_maximum": 4, "max_connections": 6},
    "session": {"queue_messages": 3},
}


def read(harness: Harness) -> dict[str, float]:
    """Return the sum of the samples in each family, and each sample under its own name."""
    found: dict[str, float] = {}
    for name, value in harness.handle("seen").counters().items():
        family = re.sub(r"(_bucket)?\{.*", "", name)
        if not name.partition("{")[0].endswith("_bucket"):
            found[family] = found.get(family, 0) + value
            found[name] = value
    return found


def exported(harness: Harness) -> set[str]:
    """Return the names of all metric families."""
    registry = MetricRegistry()
    register_exported(registry, harness.broker)
    return set(re.findall(r"^# TYPE (\w+) ", registry.text(), re.MULTILINE))


def life(harness: Harness) -> None:
    """Make clients do everything that the metrics count."""
    broker = harness.handle("seen")
    # every QoS, on both paths, and a retained message
    sub, pub = harness.connect("sub"), harness.connect("pub")
    sub.subscribe([("t", 2)])
    for _ in range(3):
        for qos in (0, 1, 2):
            pub.publish("t", b"x", qos, expect=0)
    pub.publish("kept", b"x", 1, retain=True, expect=0x10)
    pub.ping()
    pub.publish("handled", b"", 1, expect=0)
    # another listener
    other = harness.connect("other", scope=Scope("ws"))
    other.subscribe("t")
    pub.publish("t", b"y", 0)
    other.disconnect()
    # an offline session: its queue overflows, it is taken over, it expires
    gone = harness.connect("gone", session_expiry_interval=10)
    gone.subscribe("g", 1)
    gone.disconnect()
    for _ in range(5):
        pub.publish("g", b"x", 1)
    harness.connect("gone", session_expiry_interval=10, clean_start=False)
    again = harness.connect("gone", session_expiry_interval=10, clean_start=False)
    again.drop()
    harness.advance(11)
    pub.publish("g", b"x", 1)
    # an observer that is slow, then one that fails
    harness.connect("will", will=will("bye")).drop()
    # faults
    harness.open().raw(b"\x00\x00")
    silent = harness.connect("silent", keep_alive=10)
    harness.advance(16)
    silent.expect_disconnect(0x8D)
    greedy = harness.connect("greedy", auto_ack=False)
    for _ in range(5):
        greedy.publish("u", b"", 2)
    greedy.expect_disconnect(0x93)
    # a plugin's state
    broker.state.put("key", b"value")
    broker.set_timer("timer", 1e12, b"")
    # a queue that is not emptied
    late = harness.connect("late", session_expiry_interval=1000)
    late.subscribe("g", 1)
    late.disconnect()
    pub.publish("g", b"x", 1)
    # samples of turns, after the first reading
    for _ in range(40):
        pub.publish("t", b"x", 0)
    harness.settle()


class Seen(Plugin):
    @hookimpl
    def on_publish(self, message: Message) -> Handled | None:
        return Handled() if message.topic == "handled" else None

    @hookimpl
    def authorize(self) -> Allow:
        return Allow()

    @hookimpl
    def on_timer(self) -> None: ...


ELSEWHERE: Final = {
    "hook_circuit_open": "hooks/test_observer_queue.py",
    "hook_dropped_total": "hooks/test_observer_queue.py",
    "hook_queue_depth": "hooks/test_observer_queue.py",
    "listener_connections": "broker/test_core_metrics.py",
    "loop_lag_seconds": "server/test_watchdog.py",
    "metric_errors_total": "hooks/test_metric_registry.py",
    "route_cache_evicted_total": "routing/test_subscription_tree.py",
    "watchdog_blocked_total": "server/test_watchdog.py",
}
"""Metrics that need a server, time or a fault: the file with the test that makes each of them change."""
EXACT: Final = {
    'messages_received_by_qos_total{qos="0"}': 3 + 1 + 40,
    'messages_received_by_qos_total{qos="1"}': 3 + 1 + 1 + 5 + 1 + 1,
    'messages_received_by_qos_total{qos="2"}': 3 + 5,
    'packets_received_by_type_total{type="CONNECT"}': 10,
    'packets_received_by_type_total{type="PUBLISH"}': 44 + 12 + 8,
    'packets_received_by_type_total{type="PUBACK"}': 3 + 3,
    'packets_received_by_type_total{type="PUBREC"}': 3,
    'packets_received_by_type_total{type="PUBREL"}': 3,
    'packets_received_by_type_total{type="PUBCOMP"}': 3,
    'packets_received_by_type_total{type="SUBSCRIBE"}': 4,
    'packets_received_by_type_total{type="PINGREQ"}': 1,
    'packets_received_by_type_total{type="DISCONNECT"}': 3,
    'packets_sent_by_type_total{type="SUBACK"}': 4,
    'packets_sent_by_type_total{type="PINGRESP"}': 1,
}
"""The values of some samples after `life`."""


@pytest.fixture
def lived(broker_harness: Make) -> tuple[dict[str, float], dict[str, float], Harness]:
    harness = broker_harness(
        plugins=[Seen({}, Context("seen"))], store=DurableStore(), config=LIMITS
    )
    before = read(harness)
    life(harness)
    return before, read(harness), harness


def test_every_metric_of_the_core_moves(
    lived: tuple[dict[str, float], dict[str, float], Harness],
) -> None:
    before, after, harness = lived
    families = {
        name.removeprefix("hookmq_") for name in exported(harness) if name.startswith("hookmq_")
    }
    families.discard("build_info")
    still = {
        name
        for name in families
        if not any(
            after.get(name + end, 0) != before.get(name + end, 0) for end in ("", "_count", "_sum")
        )
    }
    assert still == set(ELSEWHERE)
    for file in ELSEWHERE.values():
        assert (Path(__file__).parents[1] / file).is_file()


def test_types_and_qos_agree_with_the_totals(
    lived: tuple[dict[str, float], dict[str, float], Harness],
) -> None:
    _, after, harness = lived
    assert {name: after[name] for name in EXACT} == EXACT
    unknown = 1  # a packet of a reserved type
    total = after["packets_received_total"]
    assert after["packets_received_by_type_total"] + unknown == total
    assert after["messages_received_by_qos_total"] == after["messages_received_total"]
    assert after["listener_bytes_received_total"] == after["bytes_received_total"]
    assert after["listener_bytes_sent_total"] == after["bytes_sent_total"]
    ws = [c for c in harness.clients if c.client_id == "other"]
    assert after['listener_bytes_sent_total{listener="ws"}'] == sum(len(c.raw_received) for c in ws)
    assert after["commit_duration_seconds_count"] > 0
    assert after["delivery_delay_seconds_count"] > 0


def test_the_documentation_lists_every_metric(broker_harness: Make) -> None:
    section = PAGE.read_text().partition("\n## Metrics\n")[2].partition("\n## ")[0]
    listed = set(re.findall(r"`((?:hookmq|process)_\w+)`", section))
    assert listed == exported(broker_harness())


def test_a_delivery_is_timed_only_after_somebody_asked(broker_harness: Make) -> None:
    harness = broker_harness(plugins=[HookRecorder("on_timer", id="seen")])
    sub, pub = harness.connect("sub"), harness.connect("pub")
    sub.subscribe("t")
    for _ in range(100):
        pub.publish("t", b"x", 0)
    assert harness.metrics.delivery_seconds.count == 0
    assert read(harness)["delivery_delay_seconds_count"] == 0
    for _ in range(100):
        pub.publish("t", b"x", 0)
    assert 0 < harness.metrics.delivery_seconds.count < 50


def test_a_queued_message_is_as_old_as_its_wait(broker_harness: Make) -> None:
    harness = broker_harness(plugins=[HookRecorder("on_timer", id="seen")])
    read(harness)
    pub = harness.connect("pub")
    late = harness.connect("late", session_expiry_interval=100)
    late.subscribe("t", 1)
    late.disconnect()
    pub.publish("t", b"x", 1)
    harness.advance(7)
    harness.broker.state.writes.sampling = True
    late.reconnect(clean_start=False)
    assert late.expect_message("t")
    found = harness.metrics.delivery_seconds
    assert found.counts[found.bounds.index(10.0)] == 1
    assert found.sum == pytest.approx(7, abs=0.1)


def test_packets_outside_the_fast_path_are_counted_alike(broker_harness: Make) -> None:
    """The handlers and the fast path count packets in the same way."""
    found = []
    for shortcuts in (True, False):
        harness = broker_harness(plugins=[HookRecorder("on_timer", id="seen")])
        harness.broker.state.shortcuts = shortcuts
        sub, pub = harness.connect("sub"), harness.connect("pub")
        sub.subscribe("t", 2)
        for qos in (0, 1, 2) * 4:
            pub.publish("t", b"x", qos, expect=0)
        pub.send(Pubrec(77), Pubrel(78))
        names = ("packets_received_by_type_total{", "messages_received_by_qos_total{")
        found.append({n: v for n, v in read(harness).items() if n.startswith(names)})
    assert found[0] == found[1]
