"""Test slow clients, hot topics and dropped messages, including their routes and commands. When off, they must cost
nothing.
"""

import argparse
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from admin_site import DOCUMENT, Site, validate
from hookmq.plugin import ClientRequest, Delivery, DisconnectReason, EndedBy, ReasonCode
from hookmq_admin import diagnosis
from hookmq_admin.cli import add_arguments
from hookmq_admin.drops import DropLog
from hookmq_admin.hot_topics import HotTopics
from hookmq_admin.sampling import SampledSubscription
from hookmq_admin.top_counts import MAX_KEY, TopCounts
from hookmq_testing import AsyncioClient, Harness, HookRecorder
from hypothesis import given
from hypothesis import strategies as st

Make = Callable[..., Harness]
PARSER = argparse.ArgumentParser()
add_arguments(PARSER)


@given(st.lists(st.sampled_from("abcdefghij"), max_size=200), st.integers(1, 6))
def test_counts_are_too_high_by_at_most_their_error(keys: list[str], capacity: int) -> None:
    found, true = TopCounts(capacity), Counter(keys)
    for key in keys:
        found.add(key)
    shown = found.top(100)
    assert len(shown) == min(capacity, len(true))
    assert found.total == len(keys)
    for one in shown:
        assert one.count - one.error <= true[one.key] <= one.count
    for key, count in true.items():
        if count > len(keys) / capacity:
            assert key in {one.key for one in shown}
    assert [one.count for one in shown] == sorted((one.count for one in shown), reverse=True)


def test_a_long_key_is_counted_by_its_beginning() -> None:
    found = TopCounts(2)
    found.add("a" * 1000)
    found.add("a" * 2000, 1, 7)
    [one] = found.top(5)
    assert (one.key, one.count, one.size) == ("a" * MAX_KEY, 2, 7)


# slow clients


@pytest.fixture(scope="module")
def offline(site: Site) -> None:
    """Create three offline clients with 1, 2 and 3 queued messages, and one online client that does not acknowledge
    messages.
    """
    busy = site.client("busy", auto_ack=False)
    site.run(busy.subscribe("slow/busy", 1))
    for count in (1, 2, 3):
        client = site.client(f"slow-{count}", session_expiry_interval=600)
        site.run(client.subscribe([f"slow/{n}" for n in range(count)], 1))
        site.thread.call(client.disconnect)
        site.run(client.wait_closed())
    pub = site.client("slow-publisher")
    for topic in ("0", "1", "2", "busy"):
        site.run(pub.publish(f"slow/{topic}", b"x" * 10, 1))


def test_the_slowest_client_comes_first(site: Site, offline: None) -> None:
    found = site.ask("GET", "/slow-clients", "viewer", params={"limit": 2}).json
    assert [(one["client_id"], one["queued"]) for one in found["items"]] == [
        ("slow-3", 3),
        ("slow-2", 2),
    ]
    assert found["cursor"] == ""
    assert found["examined"] == len(site.broker.sessions)
    assert all(0 <= one["oldest"] < 3600 for one in found["items"])
    flying = site.ask("GET", "/slow-clients", params={"by": "inflight"}).json["items"]
    assert [(one["client_id"], one["inflight"]) for one in flying] == [("busy", 1)]
    answer = site.ask("GET", "/slow-clients", params={"by": "client_id"})
    assert (answer.status, answer.json["field"]) == (400, "by")


def test_one_request_examines_a_bounded_part(
    site: Site, offline: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each request examines only a part of the sessions, in small slices. The command sends requests until all parts
    are covered.
    """
    monkeypatch.setattr(diagnosis, "SLICE", 1)
    monkeypatch.setattr(diagnosis, "EXAMINED", 2)
    first = site.ask("GET", "/slow-clients").json
    assert first["examined"] == 2
    assert first["cursor"]
    assert site.ask("GET", "/slow-clients", params={"cursor": "nonsense"}).status == 400
    assert [
        one["client_id"]
        for one in json.loads(run(site, capsys, monkeypatch, "slow", "-n", "1", "--json"))
    ] == ["slow-3"]
    lines = run(site, capsys, monkeypatch, "slow").splitlines()
    assert [line.split()[0] for line in lines] == ["client_id", "slow-3", "slow-2", "slow-1"]


def run(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str
) -> str:
    """Run ``hookmq admin`` and return its output."""
    monkeypatch.setenv("HOOKMQ_ADMIN_URL", site.url)
    monkeypatch.setenv("HOOKMQ_ADMIN_TOKEN", site.tokens["admin"])
    capsys.readouterr()
    arguments = PARSER.parse_args(words)
    assert arguments.run(arguments) == 0
    return capsys.readouterr().out


# hot topics


def measuring(site: Site) -> int:
    return sum(name.startswith("$admin/hot/") for name in site.broker.state.sessions)


def test_hot_topics_are_counted_while_somebody_measures(site: Site) -> None:
    pub = site.client("hot-publisher")
    body = {"filter": "hot/#", "seconds": 60}
    assert measuring(site) == 0
    assert site.ask("POST", "/hot-topics", "operator", json=body).status == 200
    assert measuring(site) == 1
    again = site.ask("POST", "/hot-topics", json=body)
    assert (again.status, again.json["detail"]) == (409, "another measurement is running")
    for topic, count in (("hot/a", 5), ("hot/b/1", 2), ("cold", 9)):
        for _ in range(count):
            site.run(pub.publish(topic, b"12345", 1, expect=None))
    found = site.ask("GET", "/hot-topics", "viewer").json
    assert (found["running"], found["messages"], found["filter"]) == (True, 7, "hot/#")
    assert [(one["topic"], one["messages"], one["bytes"], one["error"]) for one in found["topics"]] == [
        ("hot/a", 5, 25, 0), ("hot/b/1", 2, 10, 0)
    ]  # fmt: skip
    assert site.ask("DELETE", "/hot-topics").json == {"stopped": True}
    assert site.ask("DELETE", "/hot-topics").json == {"stopped": False}
    assert measuring(site) == 0
    site.run(pub.publish("hot/a", b"", 1, expect=None))
    ended = site.ask("GET", "/hot-topics").json
    assert (ended["running"], ended["messages"]) == (False, 7)
    assert site.audit()[0]["action"] == "stopHotTopics"


def test_a_filter_that_is_invalid_is_refused(site: Site) -> None:
    answer = site.ask("POST", "/hot-topics", json={"filter": "a/#/b"})
    assert (answer.status, answer.json["field"]) == (400, "filter")
    assert measuring(site) == 0


@pytest.fixture
def harness(broker_harness: Make) -> Harness:
    return broker_harness(plugins=[HookRecorder("on_dropped", id="mine")])


def start(harness: Harness, hot: HotTopics, filter: str, levels: int = 0) -> None:
    failed: list[Any] = []
    harness.clock.spawn(
        hot.start(filter, 10, levels, "ann", "192.0.2.1"), lambda _, error: failed.append(error)
    )
    harness.settle()
    assert failed == [None]


def test_a_measurement_ends_by_itself(harness: Harness) -> None:
    hot = HotTopics(harness.handle("mine"))
    start(harness, hot, "#", levels=2)
    pub = harness.connect("pub")
    for topic in ("a/b/c", "a/b/d", "a/e", "f"):
        pub.publish(topic, b"", 0)
    harness.advance(9)
    assert hot.running
    harness.advance(2)
    assert not hot.running
    assert hot.seconds == pytest.approx(10, abs=0.1)
    assert {one.key: one.count for one in hot.counts.top(9)} == {"a/b": 2, "a/e": 1, "f": 1}
    pub.publish("f", b"", 0)
    harness.settle()
    assert hot.counts.total == 4
    assert len(harness.broker.sessions) == 1


def test_the_end_of_an_old_client_does_not_end_the_next_measurement(harness: Harness) -> None:
    hot = HotTopics(harness.handle("mine"))
    start(harness, hot, "a")
    first = hot._client
    assert first is not None
    assert first.on_end is not None
    ended = first.on_end
    hot.stop()
    harness.settle()
    start(harness, hot, "b")
    ended(DisconnectReason(ReasonCode.SUCCESS, EndedBy.SERVER))
    assert hot.running
    harness.handle("mine").disconnect(hot._client.client_id)  # type: ignore[union-attr]
    harness.settle()
    assert not hot.running


def test_a_canceled_start_leaves_no_client(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is canceled while the client waits for its SUBACK."""
    hot = HotTopics(harness.handle("mine"))
    canceled: list[str] = []

    async def never(sampled: SampledSubscription) -> None:
        canceled.append(sampled._client_id)
        cancel()
        await harness.clock.promise()

    monkeypatch.setattr(SampledSubscription, "open", never)
    cancel = harness.clock.spawn(hot.start("#", 10, 0, "ann", "192.0.2.1"), lambda *_: None)
    harness.settle()
    assert len(canceled) == 1
    assert not hot.running
    assert not harness.broker.sessions
    monkeypatch.undo()
    start(harness, hot, "#")
    assert hot.running
    hot.stop()


def test_a_client_that_ends_before_its_suback_is_reported(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    hot = HotTopics(harness.handle("mine"))
    errors: list[Any] = []
    original = SampledSubscription.open

    async def kicked(sampled: SampledSubscription) -> Any:
        code = await original(sampled)
        harness.handle("mine").disconnect(sampled._client_id)
        return code

    monkeypatch.setattr(SampledSubscription, "open", kicked)
    harness.clock.spawn(
        hot.start("#", 10, 0, "ann", "192.0.2.1"), lambda _, error: errors.append(error)
    )
    harness.settle()
    assert [error.status for error in errors] == [503]
    assert not hot.running


def test_many_messages_are_sampled(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it has enough messages, the client unsubscribes for the rest of the second. The reported rate must still be
    right.
    """
    monkeypatch.setattr("hookmq_admin.hot_topics.MOST", 10)
    hot = HotTopics(harness.handle("mine"))
    start(harness, hot, "#")
    sub, pub = harness.connect("sub"), harness.connect("pub")
    sub.subscribe("#")
    subscribed = []
    for _ in range(300):
        pub.publish("t", b"", 0)
        harness.advance(0.01)
        subscribed.append(len(harness.broker.state.router))
    [one] = hot.counts.top(5)
    assert 20 <= one.count <= 50
    assert one.count / hot.listened == pytest.approx(100, rel=0.25)
    assert set(subscribed) == {1, 2}
    assert subscribed.count(1) > 200  # most of the time, only the other client is subscribed
    assert len(sub.messages) == 300
    assert not harness.logged("broker.subscribed") or {
        level
        for level, event, _ in harness.logs
        if event in ("broker.subscribed", "broker.unsubscribed")
    } == {"debug"}
    hot.stop()
    harness.advance(2)
    assert len(harness.broker.state.router) == 1


def test_missed_messages_are_estimated(harness: Harness) -> None:
    """A live tail reports how many messages it missed while it was not subscribed."""
    broker = harness.handle("mine")
    client = harness.clock.run(broker.connect(ClientRequest("sampler")))
    sampled = SampledSubscription(broker, "sampler", "#", 10)
    taken = 0

    def hear(delivery: Delivery) -> None:
        nonlocal taken
        taken += sampled.take(delivery.message.received_at)

    client.on_message = hear
    assert harness.clock.run(sampled.open()) == 0
    pub = harness.connect("pub")
    for _ in range(300):
        pub.publish("t", b"", 0)
        harness.advance(0.01)
    harness.advance(1)
    sampled.close()
    assert taken < 50
    assert taken + sampled.missed == pytest.approx(300, rel=0.4)
    before = sampled.listened
    harness.advance(5)
    assert sampled.listened == before


def test_a_subscription_that_cannot_continue_is_lost(harness: Harness) -> None:
    """The live tail must end. Otherwise, it would stay silent forever."""
    broker = harness.handle("mine")
    client = harness.clock.run(broker.connect(ClientRequest("sampler")))
    sampled = SampledSubscription(broker, "sampler", "#", 3)
    client.on_message = lambda delivery: (sampled.take(delivery.message.received_at), None)[1]
    assert harness.clock.run(sampled.open()) == 0
    pub = harness.connect("pub")
    for _ in range(3):
        pub.publish("t", b"", 0)
    harness.settle()
    assert not sampled.lost
    client.disconnect()
    harness.advance(2)
    assert sampled.lost


# dropped messages


def test_drops_are_recorded_while_somebody_asks(site: Site) -> None:
    away = site.client("dropped", session_expiry_interval=600)
    site.run(away.subscribe("lost/#", 0))
    site.thread.call(away.disconnect)
    site.run(away.wait_closed())
    pub = site.client("drop-publisher")

    def lose(topic: str) -> None:
        site.run(pub.publish(topic, b"123", 0, expect=None))
        site.run(pub.publish("x", b"", 1, expect=None))  # the broker has handled the first message

    lose("lost/before")
    assert "on_dropped" not in site.broker.state.observed
    assert site.ask("POST", "/drops", "operator", json={"seconds": 60}).status == 200
    assert site.ask("POST", "/drops").status == 409
    assert "on_dropped" in site.broker.state.observed
    for topic in ("lost/a", "lost/a", "lost/b"):
        lose(topic)
    found: Any = {"recorded": 0}
    while found["recorded"] < 3:  # observers are called later
        found = site.ask("GET", "/drops", "viewer").json
    validate(found, DOCUMENT["components"]["schemas"]["Drops"])
    assert found["reasons"]["out:offline_qos0"] == 4
    assert [(one["client_id"], one["messages"]) for one in found["clients"]] == [("dropped", 3)]
    assert [(one["topic"], one["messages"], one["bytes"]) for one in found["topics"]] == [
        ("lost/a", 2, 6), ("lost/b", 1, 3)
    ]  # fmt: skip
    newest = found["samples"][0]
    assert (newest["topic"], newest["reason"], newest["direction"]) == (
        "lost/b",
        "offline_qos0",
        "out",
    )
    assert (newest["client_id"], newest["sender"], newest["listener"]) == (
        "dropped",
        "drop-publisher",
        "tcp",
    )
    assert "payload" not in newest
    assert site.ask("DELETE", "/drops").json == {"stopped": True}
    assert "on_dropped" not in site.broker.state.observed
    lose("lost/after")
    assert site.ask("GET", "/drops").json["recorded"] == 3


def test_a_recording_ends_by_itself(harness: Harness) -> None:
    drops = DropLog(harness.handle("mine"))
    assert drops.start(10)
    assert not drops.start(10)
    harness.advance(11)
    assert not drops.running
    assert "on_dropped" not in harness.broker.state.observed
    assert not drops.stop()


def test_the_samples_are_bounded(harness: Harness) -> None:
    seen: list[Any] = []
    recorder = harness.hooks.instance("mine")
    assert recorder is not None
    away = harness.connect("away", session_expiry_interval=60)
    away.subscribe("t/#")
    away.disconnect()
    pub = harness.connect("pub")
    for number in range(300):
        pub.publish(f"t/{number}", b"", 0)
    harness.settle()
    plugin: Any = recorder.plugin
    seen = plugin.calls("on_dropped")
    drops = DropLog(harness.handle("mine"))
    drops.start(10)
    for one in seen * 3:
        drops.record(one.client, one.message, one.why)
    assert len(drops.samples) == 100
    assert drops.topics.total == 900
    assert len(drops.topics.top(10_000)) <= 500


# commands


def test_hot_topics_as_a_command(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pub = site.client("command-publisher")

    def meanwhile(seconds: float) -> None:
        assert seconds == 2
        for _ in range(3):
            site.run(pub.publish("hot/command", b"1", 1, expect=None))

    monkeypatch.setattr("hookmq_admin.diagnosis_cli.time.sleep", meanwhile)
    lines = run(site, capsys, monkeypatch, "hot", "hot/#", "--for", "2s").splitlines()
    assert lines[0].split() == ["topic", "messages", "rate", "bytes", "error"]
    assert lines[1].split()[:2] == ["hot/command", "3"]
    assert measuring(site) == 0


def test_drops_as_a_command(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    away: AsyncioClient = site.client("command-away", session_expiry_interval=600)
    site.run(away.subscribe("drop/#", 0))
    site.thread.call(away.disconnect)
    site.run(away.wait_closed())
    pub = site.client("drop-command")

    def meanwhile(seconds: float) -> None:
        site.run(pub.publish("drop/1", b"1", 0, expect=None))
        site.run(pub.publish("x", b"", 1, expect=None))
        while not site.admin.plugin.services.drops.topics.total:  # type: ignore[attr-defined]
            site.ask("GET", "/health")

    monkeypatch.setattr("hookmq_admin.diagnosis_cli.time.sleep", meanwhile)
    text = run(site, capsys, monkeypatch, "drops", "--for", "1s")
    assert "offline_qos0" in text
    assert "command-away" in text
    assert "drop/1" in text
    assert "on_dropped" not in site.broker.state.observed
    found = json.loads(run(site, capsys, monkeypatch, "drops", "--json"))
    assert not found["running"]
