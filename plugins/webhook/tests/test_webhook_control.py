"""Test how operators pause, disable, reposition and inspect an instance."""

import json
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from hookmq.plugin import MetricRegistry, PluginError
from hookmq_testing import DurableStore, Harness, make_plugin
from hookmq_toolkit.sink_control import ControlState, read_control, write_control
from hookmq_toolkit.sinks import DeliveryLog, SinkError, SinkManager
from hookmq_webhook.config import DisableConfig, OutboxConfig, RetryConfig
from hookmq_webhook.deliveries import KEPT, Deliveries
from hookmq_webhook.events import Event
from hookmq_webhook.links import LocalLink
from hookmq_webhook.log_queue import LogQueue
from hookmq_webhook.pace import Pace
from hookmq_webhook.parcels import Answer, Verdict
from hookmq_webhook.plugin import WebhookPlugin
from hookmq_webhook.queues import Numbered

ARRIVED = Answer(Verdict.ARRIVED)
DOWN = Answer(Verdict.AGAIN, "status 503")
GONE = Answer(Verdict.GONE, "status 410")
DAY = 86400.0


class Service:
    """A stand-in for the sender. `answer` is the service's response."""

    def __init__(self, *_: Any) -> None:
        self.answer = ARRIVED
        self.sent: list[bytes | None] = []
        self.tried = 0
        self.statuses: dict[int, int] = {}
        self.bytes = 0

    async def send(self, events: Sequence[Numbered]) -> Answer:
        self.tried += 1
        if self.answer.verdict is Verdict.ARRIVED:
            self.sent += [one.event.payload for one in events]
        return self.answer

    async def close(self) -> None:
        """Do nothing."""


class World:
    """A broker with one plugin instance. The instance's outbox outlives the broker."""

    def __init__(
        self, folder: Path, store: DurableStore | None, answer: Answer = ARRIVED, **config: Any
    ) -> None:
        self.service = service = Service()
        service.answer = answer

        class Faked(WebhookPlugin):
            Sender = staticmethod(lambda *_: service)  # type: ignore[assignment]

        settings = {
            "url": "http://127.0.0.1:1/in",
            "events": ("message.published",),
            "outbox": OutboxConfig(path=folder / "hook"),
            "drain": 0.0,
            **config,
        }
        instance = make_plugin(Faked, settings, "hook")
        assert isinstance(instance.plugin, WebhookPlugin)
        self.plugin = instance.plugin
        self.control = self.plugin.control
        self.harness = Harness([instance], store=store)

    def __enter__(self) -> "World":
        self.harness.__enter__()
        self.client = self.harness.connect("c")
        return self

    def __exit__(self, *error: Any) -> None:
        self.harness.__exit__(*error)

    def publish(self, *payloads: bytes, wait: float = 1.0) -> None:
        for payload in payloads:
            self.client.publish("t", payload, qos=1)
        self.harness.advance(wait)

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run an operator's request for a second, and return its result."""
        told: list[tuple[Any, BaseException | None]] = []
        runtime = self.plugin.runtime
        assert runtime is not None
        runtime.spawn(work, lambda value, error: told.append((value, error)))
        self.harness.advance(1.0)
        [(value, error)] = told
        if error is not None:
            raise error
        return value

    @property
    def state(self) -> tuple[str, str]:
        found = self.control.show_sink("hook")
        return found.state, found.reason


def test_the_services_are_offered(tmp_path: Path) -> None:
    world = World(tmp_path, DurableStore())
    assert isinstance(world.control, SinkManager)
    assert isinstance(world.control, DeliveryLog)
    assert world.plugin.offered_services["sinks"] is world.control


def test_a_paused_instance_stores_events_and_sends_them_later(tmp_path: Path) -> None:
    store = DurableStore()
    with World(tmp_path, store) as world:
        world.publish(b"0")
        world.call(world.control.pause_sink("hook", True))
        assert world.state == ("paused", "")
        world.publish(b"1", b"2")
        assert world.service.sent == [b"0"]
        assert world.control.show_sink("hook").lag == 2
    with World(tmp_path, store) as world:  # a restart does not resume it
        world.publish(b"3", wait=100.0)
        assert (world.service.tried, world.state) == (0, ("paused", ""))
        world.call(world.control.pause_sink("hook", False))
        world.harness.advance(1.0)
        assert world.service.sent == [b"1", b"2", b"3"]
        assert world.state == ("active", "")
    assert read_control(tmp_path / "hook") == ControlState()


def test_a_pause_of_events_in_memory_ends_with_the_broker(tmp_path: Path) -> None:
    with World(tmp_path, None, mode="best_effort") as world:
        world.call(world.control.pause_sink("hook", True))
        world.publish(b"0")
        assert not world.service.tried
        world.call(world.control.pause_sink("hook", False))
        world.harness.advance(1.0)
        assert world.service.sent == [b"0"]
    assert not (tmp_path / "hook").exists()


def test_gone_disables_and_the_event_waits(tmp_path: Path) -> None:
    store = DurableStore()
    with World(tmp_path, store) as world:
        world.service.answer = GONE
        world.publish(b"0", b"1", wait=1000.0)
        assert world.service.tried == 1
        assert world.state == ("disabled", "status 410")
        registry = MetricRegistry()
        world.plugin.register_metrics(registry)
        assert 'webhook_state{state="disabled"} 1' in registry.text()
        assert 'webhook_state{state="active"} 0' in registry.text()
        assert world.control.show_sink("hook").dead_letters == 0
    with World(tmp_path, store) as world:
        world.publish(b"2", wait=1000.0)
        assert (world.service.tried, world.state[0]) == (0, "disabled")
        world.call(world.control.pause_sink("hook", False))
        world.harness.advance(1.0)
        assert world.service.sent == [b"0", b"1", b"2"]
    with World(tmp_path, store) as world:
        world.publish(b"3")
        assert world.service.sent == [b"3"]


def test_a_long_failure_disables_also_across_a_restart(tmp_path: Path) -> None:
    store = DurableStore()
    config: dict[str, Any] = {"disable": DisableConfig(after=2 * DAY)}
    with World(tmp_path, store, **config) as world:
        world.service.answer = DOWN
        world.publish(b"0", wait=1.5 * DAY)
        assert world.state == ("retrying", "status 503")
        since = read_control(tmp_path / "hook").failing_since
        assert since is not None
    write_control(tmp_path / "hook", ControlState(failing_since=since - 2 * DAY))
    with World(tmp_path, store, DOWN, **config) as world:
        world.harness.advance(60.0)
        word, reason = world.state
        assert word == "disabled"
        assert reason == "the service has failed for 172800 s: status 503"


def test_a_success_forgets_the_failure(tmp_path: Path) -> None:
    with World(tmp_path, DurableStore(), disable=DisableConfig(after=DAY)) as world:
        world.service.answer = DOWN
        world.publish(b"0", wait=0.9 * DAY)
        assert world.state[0] == "retrying"
        world.service.answer = ARRIVED
        world.harness.advance(600.0)
        assert world.state == ("active", "")
        world.service.answer = DOWN
        world.publish(b"1", wait=0.9 * DAY)
        assert world.state[0] == "retrying"
    assert read_control(tmp_path / "hook").failing_since is not None


def test_next_discards_what_waits(tmp_path: Path) -> None:
    store = DurableStore()
    with World(tmp_path, store) as world:
        world.service.answer = DOWN
        world.publish(b"0", b"1", b"2")
        offset = world.call(world.control.seek_sink("hook", "next"))
        found = world.control.show_sink("hook")
        assert (found.lag, found.cursor, found.end) == (0, offset, offset)
        world.service.answer = ARRIVED
        world.publish(b"3", wait=600.0)
        assert world.service.sent == [b"3"]
    with World(tmp_path, store) as world:
        world.publish(b"4")
        assert world.service.sent == [b"4"]


def test_next_in_memory(tmp_path: Path) -> None:
    with World(tmp_path, None, mode="best_effort") as world:
        world.service.answer = DOWN
        world.publish(b"0", b"1")
        with pytest.raises(SinkError, match="only next"):
            world.call(world.control.seek_sink("hook", "first"))
        world.call(world.control.seek_sink("hook", "next"))
        assert world.control.show_sink("hook").lag == 0
        world.service.answer = ARRIVED
        world.publish(b"2", wait=600.0)
        assert world.service.sent == [b"2"]


@pytest.mark.parametrize("position", ["first", "1"])
def test_a_seek_sends_events_again(tmp_path: Path, position: str) -> None:
    with World(tmp_path, DurableStore()) as world:
        world.publish(b"0", b"1", b"2")
        world.call(world.control.seek_sink("hook", position))
        world.harness.advance(1.0)
        again = [b"0", b"1", b"2"][int(position == "1") :]
        assert world.service.sent == [b"0", b"1", b"2", *again]


def test_a_seek_while_a_page_is_read(tmp_path: Path) -> None:
    with World(tmp_path, DurableStore()) as world:
        world.call(world.control.pause_sink("hook", True))
        world.publish(b"0", b"1", b"2")
        delivery = world.plugin.delivery
        assert delivery is not None
        link = delivery.link
        assert isinstance(link, LocalLink)
        assert link.engine is not None
        queue = link.engine.queue
        assert isinstance(queue, LogQueue)
        told: list[Any] = []
        queue.page(0, 10, 1 << 20, lambda *found: told.append(found))
        queue.seek(1)
        world.harness.advance(1.0)
        assert (told, queue.waiting) == ([([], 0, None)], 2)


def test_refused_requests(tmp_path: Path) -> None:
    with World(tmp_path, DurableStore()) as world:
        control = world.control
        for work, word in (
            (control.pause_sink("other", True), "no sink"),
            (control.seek_sink("hook", "yesterday"), "not a position"),
            (control.test_sink("hook"), "webhook test"),
        ):
            with pytest.raises(SinkError, match=word):
                world.call(work)
        world.call(control.pause_sink("hook", True))
        with pytest.raises(SinkError, match="resume it first"):
            world.call(control.replay_dead_letters("hook"))


def test_a_damaged_state_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "control").write_text("[]")
    with pytest.raises(PluginError, match="damaged; remove it"), World(tmp_path, DurableStore()):
        pass


def test_failed_events_are_released_when_the_service_is_back(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "retry": RetryConfig(first_delay=100.0, longest_delay=1000.0),
        "concurrency": 8,
        "key": "none",
    }
    with World(tmp_path, DurableStore(), **config) as world:
        world.service.answer = DOWN
        world.publish(*(b"%d" % n for n in range(8)), wait=1.0)
        assert world.state[0] == "retrying"
        world.service.answer = ARRIVED
        world.publish(b"8", wait=20.0)  # one successful request makes the others follow at once
        assert sorted(filter(None, world.service.sent)) == [b"%d" % n for n in range(9)]


def test_deliveries_are_kept_by_event(tmp_path: Path) -> None:
    with World(tmp_path, DurableStore()) as world:
        world.service.answer = DOWN
        world.publish(b"0", wait=0.0)
        world.service.answer = ARRIVED
        world.publish(b"1", wait=10.0)
        second, first, failed = world.call(world.control.list_deliveries("hook", "", 10))
        assert (failed.result, failed.reason, failed.attempt) == ("again", "status 503", 1)
        assert (first.id, first.result, first.attempt) == (failed.id, "arrived", 2)
        assert second.id != first.id
        assert second.event == "message.published"
        assert world.call(world.control.list_deliveries("hook", first.id, 1)) == [first]


def test_deliveries_are_bounded() -> None:
    kept = Deliveries()
    events = [Numbered(n, Event("x.y", 1.0), 1, f"q-{n}") for n in range(KEPT + 5)]
    kept.add(events[:3], 1.0, 0.1, 1, ARRIVED)
    kept.add(events, 2.0, 0.1, 1, DOWN)
    found = list(kept.latest())
    assert len(found) == KEPT
    assert found[0].id == f"q-{KEPT + 4}"
    assert list(kept.latest("q-0")) == []


@pytest.mark.parametrize("rate", [0.5, 7.0, 50.0])
def test_the_pace_is_kept(rate: float) -> None:
    pace, now, times = Pace(rate), 1000.0, []
    while now < 1020.0:
        now += pace.wait(now)
        assert pace.wait(now) < 1e-6
        times.append(now)
        pace.sent(now)
    assert len(times) == pytest.approx(20 * rate, abs=1 + rate / 10 + 1)
    for at in times:
        assert sum(at <= one < at + 1 for one in times) <= rate * 1.1 + 1


def test_no_pace() -> None:
    pace = Pace(0.0)
    pace.sent(1.0)
    assert pace.wait(1.0) == 0.0


def test_requests_are_spread(tmp_path: Path) -> None:
    with World(tmp_path, DurableStore(), rate=2.0) as world:
        world.call(world.control.pause_sink("hook", True))
        world.publish(*(b"%d" % n for n in range(10)))
        world.call(world.control.pause_sink("hook", False))
        world.harness.advance(1.0)  # and one second before
        assert 4 <= len(world.service.sent) <= 6
        world.harness.advance(10.0)
        assert world.service.sent == [b"%d" % n for n in range(10)]


def test_the_state_is_stored_as_before(tmp_path: Path) -> None:
    (tmp_path / "control").write_text('{"paused": true}')  # the format that the plugin sinks wrote
    assert read_control(tmp_path) == ControlState(True)
    write_control(tmp_path, ControlState(True, "why", 7.5))
    assert read_control(tmp_path) == ControlState(True, "why", 7.5)
    assert json.loads((tmp_path / "control").read_text())["paused"] is True
