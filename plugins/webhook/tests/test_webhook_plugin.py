"""Test the plugin's events, limits and metrics, in an in-memory broker on a virtual clock."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hookmq.mqtt_api import Puback
from hookmq.plugin import BrokerHandle, ConfigError, Context, MetricRegistry, Plugin, hookimpl
from hookmq_testing import DurableStore, Harness, PluginContract, make_plugin, run_command
from hookmq_toolkit import streams
from hookmq_toolkit.spans import SERVICE
from hookmq_toolkit.tls_client import TlsConfig
from hookmq_webhook.config import (
    AuthConfig,
    BatchConfig,
    DeadLetterConfig,
    DestinationConfig,
    FilterConfig,
    OutboxConfig,
    ProxyConfig,
    QueueConfig,
    RetryConfig,
    SignConfig,
    WebhookConfig,
)
from hookmq_webhook.deadletter import DeadLetters, at_once
from hookmq_webhook.dispatch import Answer, Verdict
from hookmq_webhook.outbox import Outbox
from hookmq_webhook.plugin import WebhookPlugin
from hookmq_webhook.queues import Numbered
from hookmq_webhook_receiver.keys import new_secret

URL = "http://127.0.0.1:1/in"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class TestContract(PluginContract):
    kind = WebhookPlugin
    use = "webhook"
    configs = (
        {"url": URL, "mode": "best_effort", "drain": 0.0},
        {"url": URL, "events": ("client.*", "session.*"), "drain": 0.0},
        {"url": URL, "drain": 0.0},
    )
    bad_configs = (
        {"url": "ftp://x"},
        {"url": URL, "events": ()},
        {"url": URL, "events": ("client.conected",)},
        {"url": URL, "filters": FilterConfig(topics=("a/#/b",))},
        {"url": URL, "sign": SignConfig("short")},
    )


class Service:
    """A stand-in for the sender. `answer` is the service's response."""

    made: "list[Service]" = []

    def __init__(self, config: WebhookConfig, requests: Any, now: Any, wall: Any) -> None:
        self.sent: list[Numbered] = []
        self.answer = Answer(Verdict.ARRIVED)
        self.config = config
        self.statuses: dict[int, int] = {}
        self.bytes = self.closed = 0
        Service.made.append(self)

    async def send(self, events: Sequence[Numbered]) -> Answer:
        if self.answer.verdict is Verdict.ARRIVED:
            self.sent += events
        return self.answer

    async def close(self) -> None:
        self.closed += 1

    @property
    def types(self) -> list[str]:
        return [one.event.type for one in self.sent]


class Faked(WebhookPlugin):
    Sender = Service  # type: ignore[assignment]


def harness(
    tmp_path: Path,
    store: DurableStore | None = None,
    id: str = "hook",
    plugins: Sequence[Plugin] = (),
    **config: Any,
) -> tuple[Harness, Service, Faked]:
    outbox = config.pop("outbox", {})
    settings = {
        "url": URL,
        "outbox": OutboxConfig(path=tmp_path / id, **outbox),
        "drain": 1.0,
        **config,
    }
    instance = make_plugin(Faked, settings, id)
    plugin = instance.plugin
    assert isinstance(plugin, Faked)
    made = Harness([instance, *plugins], store=store)
    return made, Service.made[-1], plugin


def test_events_are_sent_in_order(tmp_path: Path) -> None:
    world, service, plugin = harness(tmp_path, DurableStore())
    with world:
        one = world.connect("one")
        one.subscribe("a/#", qos=1)
        one.publish("a/1", b"x", qos=1)
        world.advance(1)
        about_one = [n.event.type for n in service.sent if n.event.client == "one"]
        assert about_one == [
            "client.connected",
            "session.created",
            "subscription.created",
            "message.published",
            "message.delivered",
            "message.acked",
        ]
        [published] = [n.event for n in service.sent if n.event.type == "message.published"]
        assert (published.topic, published.payload, published.listener) == ("a/1", b"x", "default")
        assert plugin.told["message.published"] == 1
        numbers = [one.number for one in service.sent]
        assert sorted(numbers) == list(range(len(numbers)))
    assert service.types[0] == "broker.started"
    assert service.types[-1] == "broker.stopping"


class Recorder(Plugin):
    """A plugin that records spans."""

    def __init__(self) -> None:
        super().__init__(None, Context("recorder"))
        self.offered_services = {SERVICE: self}
        self.spans: list[tuple[Any, ...]] = []

    def record(
        self,
        name: str,
        traceparent: str,
        began: float,
        ended: float,
        attributes: Mapping[str, str | int | float | bool],
        error: str = "",
    ) -> None:
        self.spans.append((name, traceparent, ended - began, dict(attributes), error))


def test_requests_with_traced_messages_are_reported_as_spans(tmp_path: Path) -> None:
    recorder = Recorder()
    world, service, plugin = harness(
        tmp_path,
        plugins=[recorder],
        url="https://u.example:99/in?key=k",
        events=("message.published",),
        mode="best_effort",
        envelope="batch",
        batch=BatchConfig(count=2, linger=0.5),
        retry=RetryConfig(first_delay=5.0),
    )
    with world:
        client = world.connect("one")
        service.answer = Answer(Verdict.AGAIN, "status 503")
        client.publish("a", b"x", user_property=(("traceparent", TRACE),))
        client.publish("b", b"x")
        world.advance(0.6)
        service.answer = Answer(Verdict.ARRIVED)
        world.advance(10)
        client.publish("c", b"x")
        world.advance(10)
    assert len(service.sent) == 3
    assert plugin.delivery is not None
    durations = plugin.delivery.totals.durations
    [exemplar] = filter(None, durations.exemplars or ())
    assert (exemplar.trace_id, exemplar.value, durations.count) == (TRACE[3:35], 0.0, 3)
    attributes = {
        "hookmq.plugin": "hook",
        "hookmq.event": "message.published",
        "hookmq.events": 2,
        "http.request.method": "POST",
        "server.address": "u.example",
        "messaging.destination.name": "a",
    }
    assert recorder.spans == [
        ("webhook", TRACE, 0.0, attributes, "status 503"),
        ("webhook", TRACE, 0.0, attributes, ""),
    ]


def test_a_recorder_that_fails_does_not_repeat_a_request(tmp_path: Path) -> None:
    recorder = Recorder()
    recorder.spans = None  # type: ignore[assignment]
    world, service, _ = harness(
        tmp_path, plugins=[recorder], events=("message.published",), mode="best_effort"
    )
    with world:
        world.connect("one").publish("a", b"x", user_property=(("traceparent", TRACE),))
        world.advance(60)
    assert len(service.sent) == 1
    assert len(world.logged("webhook.span_not_recorded")) == 1


def test_a_qos_0_delivery_has_no_event_for_an_acknowledgement(tmp_path: Path) -> None:
    world, service, _ = harness(tmp_path, events=("message.delivered", "message.acked"))
    with world:
        for granted in (0, 1):
            world.connect(f"sub{granted}").subscribe("a", qos=granted)
        world.connect("pub").publish("a", b"x", qos=2)
        world.advance(1)
    found = [
        (n.event.type, n.event.client, n.event.data["qos"], n.event.data["publish_qos"])
        for n in service.sent
    ]
    assert sorted(found) == [
        ("message.acked", "sub1", 1, 2),
        ("message.delivered", "sub0", 0, 2),
        ("message.delivered", "sub1", 1, 2),
    ]


def test_only_what_is_wanted_is_asked_for(tmp_path: Path) -> None:
    world, service, plugin = harness(
        tmp_path,
        events=("message.published",),
        filters=FilterConfig(topics=("a/#",), exclude_clients=("two",)),
    )
    with world:
        assert "on_session" in plugin.idle_hooks
        assert "on_published" in plugin.idle_hooks  # the journal provides these events
        assert "provide_journal" not in plugin.idle_hooks
        for name in ("one", "two"):
            client = world.connect(name)
            client.publish("a/1", b"x", qos=1)
            client.publish("b/1", b"x", qos=1)
        world.advance(1)
        assert [(n.event.client, n.event.topic) for n in service.sent] == [("one", "a/1")]
        assert world.broker.state.router.lookup("b/1").journals == ()
    best = make_plugin(WebhookPlugin, {"url": URL, "mode": "best_effort"}).plugin
    assert "provide_journal" in best.idle_hooks
    assert "on_published" not in best.idle_hooks


@pytest.mark.parametrize("version", [3, 4, 5])
def test_full_the_publisher_is_told_or_not_acknowledged(tmp_path: Path, version: int) -> None:
    world, service, _ = harness(
        tmp_path, DurableStore(), events=("message.published",), outbox={"max_events": 2}
    )
    service.answer = Answer(Verdict.AGAIN, "down")
    with world:
        client = world.connect("one", version=version)
        client.publish("a", b"1", qos=1, expect=0)
        client.publish("a", b"2", qos=1, expect=0)
        if version == 5:
            client.publish("a", b"3", qos=1, expect=0x97)
        else:
            client.publish("a", b"3", qos=1)
            world.advance(1)
            assert len([p for p in client.received if isinstance(p, Puback)]) == 2
        service.answer = Answer(Verdict.ARRIVED)
        world.advance(30)
        if version == 5:
            assert [one.event.payload for one in service.sent] == [b"1", b"2"]
        else:  # when there was room, on the connection that it has
            assert [one.event.payload for one in service.sent] == [b"1", b"2", b"3"]
            assert len([p for p in client.received if isinstance(p, Puback)]) == 3


@pytest.mark.parametrize("on_full", ["dead_letter", "drop"])
def test_full_elsewhere_or_nowhere(tmp_path: Path, on_full: str) -> None:
    world, service, plugin = harness(
        tmp_path,
        DurableStore(),
        events=("message.published",),
        outbox={"max_events": 2, "on_full": on_full},
    )
    service.answer = Answer(Verdict.AGAIN, "down")
    with world:
        client = world.connect("one")
        for number in range(5):
            client.publish("a", b"%d" % number, qos=1)
        assert plugin.dead is not None
        dead = list(plugin.dead.read())
        if on_full == "drop":
            assert dead == []
        else:
            assert [one.event.payload for one in dead] == [b"2", b"3", b"4"]
            assert {one.reason for one in dead} == {"the outbox is full"}
            assert len({one.id for one in dead}) == 3
        assert metrics(plugin)['hookmq_webhook_dropped_total{why="outbox_full"}'] == 3


def test_given_up_goes_to_the_dead_letters(tmp_path: Path) -> None:
    world, service, plugin = harness(
        tmp_path, events=("message.published",), retry=RetryConfig(max_attempts=2)
    )
    with world:
        client = world.connect("one")
        service.answer = Answer(Verdict.REFUSED, "status 400")
        client.publish("a", b"1", qos=1)
        world.advance(1)
        service.answer = Answer(Verdict.AGAIN, "status 500")
        client.publish("a", b"2", qos=1)
        world.advance(10)
        service.answer = Answer(Verdict.ARRIVED)
        client.publish("a", b"3", qos=1)
        world.advance(10)
        assert [one.event.payload for one in service.sent] == [b"3"]
        assert plugin.dead is not None
        assert [(d.event.payload, d.reason, d.attempts) for d in plugin.dead.read()] == [
            (b"1", "status 400", 1),
            (b"2", "status 500", 2),
        ]
        assert len(world.logged("webhook.given_up")) == 2
        assert plugin.queue is not None
        assert plugin.queue.waiting == 0


def test_given_up_goes_to_a_topic(tmp_path: Path) -> None:
    world, service, _ = harness(
        tmp_path, events=("message.published",), dead_letter=DeadLetterConfig(topic="dead/hook")
    )
    service.answer = Answer(Verdict.REFUSED, "status 400")
    with world:
        reader = world.connect("reader")
        reader.subscribe("dead/#", qos=1)
        world.connect("one").publish("a", b'{"n": 1}', qos=1)
        world.advance(5)
        [message] = reader.messages
        told = json.loads(message.payload)
        assert told["reason"] == "status 400"
        assert told["event"]["id"] == told["id"]
        assert told["event"]["data"]["payload"] == {"n": 1}
        # messages published there are not events, or this would never end


def test_an_event_too_large_for_a_message_is_named_on_the_topic(tmp_path: Path) -> None:
    """If an event is too large for a message, the message on the dead-letter topic only names the event. An event's
    JSON is larger than the message that the event reports.
    """
    world, service, _ = harness(
        tmp_path, events=("message.published",), dead_letter=DeadLetterConfig(topic="dead/hook")
    )
    service.answer = Answer(Verdict.REFUSED, "status 400")
    with world:
        reader = world.connect("reader")
        reader.subscribe("dead/#", qos=1)
        world.broker.state.largest_packet = 512
        world.connect("one").publish("a", b"x", qos=1)
        world.advance(5)
        [message] = reader.messages
        told = json.loads(message.payload)
        assert told["event"] is None
        assert told["reason"].startswith("status 400; cannot publish: the packet of ")
        assert len(world.logged("webhook.given_up")) == 1


def test_a_restart_goes_on_where_it_stopped(tmp_path: Path) -> None:
    store = DurableStore()
    world, service, _ = harness(tmp_path, store, events=("message.published",), drain=0.0)
    service.answer = Answer(Verdict.AGAIN, "down")
    with world:
        client = world.connect("one")
        for number in range(5):
            client.publish("a", b"%d" % number, qos=1)
    world, service, _ = harness(tmp_path, store, events=("message.published",))
    with world:
        world.advance(1)
        assert [one.event.payload for one in service.sent] == [b"0", b"1", b"2", b"3", b"4"]
    world, service, _ = harness(tmp_path, store, events=("message.published",))
    with world:
        world.advance(1)
        assert service.sent == []


def test_a_crash_of_the_broker_loses_nothing(tmp_path: Path) -> None:
    store = DurableStore()
    world, service, _ = harness(tmp_path, store, events=("message.published",))
    service.answer = Answer(Verdict.AGAIN, "down")
    with world:
        world.connect("one").publish("a", b"1", qos=1)
        world.restart()
        service.answer = Answer(Verdict.ARRIVED)
        world.advance(60)
        assert {one.event.payload for one in service.sent} == {b"1"}
        assert len({one.id for one in service.sent}) == 1


def test_a_reload_of_other_things_keeps_the_outbox(tmp_path: Path) -> None:
    world, service, plugin = harness(tmp_path, events=("message.published", "broker.*"))
    service.answer = Answer(Verdict.AGAIN, "down")
    with world:
        client = world.connect("one")
        client.publish("a", b"1", qos=1)
        queue = plugin.queue
        world.reload({"broker": {"max_qos": 1}})
        plugin.on_reload(world.settings, world.settings)
        client.publish("a", b"2", qos=1)
        assert plugin.queue is queue
        service.answer = Answer(Verdict.ARRIVED)
        world.advance(60)
        assert [p for one in service.sent if (p := one.event.payload)] == [b"1", b"2"]
        assert "broker.reloaded" in service.types


def test_two_instances_have_two_folders(tmp_path: Path) -> None:
    first = make_plugin(Faked, {"url": URL, "events": ("message.published",)}, "first")
    second = make_plugin(Faked, {"url": URL, "events": ("message.published",)}, "second")
    with Harness([first, second]) as world:
        one, two = Service.made[-2:]
        one.answer = Answer(Verdict.AGAIN, "down")
        world.connect("c").publish("a", b"1", qos=1)
        world.advance(1)
        assert (len(one.sent), len(two.sent)) == (0, 1)  # no delay for the other
        one.answer = Answer(Verdict.ARRIVED)
        world.advance(30)
        assert [n.event.payload for n in one.sent] == [b"1"]
        assert one.sent[0].id != two.sent[0].id
    assert first.plugin.folder != second.plugin.folder  # type: ignore[attr-defined]


def test_best_effort_is_bounded_and_counts(tmp_path: Path) -> None:
    world, service, plugin = harness(
        tmp_path,
        events=("message.published",),
        mode="best_effort",
        queue=QueueConfig(max_events=10),
        drain=0.0,
    )
    service.answer = Answer(Verdict.AGAIN, "down")
    with world:
        client = world.connect("one")
        for number in range(50):
            client.publish("a", b"%d" % number)
        world.advance(1)
        assert plugin.queue is not None
        assert plugin.queue.waiting == 10
        shown = metrics(plugin)
        assert shown['hookmq_webhook_dropped_total{why="queue_full"}'] == 40
        assert shown["hookmq_webhook_queue_events"] == 10
        service.answer = Answer(Verdict.ARRIVED)
        world.advance(60)
        assert len(service.sent) == 10
    assert not (tmp_path / "hook").exists()


def test_a_stop_waits_until_all_arrived_but_not_for_ever(tmp_path: Path) -> None:
    for mode, level in (("at_least_once", "info"), ("best_effort", "warning")):
        world, service, plugin = harness(
            tmp_path, id=mode, events=("client.*",), mode=mode, drain=3.0,
        )  # fmt: skip
        service.answer = Answer(Verdict.AGAIN, "down")
        world.connect("one")
        world.advance(1)
        before = world.clock.now()
        world.close()
        assert 3.0 <= world.clock.now() - before < 5.0
        stopped = [(lv, f["left"]) for lv, event, f in world.logs if event == "webhook.stopped"]
        assert stopped == [(level, 2)]  # connected, disconnected
        assert plugin.queue is not None


class Farewell(Plugin):
    @hookimpl
    def on_shutdown(self, broker: BrokerHandle) -> None:
        broker.publish("farewell", b"x", 1)


def test_messages_published_after_the_stop_are_dropped_without_an_error(tmp_path: Path) -> None:
    settings = {"url": URL, "outbox": OutboxConfig(path=tmp_path / "o"), "drain": 0.1}
    hook = make_plugin(Faked, settings, "hook")
    world = Harness([make_plugin(Farewell), hook], store=DurableStore())
    world.connect("one").publish("a", b"1", qos=1, expect=0)
    world.close()
    assert [one.event.payload for one in Service.made[-1].sent if one.event.topic == "a"]
    plugin = hook.plugin
    assert isinstance(plugin, Faked)
    assert metrics(plugin)['hookmq_webhook_dropped_total{why="outbox_full"}'] == 1
    assert [event for level, event, _ in world.logs if level == "error"] == []


def metrics(plugin: WebhookPlugin) -> dict[str, float]:
    registry = MetricRegistry()
    plugin.register_metrics(registry)
    lines = [line.rsplit(" ", 1) for line in registry.text().splitlines() if line[:1] != "#"]
    return {name: float(value) for name, value in lines}


def test_metrics(tmp_path: Path) -> None:
    world, service, plugin = harness(
        tmp_path, events=("message.published", "client.connected"), retry=RetryConfig(max_age=3600)
    )
    assert metrics(plugin)["hookmq_webhook_circuit"] == 0
    with world:
        client = world.connect("one")
        client.publish("a", b"1", qos=1)
        world.advance(1)
        service.answer = Answer(Verdict.AGAIN, "status 503")
        client.publish("a", b"2", qos=1)
        world.advance(100)
        shown = metrics(plugin)
        assert shown['hookmq_webhook_events_total{type="message.published"}'] == 2
        assert shown['hookmq_webhook_events_total{type="client.connected"}'] == 1
        assert shown["hookmq_webhook_delivered_total"] == 2
        assert shown['hookmq_webhook_failed_total{reason="status"}'] >= 5
        assert shown["hookmq_webhook_queue_events"] == 1
        assert shown["hookmq_webhook_queue_bytes"] > 0
        assert 99 <= shown["hookmq_webhook_oldest_seconds"] <= 101
        assert shown["hookmq_webhook_circuit"] in (1, 2)
        assert shown["hookmq_webhook_request_seconds_count"] >= 7
        assert not [event for level, event, _ in world.logs if level == "error"]
    assert re.search(r"payload|secret", json.dumps(sorted(metrics(plugin)))) is None


def test_before_it_starts_there_are_metrics(tmp_path: Path) -> None:
    plugin = WebhookPlugin(WebhookConfig(url=URL), make_plugin(Faked, {"url": URL}).plugin.context)
    shown = metrics(plugin)
    assert shown.pop('hookmq_webhook_state{state="starting"}') == 1.0
    assert set(shown.values()) == {0.0}


LISTENERS = [{"name": "tcp", "bind": "127.0.0.1:1883"}]

# configuration ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"url": "http://service.example/hook"}, "neither encrypted nor signed"),
        ({"url": "http://192.0.2.1/hook"}, "neither encrypted nor signed"),
        ({"url": "http://service.example/hook", "sign": {"secret": new_secret()}}, "not encrypted"),
        ({"url": "https://service.example/hook"}, ""),
        ({"url": "http://127.0.0.1:8080/hook"}, ""),
        ({"url": "http://[::1]:8080/hook"}, ""),
        ({"url": "http://localhost/hook"}, ""),
    ],
)
def test_a_service_that_is_reached_in_the_clear_is_worth_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: dict[str, Any], says: str
) -> None:
    path = tmp_path / "hookmq.yaml"
    entry = {"use": "webhook", "config": settings}
    path.write_text(json.dumps({"version": 1, "listeners": LISTENERS, "plugins": [entry]}))
    assert run_command(["check", "-c", str(path)]) == 0
    out = capsys.readouterr().out
    assert ("encrypted" in out) == bool(says)
    assert says in out


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"url": "http://${client}.example/"}, "not in the host"),
        ({"url": "http://ann:pw@x/"}, "use auth"),
        ({"url": "http://x/${topics}"}, r"url: unknown placeholder \$\{topics\}"),
        ({"url": "http://x:99999/"}, "url: "),
        ({"headers": {"Authorization": "x"}}, "use auth"),
        ({"headers": {"X Y": "x"}}, "not a valid header"),
        ({"headers": {"X": "a\nb"}}, "not a valid header"),
        ({"headers": {"X": "${what}"}}, r"headers.X: unknown placeholder \$\{what\}"),
        ({"batch": BatchConfig(2)}, "batch.count"),
        ({"batch": BatchConfig(2), "envelope": "batch", "url": "http://x/${id}"}, "url: "),
        (
            {"outbox": OutboxConfig(on_full="dead_letter"), "dead_letter": DeadLetterConfig(topic="d")},
            "outbox.on_full",
        ),
        ({"retry": RetryConfig(first_delay=9, longest_delay=1)}, "retry.first_delay"),
        (
            {"proxy": ProxyConfig("http://p"), "destinations": DestinationConfig(deny_networks=("10.0.0.0/8",))},
            "networks cannot be checked with a proxy",
        ),
        ({"sign": SignConfig("x"), "envelope": "binary"}, "do not cover the ce-"),
    ],
)  # fmt: skip
def test_settings_that_contradict_each_other_are_refused(
    config: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        WebhookConfig(**{"url": URL, **config})


@pytest.mark.parametrize(
    "auth", [{}, {"username": "a"}, {"password": "p"}, {"bearer_token": "t", "username": "a"}]
)
def test_one_way_to_show_who_we_are(auth: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="auth: "):
        AuthConfig(**auth)


def test_the_configuration_is_bound_strictly_and_shows_no_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "hookmq.yaml"
    listener = '[{name: tcp, bind: "127.0.0.1:0"}]'

    def run(*words: str, config: str) -> tuple[int, str]:
        path.write_text(
            f"version: 1\nlisteners: {listener}\nplugins:\n  - use: webhook\n    config: {config}\n"
        )
        code = run_command([*words, "-c", str(path)])
        found = capsys.readouterr()
        return code, found.out + found.err

    good = (
        "{url: 'https://x/', auth: {oauth2: {token_url: 'https://t/', client_id: me,"
        " client_secret: word-one}}, sign: {secret: 'whsec_" + "d29yZC10d28t" * 4 + "',"
        " previous_secret: 'whsec_" + "b2xkLXdvcmQt" * 4 + "'}, retry: {max_age: 7d}}"
    )
    code, text = run("check", config=good)
    assert code == 0, text
    code, text = run("config", "show", config=good)
    assert "webhook" in text
    for word in ("word-one", "d29yZC10d28t", "b2xkLXdvcmQt"):
        assert word not in text
    code, text = run("check", config="{url: 'https://x/', retry: {max_tries: 3}}")
    assert code == 2
    assert "max_tries" in text
    code, text = run("check", config="{url: 'https://x/', events: [message.publish]}")
    assert code != 0
    assert "message.publish" in text


# dead letters -----------------------------------------------------------------------------------------------------------


def test_a_failed_disk_does_not_fill_the_memory_with_dead_letters(tmp_path: Path) -> None:
    def full(call: Any, done: Any) -> Any:
        done(None, OSError(28, "No space left on device"))
        return lambda: None

    from hookmq_webhook.events import Event

    dead = DeadLetters(tmp_path / "dead", full, 65536)
    dead.open()
    said: list[Any] = []
    for _ in range(10):
        dead.add(Numbered(0, Event("x.y", 1.0), 0, "q-0"), "why", 1, 1.0, said.append)
    assert len(said) == 10
    assert all("No space" in one.reason for one in said)
    assert (dead.waiting, dead.added) == (1, 1)  # it is retried forever
    dead.close()


def test_dead_letters_are_kept_again_when_the_disk_has_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hookmq_webhook.events import Event

    dead = DeadLetters(tmp_path / "dead", at_once, 65536)
    dead.open()

    def add(number: int) -> bool:
        said: list[Any] = []
        dead.add(Numbered(number, Event("x.y", 1.0), 0, f"q-{number}"), "why", 1, 1.0, said.append)
        return said == [None]

    def full(file: int, data: Any) -> int:
        raise OSError(28, "No space left on device")

    assert add(0)
    dead.replayed([0])()
    assert add(1)
    monkeypatch.setattr("os.write", full)
    for _ in range(4):
        assert not add(2)
    monkeypatch.undo()
    assert add(2) or add(2)  # the first call may only reopen the file
    assert [one.number for one in dead.read()] == [1, 2]
    assert dead.waiting == 2
    dead.close()
    again = DeadLetters(tmp_path / "dead", at_once, 65536)
    again.open()  # the lock is free again
    assert [one.number for one in again.read()] == [1, 2]
    again.close()


def test_dead_letters_are_bounded(tmp_path: Path) -> None:
    dead = DeadLetters(tmp_path / "dead", at_once, 65536)
    dead.open()
    from hookmq_webhook.events import Event

    event = Event("x.y", 1.0, payload=bytes(1000))
    for number in range(200):
        dead.add(Numbered(number, event, 0, f"q-{number}"), "why", 1, 1.0, lambda failed: None)
    left = [one.number for one in dead.read()]
    assert left == list(range(200 - len(left), 200))
    assert 30 < len(left) < 80
    assert dead.overwritten == 200 - len(left)
    assert dead.waiting == len(left)
    dead.replayed([left[0], left[5]])()
    dead.close()
    again = DeadLetters(tmp_path / "dead", at_once, 65536)
    again.open()
    assert [n for n in left if n not in (left[0], left[5])] == [o.number for o in again.read()]
    again.close()
    again.add(Numbered(0, event, 0), "why", 1, 1.0, lambda failed: None)


def test_events_lost_by_the_disk_become_a_dead_letter(tmp_path: Path) -> None:
    store = DurableStore()
    world, service, plugin = harness(tmp_path, store)
    service.answer = Answer(Verdict.AGAIN, "down")
    with world:
        client = world.connect("one")
        for number in range(4):
            client.publish("a", b"%d" % number * 50, qos=1, expect=0)
    assert isinstance(plugin.queue, Outbox)
    epoch = plugin.queue.log.id
    [path] = (tmp_path / "hook" / "log").glob("*.segment")
    content = bytearray(path.read_bytes())
    content[content.index(b"2" * 50)] ^= 1
    path.write_bytes(content)
    world, service, plugin = harness(tmp_path, store)
    with world:
        world.advance(10)
        assert plugin.dead is not None
        [gap] = plugin.dead.read()
        assert gap.event.type == "gap"
        assert gap.event.data["first"] == gap.event.data["last"]
        assert gap.id == f"{epoch}-{gap.event.data['first']}"
        payloads = [n.event.payload for n in service.sent if n.event.type == "message.published"]
        assert payloads == [b"%d" % number * 50 for number in (0, 1, 3)]
        assert gap.event.data["first"] not in [n.number for n in service.sent]
        assert metrics(plugin)['hookmq_webhook_dropped_total{why="damaged"}'] == 1


# reload -----------------------------------------------------------------------------------------------------------------


def changed(plugin: Faked, **values: Any) -> WebhookConfig:
    return replace(plugin.config, **values)


def test_it_goes_on_with_another_configuration(tmp_path: Path) -> None:
    world, service, plugin = harness(
        tmp_path,
        events=("message.published",),
        retry=RetryConfig(first_delay=100.0, longest_delay=100.0),
    )
    with world:
        service.answer = Answer(Verdict.AGAIN, "status 500")
        client = world.connect("one")
        client.publish("a", b"1", qos=1, expect=0)
        world.advance(1)
        assert plugin.delivery is not None
        assert plugin.delivery.totals["attempts"] == 1
        idle = plugin.idle_hooks
        apply = plugin.reconfigure(
            changed(
                plugin,
                url=URL + "/new",
                events=("message.published", "session.*"),
                filters=FilterConfig(topics=("b/#", "a")),
                outbox=OutboxConfig(path=tmp_path / "hook", max_events=2),
                drain=7.0,
            )
        )
        assert "on_session" in idle - plugin.idle_hooks
        assert plugin.config.url == URL  # not applied yet
        apply()
        world.advance(1)
        fresh = Service.made[-1]
        assert fresh is not service
        assert fresh.config.url == URL + "/new"
        assert [one.event.payload for one in fresh.sent] == [b"1"]  # at once, not after 100 s
        assert plugin.timeouts["on_shutdown"] == 12.0
        client.publish("c", b"2", qos=1, expect=0x10)
        client.publish("b/1", b"3", qos=1, expect=0)
        world.advance(60)
        assert [one.event.payload for one in fresh.sent] == [b"1", b"3"]
        assert (service.closed, fresh.closed) == (1, 0)
        fresh.answer = Answer(Verdict.AGAIN, "status 500")
        for _ in range(2):
            client.publish("a", b"x", qos=1, expect=0)
        client.publish("a", b"x", qos=1, expect=0x97)  # the outbox's new bound
        fresh.answer = Answer(Verdict.ARRIVED)


def test_best_effort_goes_on_too_and_keeps_what_waits(tmp_path: Path) -> None:
    world, service, plugin = harness(tmp_path, mode="best_effort", events=("message.published",))
    with world:
        service.answer = Answer(Verdict.AGAIN, "status 500")
        client = world.connect("one")
        for number in range(5):
            client.publish("a", b"%d" % number)
        world.advance(1)
        plugin.reconfigure(changed(plugin, queue=QueueConfig(max_events=6)))()
        Service.made[-1].answer = Answer(Verdict.AGAIN, "status 500")
        for number in range(5, 8):
            client.publish("a", b"%d" % number)
        world.advance(1)
        plugin.reconfigure(changed(plugin, batch=BatchConfig(10), envelope="batch"))()
        world.advance(60)
        sent = [one.event.payload for one in Service.made[-1].sent]
        assert len(sent) == 6
        assert sent == sorted(sent, key=lambda payload: payload or b"")
        assert plugin.dropped == {"queue_full": 2}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"mode": "best_effort"}, "mode: a change needs a restart"),
        ({"key": "all", "process": False}, "key, process: a change needs a restart"),
        ({"outbox": OutboxConfig(path=Path("/other"))}, r"outbox\.path: a change needs a restart"),
        ({"dead_letter": DeadLetterConfig(topic="d")}, "dead_letter: a change needs a restart"),
        ({"sign": SignConfig("short")}, r"sign\.secret"),
        ({"events": ("client.conected",)}, "no event matches"),
        ({"tls": TlsConfig(ca_file=Path("/nothing"))}, "/nothing cannot be used: No such file"),
        ({"filters": FilterConfig(topics=("a/#/b",))}, "filters.topics"),
    ],
)
def test_settings_that_cannot_change_keep_the_running_configuration(
    tmp_path: Path, values: dict[str, Any], says: str
) -> None:
    world, _, plugin = harness(tmp_path)
    with world:
        before = plugin.config
        with pytest.raises(ConfigError, match=says):
            plugin.reconfigure(changed(plugin, **values))
        assert plugin.config is before


@pytest.mark.parametrize(("mode", "name"), [("at_least_once", "outbox"), ("best_effort", "queue")])
def test_the_queue_is_described_as_a_stream(tmp_path: Path, mode: str, name: str) -> None:
    world, service, _ = harness(tmp_path, DurableStore(), mode=mode, events=("message.published",))
    with world:
        owner = world.handle("hook").services(streams.SERVICE)["hook"]
        assert isinstance(owner, streams.StreamOwner)
        [empty] = world.clock.run(owner.list_streams())
        assert empty == streams.StreamStatus(name, "queue", 0, 0)
        service.answer = Answer(Verdict.AGAIN, "status 503")
        world.connect("one").publish("a", b"x" * 100, qos=1)
        world.advance(2)
        [found] = world.clock.run(owner.list_streams())
        assert (found.name, found.kind, found.messages) == (name, "queue", 1)
        assert found.bytes > 100
        assert found.oldest is not None
        assert 2 <= found.oldest < 4
        service.answer = Answer(Verdict.ARRIVED)
