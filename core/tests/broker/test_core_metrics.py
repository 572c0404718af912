"""Test that plugins and the exporter read the same values of the core's metrics."""

import re
from collections.abc import Callable

from hookmq.hooks.metric_registry import MetricRegistry
from hookmq.model.metrics import HELP
from hookmq.model.snapshots import ListenerSnapshot
from hookmq.server.exporter import register_exported
from hookmq_testing import Harness, HookRecorder

Make = Callable[..., Harness]


def exported(harness: Harness) -> dict[str, float]:
    registry = MetricRegistry()
    register_exported(registry, harness.broker)
    lines = registry.text().splitlines()
    found = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {
        name.removeprefix("hookmq_"): float(value)
        for name, _, value in found
        if not name.startswith(("hookmq_build_info", "process_"))
    }


def test_plugins_read_what_the_exporter_shows(broker_harness: Make) -> None:
    harness = broker_harness(plugins=[HookRecorder("on_publish", id="mine")])
    broker = harness.handle("mine")
    one = harness.connect("one", session_expiry_interval=60)
    one.subscribe("a/#", 1)
    one.disconnect()
    two = harness.connect("two")
    two.publish("a/b", b"xyz", 1, retain=True)
    harness.metrics.count_drop("queue_full", "out", 3)
    counters = broker.counters()
    assert counters == exported(harness)
    assert counters["sessions"] == 2
    assert counters["connections"] == counters["subscriptions"] == 1
    assert counters["retained_messages"] == 1
    assert counters["queue_bytes"] == 6
    assert counters["messages_received_total"] == 1
    assert counters['messages_dropped_total{direction="out",reason="queue_full"}'] == 3
    ok = 'hook_calls_total{hook="on_publish",outcome="abstain",plugin="mine"}'
    assert counters[ok] == 1
    assert not any(name.startswith("hookmq_") for name in counters)
    two.publish("a/c", b"", 1)
    assert broker.counters()["messages_received_total"] == 2
    assert counters["messages_received_total"] == 1  # the plugin's own copy


def test_metrics_report_the_state_and_timers_of_each_plugin(broker_harness: Make) -> None:
    plugins = [HookRecorder("on_timer", id=id) for id in ("one", "two")]
    harness = broker_harness(plugins=plugins)
    one, two = harness.handle("one"), harness.handle("two")
    one.state.put("a", b"123")
    one.state.put("b", b"")
    one.set_timer("t", 1e12, b"12")
    two.state.put("gone", b"")
    two.state.delete("gone")
    found = {name: value for name, value in one.counters().items() if name.startswith("plugin_")}
    assert found == {
        'plugin_state_keys{plugin="one"}': 2, 'plugin_state_bytes{plugin="one"}': 8, 'plugin_timers{plugin="one"}': 1,
        'plugin_state_keys{plugin="two"}': 0, 'plugin_state_bytes{plugin="two"}': 0, 'plugin_timers{plugin="two"}': 0,
    }  # fmt: skip
    assert found.items() <= exported(harness).items()


def test_every_counter_of_the_core_is_there(broker_harness: Make) -> None:
    harness = broker_harness(plugins=[HookRecorder("on_publish", id="mine")])
    found = {re.sub(r"\{.*", "", name) for name in harness.handle("mine").counters()}
    assert {f"{name}_total" for name in HELP if name != "dropped"} <= found


def test_connections_by_listener(broker_harness: Make) -> None:
    harness = broker_harness(plugins=[HookRecorder("on_publish", id="mine")])
    harness.broker.listeners = lambda: (ListenerSnapshot("tcp", "tcp", "127.0.0.1:1", 7, 9),)
    counters = harness.handle("mine").counters()
    assert counters['listener_connections{listener="tcp"}'] == 7
    assert counters == exported(harness)
