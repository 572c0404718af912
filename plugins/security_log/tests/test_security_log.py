"""Test that each security event is written once, with its fields, and that no client can cause too many records."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hookmq.plugin import (
    Allow,
    Context,
    Deny,
    Peer,
    Plugin,
    ReasonCode,
    hookimpl,
)  # fmt: skip
from hookmq_security_log.aggregate import Aggregator, Alerts
from hookmq_security_log.catalog import KINDS
from hookmq_security_log.log_file import RotatedFile
from hookmq_security_log.plugin import SecurityLogPlugin
from hookmq_security_log.record import SecurityEvent, line_of, record_of, source_of, split_peer
from hookmq_security_log.takeovers import Takeovers
from hookmq_testing import Harness, make_plugin
from hookmq_testing.contracts import PluginContract

README = Path(__file__).parents[1] / "README.md"
Make = Callable[..., Harness]
HOST = Peer("192.0.2.7", 4711, "tcp")


class TestContract(PluginContract):
    kind = SecurityLogPlugin
    use = "security_log"
    configs = ({}, {"topics": True, "watch": {"publish": ["#"], "subscribe": ["a/#"]}})
    bad_configs = (
        {"period": "0s"}, {"burst": 0}, {"max_bytes": 10}, {"alert": {"events": 0}}, {"files": 0},
        {"watch": {"publish": ["a#"]}}, {"x": 1},
    )  # fmt: skip


class Guard(Plugin):
    """A plugin that accepts the password `right` and allows only the topic `open`."""

    @hookimpl
    def on_connect(self, connect: Any) -> Deny | None:
        if connect.password in (None, b"right"):
            return None
        return Deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD, "wrong password")

    @hookimpl
    def authorize(self, topic: str) -> Allow | Deny:
        return Allow() if topic in ("open", "#") else Deny(rule="guard:1")

    @hookimpl
    def on_event(self, event: str, fields: Any) -> None:
        if event.startswith("security."):
            self.seen.append((event, dict(fields)))

    def __init__(self, id: str = "guard") -> None:
        super().__init__(None, Context(id))
        self.seen: list[tuple[str, dict[str, Any]]] = []


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    opened: list[Harness] = []

    def build(**config: Any) -> Harness:
        config = {"file": str(tmp_path / "security.json"), "period": "10s", **config}
        found = Harness([make_plugin(SecurityLogPlugin, config, "security_log"), Guard()])
        opened.append(found)
        return found

    yield build
    for harness in opened:
        harness.close()


def records(folder: Path) -> list[dict[str, Any]]:
    path = folder / "security.json"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def guess(harness: Harness, times: int, peer: Peer = HOST, user: str = "admin") -> None:
    for _ in range(times):
        harness.connect("c", username=user, password=b"hunter2", peer=peer, expect=0x86)


def test_a_wrong_password(make: Make, tmp_path: Path) -> None:
    harness = make()
    guess(harness, 1)
    harness.settle()
    [record] = records(tmp_path)
    assert record.pop("@timestamp").endswith("Z")
    assert record == {
        "log.level": "warning",
        "event.action": "authentication_failure",
        "event.kind": "event",
        "event.category": ["authentication"],
        "event.type": ["start"],
        "event.outcome": "failure",
        "source.ip": "192.0.2.7",
        "source.port": 4711,
        "event.module": "hookmq",
        "event.dataset": "hookmq.security",
        "ecs.version": "8.11.0",
        "network.protocol": "mqtt",
        "network.transport": "tcp",
        "user.name": "admin",
        "hookmq.client_id": "c",
        "hookmq.listener": "default",
        "error.code": "0x86",
        "message": "wrong password",
    }
    assert "hunter2" not in (tmp_path / "security.json").read_text()
    assert (tmp_path / "security.json").stat().st_mode & 0o777 == 0o640


def test_every_output_has_the_same_record(make: Make, tmp_path: Path) -> None:
    harness = make(topics=True)
    operator = harness.handle("security_log")
    reader = harness.connect("operator")
    assert operator is not None
    harness.wait(
        lambda done: harness.clock.spawn(
            operator.subscribe("operator", "$SYS/security/#"), lambda _, error: done(error)
        )
    )
    guess(harness, 1)
    harness.settle()
    guard = next(one.plugin for one in harness.hooks.plugins if isinstance(one.plugin, Guard))
    [written] = records(tmp_path)
    [(name, emitted)] = guard.seen
    [logged] = harness.logged("security.event")
    assert logged.pop("plugin") == "security_log"
    assert name == "security.authentication_failure"
    assert written == emitted == logged
    [message] = reader.messages
    assert message.topic == "$SYS/security/authentication_failure"
    assert json.loads(message.payload) == written
    assert not message.retain


def test_a_denied_action_names_the_rule(make: Make, tmp_path: Path) -> None:
    harness = make()
    client = harness.connect("c", username="ann", password=b"right", peer=HOST)
    client.publish("secret", b"x", qos=1, expect=0x87)
    [record] = records(tmp_path)
    assert record["event.action"] == "authorization_denied"
    assert (record["hookmq.action"], record["hookmq.topic"]) == ("publish", "secret")
    assert (record["rule.name"], record["user.name"]) == ("guard: guard:1", "ann")


def test_protocol_errors_of_known_and_unknown_clients(make: Make, tmp_path: Path) -> None:
    harness = make()
    harness.open(peer=HOST).raw(b"\xf7\x00")
    harness.connect("c", peer=HOST).raw(b"\xf7\x00")
    harness.settle()
    first, second = records(tmp_path)
    assert first["event.action"] == second["event.action"] == "protocol_error"
    assert (first["source.ip"], first["source.port"]) == ("192.0.2.7", 4711)
    assert "hookmq.client_id" not in first
    assert second["hookmq.client_id"] == "c"
    assert second["message"] == "AUTH with flags 0111"


@pytest.mark.parametrize(
    ("event", "action"),
    [
        ("broker.handshake_failed", "handshake_failure"),
        ("broker.connection_refused", "connection_refused"),
    ],
)
def test_events_before_connect(make: Make, tmp_path: Path, event: str, action: str) -> None:
    harness = make()
    fields: dict[str, object] = {"peer": "[2001:db8::1]:99", "error": "no cipher"}
    harness.broker.report(event, "tls", fields)
    harness.settle()
    [record] = records(tmp_path)
    assert record["event.action"] == action
    assert (record["source.ip"], record["source.port"]) == ("2001:db8::1", 99)
    assert (record["hookmq.listener"], record["message"]) == ("tls", "no cipher")


def test_bans_and_limits_of_ratelimit(make: Make, tmp_path: Path) -> None:
    harness = make()
    handle = harness.handle("guard")
    fields = {"kind": "ip", "name": "192.0.2.9", "seconds": 60.0, "why": "auth_failures"}
    handle.emit("ratelimit.banned", None, **fields)
    harness.connect("c", peer=HOST)
    handle.emit("ratelimit.limited", handle.client("c"), limit="100/s", outcome="throttled")
    harness.settle()
    banned, limited = records(tmp_path)
    assert (banned["event.action"], banned["source.ip"]) == ("client_banned", "192.0.2.9")
    assert (banned["hookmq.ban.kind"], banned["hookmq.ban.seconds"]) == ("ip", 60.0)
    assert (limited["event.action"], limited["source.ip"]) == ("rate_exceeded", "192.0.2.7")
    assert limited["rule.name"] == "100/s"


def test_a_wrong_token_of_the_admin_api(make: Make, tmp_path: Path) -> None:
    harness = make()
    harness.handle("guard").emit("admin.refused", address="192.0.2.9")
    harness.settle()
    [record] = records(tmp_path)
    assert (record["event.action"], record["source.ip"]) == ("authentication_failure", "192.0.2.9")
    assert record["message"] == "wrong token of the admin API"


def test_a_takeover_by_another_address(make: Make, tmp_path: Path) -> None:
    harness = make()
    harness.connect("c", peer=HOST)
    harness.connect("c", peer=Peer("192.0.2.7", 5))  # the same address
    assert records(tmp_path) == []
    harness.connect("c", peer=Peer("198.51.100.1", 6))
    harness.settle()
    [record] = records(tmp_path)
    assert record["event.action"] == "session_takeover"
    assert (record["source.ip"], record["hookmq.previous_ip"]) == ("198.51.100.1", "192.0.2.7")


def test_a_session_that_flaps(make: Make, tmp_path: Path) -> None:
    harness = make(flapping={"takeovers": 2})
    for _ in range(3):
        harness.connect("c", peer=HOST)
    assert records(tmp_path) == []
    harness.connect("c", peer=HOST)
    harness.settle()
    assert [one["event.action"] for one in records(tmp_path)] == ["client_flapping"]


def test_watched_topics(make: Make, tmp_path: Path) -> None:
    harness = make(watch={"publish": ["open"]})
    client = harness.connect("c", peer=HOST)
    client.subscribe("open")
    assert records(tmp_path) == []
    client.subscribe("#")
    client.publish("open", b"x")
    harness.settle()
    found = [(one["hookmq.action"], one["hookmq.topic"]) for one in records(tmp_path)]
    assert found == [("subscribe", "#"), ("publish", "open")]


def test_repeated_events_become_one_record(make: Make, tmp_path: Path) -> None:
    harness = make(burst=2, alert={"events": 1000})
    guess(harness, 50)
    guess(harness, 1, Peer("192.0.2.8"))
    assert len(records(tmp_path)) == 3
    harness.advance(11)
    *_, last = records(tmp_path)
    assert last["hookmq.repeated"] == 48
    assert last["source.ip"] == "192.0.2.7"
    assert last["event.start"] <= last["event.end"]
    harness.advance(60)
    assert len(records(tmp_path)) == 4


def test_an_alert_is_raised_once(make: Make, tmp_path: Path) -> None:
    harness = make(alert={"events": 10, "period": "1m"})
    guess(harness, 9)
    assert "attack_suspected" not in [one["event.action"] for one in records(tmp_path)]
    guess(harness, 20)
    alerts = [one for one in records(tmp_path) if one["event.action"] == "attack_suspected"]
    assert [one["source.ip"] for one in alerts] == ["192.0.2.7"]
    assert (alerts[0]["event.kind"], alerts[0]["user.name"]) == ("alert", "admin")
    harness.advance(61)
    guess(harness, 10)
    alerts = [one for one in records(tmp_path) if one["event.action"] == "attack_suspected"]
    assert len(alerts) == 2


def test_names_cannot_inject_a_line(make: Make, tmp_path: Path) -> None:
    harness = make()
    name = 'x","source.ip":"203.0.113.5"}{"a\u202e'
    guess(harness, 1, user=name)
    guess(harness, 1, user="u" * 5000)
    harness.settle()
    text = (tmp_path / "security.json").read_text("ascii")
    assert len(text.splitlines()) == 2
    first, second = records(tmp_path)
    assert (first["user.name"], first["source.ip"]) == (name, "192.0.2.7")
    assert len(second["user.name"]) == 256


def test_the_last_counts_are_written_at_the_end(make: Make, tmp_path: Path) -> None:
    """By then, other plugins have shut down, so they get no events."""
    harness = make(burst=1, topics=True)
    guard = next(one.plugin for one in harness.hooks.plugins if isinstance(one.plugin, Guard))
    guess(harness, 4)
    harness.close()
    assert records(tmp_path)[-1]["hookmq.repeated"] == 3
    assert len(guard.seen) == 1


def test_an_error_of_another_kind_is_reported_and_does_not_stop_the_shutdown(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: RotatedFile, lines: list[bytes]) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(RotatedFile, "write", fail)
    harness = make()
    guess(harness, 2)
    harness.settle()
    [fields] = harness.logged("security_log.write_failed")
    assert fields["error"] == "MemoryError('no room')"
    plugin = harness.hooks.plugins[0].plugin
    assert isinstance(plugin, SecurityLogPlugin)
    assert plugin._file is not None
    assert plugin._file.dropped == 2
    guess(harness, 1)  # the end waits for this line
    began = harness.clock.now()
    harness.close()
    assert harness.clock.now() - began < 1
    assert plugin._file.dropped == 3


def test_a_disk_that_fails_is_reported_and_costs_records(make: Make, tmp_path: Path) -> None:
    harness = make(file=str(tmp_path / "missing" / "security.json"))
    guess(harness, 2)
    harness.settle()
    assert len(harness.logged("security_log.write_failed")) == 1
    metrics = {
        (name, labels.get("reason")): value for name, labels, value in plugin_metrics(harness)
    }
    assert metrics["security_records_dropped_total", "disk"] == 2
    (tmp_path / "missing").mkdir()
    guess(harness, 1)
    harness.settle()
    assert len(harness.logged("security_log.writing_again")) == 1
    assert len(records(tmp_path / "missing")) == 1


def plugin_metrics(harness: Harness) -> list[tuple[str, dict[str, str], float]]:
    found: list[tuple[str, dict[str, str], float]] = []

    class Registry:
        def counter(self, name: str, help: str, read: Any) -> None:
            found.extend((name, dict(labels), value) for labels, value in read())

    plugin = next(
        one.plugin for one in harness.hooks.plugins if isinstance(one.plugin, SecurityLogPlugin)
    )
    plugin.register_metrics(Registry())  # type: ignore[arg-type]
    return found


def test_events_are_counted(make: Make) -> None:
    harness = make(burst=1)
    guess(harness, 7)
    harness.settle()
    counts = {
        labels["event"]: v for name, labels, v in plugin_metrics(harness) if "event" in labels
    }
    assert counts == {"authentication_failure": 7}


def test_the_file_is_rotated(make: Make, tmp_path: Path) -> None:
    harness = make(max_bytes="64KiB", files=2, max_rate=100000, burst=100000, max_sources=100)
    for _ in range(12):
        guess(harness, 50, user="u" * 250)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"security.json", "security.json.1", "security.json.2"}
    assert max(path.stat().st_size for path in tmp_path.iterdir()) <= 65536
    [*_] = records(tmp_path)


# parts ------------------------------------------------------------------------------------------------------------


def event(number: int, host: str = "") -> SecurityEvent:
    return SecurityEvent("protocol_error", 0.0, "x", host or f"10.0.{number >> 8}.{number & 255}")


def test_the_number_of_records_and_the_memory_are_bounded() -> None:
    """An attacker with many addresses causes at most `rate` records per second, and the table does not grow."""
    aggregator = Aggregator(5, 10.0, 100, 200)
    written = [record for number in range(5000) for record in aggregator.add(event(number), 1.0)]
    assert len(written) == 100
    assert len(aggregator) == 200
    assert aggregator.suppressed == 4900
    [last] = [one for one in aggregator.due(2.0, 0.0) if "hookmq.repeated" in one]
    assert (last["event.action"], last["hookmq.repeated"]) == ("events_suppressed", 4900)
    alerts = Alerts(1, 60.0, 200)
    assert all(alerts.add(event(number), 1.0) for number in range(5000))
    assert len(alerts) == 200
    takeovers = Takeovers(5, 60.0, 200)
    for number in range(5000):
        takeovers.taken(f"c{number}", "h", 1.0)
    assert len(takeovers) == 200


def test_an_evicted_address_is_written_before_it_is_forgotten() -> None:
    aggregator = Aggregator(1, 10.0, 100, 1)
    assert len(aggregator.add(event(1), 1.0)) == 1
    assert aggregator.add(event(1), 1.0) == []
    first, second = aggregator.add(event(2), 1.0)
    assert (first["source.ip"], first["hookmq.repeated"]) == ("10.0.0.1", 1)
    assert (second["source.ip"], "hookmq.repeated" in second) == ("10.0.0.2", False)


def test_an_ipv6_network_is_one_source() -> None:
    assert source_of("2001:db8::1") == source_of("2001:db8::ffff") == "2001:db8::/64"
    assert source_of("::ffff:192.0.2.1") == "192.0.2.1"
    assert source_of("unix") == "unix"


@pytest.mark.parametrize(
    ("peer", "host", "port"),
    [
        ("192.0.2.1:80", "192.0.2.1", 80), ("[2001:db8::1]:80", "2001:db8::1", 80), ("unix", "unix", 0),
        ("2001:db8::1", "2001:db8::1", 0), ("[2001:db8::1]", "2001:db8::1", 0), ("", "", 0),
    ],
)  # fmt: skip
def test_peers_are_split(peer: str, host: str, port: int) -> None:
    assert split_peer(peer) == (host, port)


def test_fields_of_clients_come_after_the_address() -> None:
    """A pattern anchored at the start of the line matches the address before any text chosen by a client."""
    fields = {"user.name": '"source.ip":"203.0.113.5"'}
    line = line_of(record_of(SecurityEvent("protocol_error", 0.0, "m", "192.0.2.1", 1, fields)))
    assert line.index('"source.ip":"192.0.2.1"') < line.index("user.name") < line.index("message")


def test_control_characters_are_escaped() -> None:
    """The broker refuses most control characters, but a configuration can allow them."""
    line = line_of(
        record_of(SecurityEvent("protocol_error", 0.0, "a\nb\x1b[2J\x85\u2028\ud800", "h"))
    )
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["message"] == "a\nb\x1b[2J\x85\u2028\ud800"


def test_the_readme_lists_every_event() -> None:
    rows = [
        f"| `{name}` | {kind.category} | {kind.level} | {kind.meaning} |"
        for name, kind in KINDS.items()
    ]
    assert "\n".join(rows) in README.read_text()


def test_codes_of_other_refusals_are_not_hostile(make: Make, tmp_path: Path) -> None:
    """If a plugin fails, the broker refuses clients with 0x88. The clients themselves have done nothing hostile."""
    harness = make(alert={"events": 1})
    harness.fail("guard", "on_connect", RuntimeError("broken"))
    harness.connect("c", peer=HOST, expect=0x88)
    harness.settle()
    assert [one["event.action"] for one in records(tmp_path)] == ["connection_refused"]
