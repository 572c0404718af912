"""Test the plugin in a broker: verdicts, reloads, revoked permissions, and every way in which the file can fail."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hookmq.mqtt_api import Suback
from hookmq.plugin import (
    Accept,
    Action,
    Certificate,
    ConfigError,
    MetricRegistry,
    Peer,
    PluginError,
    Scope,
)
from hookmq_acl_file.plugin import AclFileConfig, AclFilePlugin
from hookmq_testing import (
    DurableStore,
    Harness,
    HookRecorder,
    MemoryClient,
    PluginContract,
    PluginInstance,
    make_plugin,
    run_command,
    will,
)

DENY = {"authz": {"default": "deny"}}


def plugin(file: Path, **config: Any) -> PluginInstance:
    return make_plugin(AclFilePlugin, {"path": file, **config}, "acl", use="acl_file")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "acl.yaml"


def rules(*lines: str) -> str:
    return "rules:\n" + "".join(f"  - {{{line}}}\n" for line in lines)


class Running:
    """A broker with the plugin, an observer and the file."""

    def __init__(self, file: Path, text: str, on_revoke: str = "silent", **config: Any) -> None:
        self.file = file
        file.write_text(text)
        self.instance = plugin(file, **config)
        assert isinstance(self.instance.plugin, AclFilePlugin)
        self.plugin = self.instance.plugin
        self.observer = HookRecorder("on_denied", "on_dropped", "on_unsubscribed", id="observer")
        self.harness = Harness(
            [self.instance, self.observer], config={**DENY, "broker": {"on_revoke": on_revoke}}
        )

    def write(self, text: str) -> None:
        """Replace the file with a new one, as editors and deployments do."""
        new = self.file.with_name("new")
        new.write_text(text)
        new.replace(self.file)

    def rewrite(self, text: str) -> None:
        """Write the file and let the plugin reload it."""
        self.write(text)
        self.harness.advance(6)

    def denied(self) -> list[tuple[Action, str, str]]:
        self.harness.settle()
        return [(one.action, one.topic, one.rule) for one in self.observer.calls("on_denied")]

    def dropped(self) -> list[str]:
        self.harness.settle()
        return [str(one.why.reason) for one in self.observer.calls("on_dropped")]


Run = Callable[..., Running]


@pytest.fixture
def run(file: Path) -> Any:
    made: list[Running] = []

    def start(text: str, *args: Any, **config: Any) -> Running:
        made.append(Running(file, text, *args, **config))
        return made[-1]

    yield start
    for one in made:
        one.harness.close()


class TestContract(PluginContract):
    kind = AclFilePlugin
    use = "acl_file"
    configs: ClassVar[Any] = (
        {},
        {"format": "mosquitto", "reload_interval": 0.0},
        {"no_match": "abstain", "explain": False},
    )
    bad_configs: ClassVar[Any] = (
        {"path": "/nowhere/acl.yaml"},
        {"format": "ini"},
        {"no_match": "allow"},
        {"reload_interval": -1.0},
        {"paht": "x"},
    )

    @pytest.fixture(autouse=True)
    def _files(self, tmp_path: Path) -> None:
        (tmp_path / "yaml").write_text(rules('allow: [publish, subscribe], topic: "#"'))
        (tmp_path / "mosquitto").write_text("pattern readwrite #\n")
        self.folder = tmp_path

    def instance(self, config: Any, id: str = "") -> PluginInstance:
        path = self.folder / config.get("format", "yaml")
        return super().instance({"path": path, **config}, id)


# -- verdicts

MATRIX = rules(
    "deny: publish, topic: p/no",
    "allow: publish, qos: 1, topic: p/q1",
    "allow: publish, retain: false, topic: p/plain",
    'allow: publish, topic: "p/#"',
    "deny: subscribe, topic: s/no",
    'allow: subscribe, qos: 1, topic: "s/#"',
)


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(
    ("topic", "retain", "allowed"),
    [
        ("p/yes", False, True),
        ("p/yes", True, True),
        ("p/no", False, False),
        ("p/plain", True, True),
        ("q", False, False),
    ],
)
def test_publish(run: Run, version: int, qos: int, topic: str, retain: bool, allowed: bool) -> None:
    running = run(MATRIX)
    client = running.harness.connect("c", version)
    reason = {0: None, 1: 0x10, 2: 0x10}[qos] if allowed else {0: None, 1: 0x87, 2: 0x87}[qos]
    client.publish(topic, b"x", qos, retain, expect=reason if version == 5 else 0 if qos else None)
    source = {"p/no": "acl: acl.yaml:2", "q": "acl: no rule"}.get(topic)
    assert running.denied() == ([] if allowed else [(Action.PUBLISH, topic, source)])
    assert bool(running.harness.handle("acl").retained("#").items) == (allowed and retain)


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize(
    ("filter", "allowed"),
    [
        ("s/yes", True),
        ("s/+/x", True),
        ("s/no", False),
        ("s/#", False),
        ("s/+", False),
        ("#", False),
    ],
)
@pytest.mark.parametrize("share", ["", "$share/g/"])
def test_subscribe(
    run: Run, version: int, qos: int, filter: str, allowed: bool, share: str
) -> None:
    running = run(MATRIX)
    client = running.harness.connect("c", version)
    client.send_subscribe(share + filter, qos)
    answer = client.expect(Suback)
    granted = min(qos, 1)
    refused = {3: qos, 4: 0x80, 5: 0x87}[version]
    assert answer.codes == (granted if allowed else refused,)
    assert bool(running.harness.broker.sessions["c"].subscriptions) is allowed
    if not allowed and version == 5:
        assert answer.properties.reason_string in ("denied by acl.yaml:6", "no rule allows it")


def test_a_share_within_a_share_is_refused(run: Run) -> None:
    running = run(rules('allow: all, topic: "#"', "allow: all, topic: x"))
    client = running.harness.connect("c")
    client.send_subscribe("$share/g/$share/h/x")
    assert client.expect(Suback).codes == (0x87,)


@pytest.mark.parametrize(("qos", "code"), [(0, None), (1, 0x10), (2, 0x87)])
def test_qos_is_a_condition_on_publish(run: Run, qos: int, code: int | None) -> None:
    text = rules("allow: publish, qos: 1, topic: a")
    run(text).harness.connect("c").publish("a", b"x", qos, expect=code)


@pytest.mark.parametrize(("retain", "code"), [(False, 0x10), (True, 0x87)])
def test_retain_is_a_condition_on_publish(run: Run, retain: bool, code: int) -> None:
    text = rules("allow: publish, retain: false, topic: a")
    run(text).harness.connect("c").publish("a", b"x", 1, retain, expect=code)


def test_a_client_without_a_rule_may_do_nothing(run: Run) -> None:
    running = run("rules: []\n")
    client = running.harness.connect("c")
    client.publish("a", b"x", 1, expect=0x87)
    client.send_subscribe("a")
    assert client.expect(Suback).codes == (0x87,)


def test_reasons_may_be_kept_from_clients(run: Run) -> None:
    running = run("rules: []\n", explain=False)
    client = running.harness.connect("c")
    client.send_subscribe("a")
    assert client.expect(Suback).properties.reason_string is None
    assert running.denied() == [(Action.SUBSCRIBE, "a", "acl: no rule")]


@pytest.mark.parametrize(("no_match", "code"), [("deny", 0x87), ("abstain", 0x10)])
def test_without_a_rule_others_may_be_asked(file: Path, no_match: str, code: int) -> None:
    file.write_text(rules("deny: publish, topic: no"))
    with Harness([plugin(file, no_match=no_match)]) as harness:  # its authz.default is allow
        client = harness.connect("c")
        client.publish("a", b"x", 1, expect=code)
        client.publish("no", b"x", 1, expect=0x87)


# -- `who`

WHO = """\
groups:
  operators: [ann]
  meters: []
rules:
  - {allow: publish, who: {user: ann}, topic: user}
  - {allow: publish, who: {client: c1}, topic: client}
  - {allow: publish, who: {group: operators}, topic: group}
  - {allow: publish, who: {group: meters}, topic: meters}
  - {allow: publish, who: {claim: {role: admin, level: 3}}, topic: claim}
  - {allow: publish, who: {claim: {realm_access.roles: [ops, dev]}}, topic: role}
  - {allow: publish, who: {certificate: {common_name: dev1}}, topic: cn}
  - {allow: publish, who: {certificate: {fingerprint: "AA:FF"}}, topic: fingerprint}
  - {allow: publish, who: {certificate: {san: dev1.example}}, topic: san}
  - {allow: publish, who: {ip: [10.0.0.0/8, "2001:db8::/32"]}, topic: ip}
  - {allow: publish, who: {listener: tls}, topic: listener}
  - {allow: publish, who: {anonymous: true}, topic: anonymous}
  - {allow: publish, who: {anonymous: false}, topic: named}
  - {allow: publish, who: {user: ann, ip: 10.0.0.0/8}, topic: both}
  - {allow: publish, topic: "d/%u/%c/${site}"}
""".replace("FF", ":".join(["bb"] * 31))
ASKED = [
    "user", "client", "group", "claim", "role", "cn", "fingerprint", "san", "ip", "listener", "anonymous", "named",
    "both", "meters", "d/ann/c1/north",
]  # fmt: skip
CERTIFICATE = Certificate("dev1", "", ("dev1.example",), "aa" + "bb" * 31)


@pytest.mark.parametrize(
    ("username", "identity", "claims", "peer", "listener", "may"),
    [
        (None, None, {}, Peer("192.0.2.1"), "default", {"client", "anonymous"}),
        ("ann", None, {}, Peer("192.0.2.1"), "default", {"user", "client", "group", "named"}),
        ("ann", "bob", {}, Peer("192.0.2.1"), "default", {"client", "named"}),
        ("x", "ann", {}, Peer("10.1.2.3"), "tls",
         {"user", "client", "group", "named", "ip", "listener", "both"}),
        (None, None, {}, Peer("::ffff:10.1.2.3"), "default", {"client", "anonymous", "ip"}),
        (None, None, {}, Peer("2001:db8::7"), "default", {"client", "anonymous", "ip"}),
        (None, None, {}, Peer("/run/hookmq.sock"), "default", {"client", "anonymous"}),
        (None, None, {"role": "admin", "level": 3}, Peer(""), "default", {"client", "anonymous", "claim"}),
        (None, None, {"role": "admin"}, Peer(""), "default", {"client", "anonymous"}),
        (None, None, {"role": ["admin"], "level": "3", "realm_access": {"roles": ["x", "dev"]}}, Peer(""),
         "default", {"client", "anonymous", "claim", "role"}),
        (None, None, {"groups": ["meters", "x"]}, Peer(""), "default", {"client", "anonymous", "meters"}),
        (None, None, {"groups": "operators"}, Peer(""), "default", {"client", "anonymous", "group"}),
        ("ann", None, {"site": "north"}, Peer(""), "default",
         {"user", "client", "group", "named", "d/ann/c1/north"}),
        (None, None, {}, Peer("", certificate=CERTIFICATE), "default",
         {"client", "anonymous", "cn", "fingerprint", "san"}),
    ],
)  # fmt: skip
def test_who(
    file: Path,
    username: str | None,
    identity: str | None,
    claims: Any,
    peer: Peer,
    listener: str,
    may: set[str],
) -> None:
    file.write_text(WHO)
    found_out = HookRecorder("on_connect", id="auth")
    found_out.answer("on_connect", Accept(identity=identity, claims=claims))
    with Harness([plugin(file), found_out], config=DENY) as harness:
        client = harness.connect("c1", username=username, peer=peer, scope=Scope(listener))
        for topic in ASKED:
            client.publish(topic, b"x", 1, expect=0x10 if topic in may else 0x87)
        assert may <= set(ASKED)
        found_out.answer("on_connect", Accept())
        other = harness.connect("c2", username="eve")
        other.publish("client", b"x", 1, expect=0x87)
        other.publish("user", b"x", 1, expect=0x87)


def test_renewed_claims_apply_at_once(file: Path) -> None:
    file.write_text(rules("allow: publish, who: {claim: {role: admin}}, topic: a"))
    instance = plugin(file)
    with Harness([instance], config=DENY) as harness:
        client = harness.connect("c")
        client.publish("a", b"x", 1, expect=0x87)
        info = harness.handle("acl").client("c")
        assert info is not None
        info.claims = {"role": "admin"}
        harness.handle("acl").invalidate_authz("c")
        client.publish("a", b"x", 1, expect=0x10)


# -- deliveries


def test_deliveries_are_asked_about_only_where_a_rule_speaks_of_them(run: Run) -> None:
    asked = run(rules("deny: deliver, topic: s/secret", 'allow: all, topic: "#"'))
    assert Action.DELIVER in asked.plugin.authorize_actions
    client, pub = asked.harness.connect("c"), asked.harness.connect("p")
    client.subscribe("s/#", 1)
    pub.publish("s/secret", b"x", 1)
    pub.publish("s/open", b"x", 1)
    client.expect_message("s/open", b"x")
    client.expect_nothing()
    assert asked.dropped() == ["denied"]
    not_asked = run(rules('allow: all, topic: "#"'))
    assert Action.DELIVER not in not_asked.plugin.authorize_actions


def test_qos_and_retain_are_conditions_on_deliveries(run: Run) -> None:
    running = run(
        rules(
            "allow: deliver, qos: 1, retain: false, topic: a",
            "deny: deliver, topic: a",
            'allow: all, topic: "#"',
        )
    )
    client, pub = running.harness.connect("c"), running.harness.connect("p")
    client.subscribe("a", 2)
    pub.publish("a", b"1", 1)
    client.expect_message("a", b"1")
    pub.publish("a", b"2", 2)
    pub.publish("a", b"3", 1, retain=True)
    client.expect_nothing()
    lower = running.harness.connect("lower")
    lower.subscribe("a", 1)
    lower.expect_nothing()  # the retained message
    pub.publish("a", b"4", 2)
    lower.expect_message("a", b"4")
    client.expect_nothing()


def test_a_new_file_may_begin_to_speak_of_deliveries(run: Run) -> None:
    running = run(rules('allow: all, topic: "#"'))
    client, pub = running.harness.connect("c"), running.harness.connect("p")
    client.subscribe("s/#")
    pub.publish("s/secret", b"1")
    client.expect_message("s/secret", b"1")
    running.rewrite(rules("deny: deliver, topic: s/secret", 'allow: all, topic: "#"'))
    pub.publish("s/secret", b"2")
    pub.publish("s/open", b"3")
    client.expect_message("s/open", b"3")
    client.expect_nothing()


# -- taken away

BEFORE = rules('allow: all, topic: "#"')
AFTER = rules(
    "deny: all, topic: [a, will/x]", 'allow: subscribe, topic: "b/#"', 'allow: publish, topic: "#"'
)


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_live_subscription_ends_and_its_client_is_told(run: Run, version: int) -> None:
    running = run(BEFORE, "disconnect")
    client, other = running.harness.connect("c", version), running.harness.connect("o", version)
    client.subscribe(["a", "b/1"], 1)
    other.subscribe("b/#", 1)
    running.rewrite(AFTER)
    client.expect_disconnect(0x87 if version == 5 else None)
    other.expect_nothing()
    assert set(running.harness.broker.sessions["o"].subscriptions) == {"b/#"}
    assert (Action.SUBSCRIBE, "a", "acl: acl.yaml:2") in running.denied()


def test_silently_and_what_is_remembered_is_forgotten(run: Run) -> None:
    running = run(BEFORE, "silent")
    client, pub = running.harness.connect("c"), running.harness.connect("p")
    client.subscribe(["a", "b/1"], 1)
    pub.publish("a", b"1", 1, expect=0)
    client.expect_message("a", b"1")
    running.rewrite(AFTER)
    pub.publish("a", b"2", 1, expect=0x87)
    pub.publish("b/1", b"3", 1, expect=0)
    client.expect_message("b/1", b"3")
    client.expect_nothing()
    assert set(running.harness.broker.sessions["c"].subscriptions) == {"b/1"}


def test_a_stored_subscription_and_its_queue_end(run: Run) -> None:
    running = run(BEFORE)
    client = running.harness.connect("c", session_expiry_interval=600)
    client.subscribe(["a", "b/1"], 1)
    client.drop()
    pub = running.harness.connect("p")
    pub.publish("a", b"1", 1)
    pub.publish("b/1", b"2", 1)
    running.rewrite(AFTER)
    assert running.dropped() == ["revoked"]
    client = client.reconnect(clean_start=False)
    client.expect_message("b/1", b"2")
    client.expect_nothing()


def test_rules_changed_while_the_broker_was_down_apply(file: Path) -> None:
    store = DurableStore()
    config = {**DENY, "broker": {"on_revoke": "silent"}}
    file.write_text(BEFORE)
    with Harness([plugin(file)], store=store, config=config) as harness:
        client = harness.connect("c", session_expiry_interval=600)
        client.subscribe(["a", "b/1"], 1)
        client.drop()
        pub = harness.connect("p")
        pub.publish("a", b"1", 1)
        pub.publish("b/1", b"2", 1)
    file.write_text(AFTER)
    with Harness([plugin(file)], store=store, config=config) as harness:
        client = harness.connect("c", clean_start=False, session_expiry_interval=600)
        assert client.session_present
        client.expect_message("b/1", b"2")
        client.expect_nothing()
        assert set(harness.broker.sessions["c"].subscriptions) == {"b/1"}


def test_topics_have_their_mount_point(run: Run) -> None:
    running = run(rules('allow: all, topic: "m/a/#"'))
    client = running.harness.connect("c", scope=Scope("in", mount_point="m/"))
    client.publish("a/1", b"x", 1, expect=0x10)
    client.publish("m/a/1", b"x", 1, expect=0x87)
    client.subscribe("a/#")
    client.send_subscribe("#")
    assert client.expect(Suback).codes == (0x87,)
    running.harness.connect("w", scope=Scope("in", mount_point="m/"), will=will("a/w", b"x"))


def test_retained_messages_are_no_longer_sent(run: Run) -> None:
    running = run(BEFORE)
    pub = running.harness.connect("p")
    pub.publish("a", b"kept", 1, retain=True)
    client = running.harness.connect("c")
    client.subscribe("a", 1)
    client.expect_message("a", b"kept")
    running.rewrite(AFTER)
    client.send_subscribe("a", 1)
    assert client.expect(Suback).codes == (0x87,)
    client.send_subscribe("#", 1)
    assert client.expect(Suback).codes == (0x87,)
    client.expect_nothing()


def test_a_will_is_asked_about_when_it_fires(run: Run) -> None:
    running = run(BEFORE)
    watcher = running.harness.connect("w")
    watcher.subscribe(["b/1"], 1)
    for name, topic in (("one", "will/x"), ("two", "b/1")):
        running.harness.connect(name, will=will(topic, b"gone", qos=1))
    running.rewrite(AFTER)
    for client in running.harness.clients[1:]:
        client.drop()
    watcher.expect_message("b/1", b"gone")
    assert (Action.WILL, "will/x", "acl: acl.yaml:2") in running.denied()


@pytest.mark.parametrize("version", [4, 5])
def test_a_will_that_is_not_allowed_keeps_the_client_out(run: Run, version: int) -> None:
    running = run(rules("deny: will, topic: ok", "allow: publish, topic: ok"))
    bad = will("ok", b"x")
    running.harness.connect("c", version, will=bad, expect=0x87 if version == 5 else 5)


# -- the file


def good(client: MemoryClient) -> bool:
    """Assert that the previous rules still apply: publishing to `old` is allowed, and publishing to
    `new` is denied.
    """
    client.publish("old", b"x", 1, expect=0x10)
    client.publish("new", b"x", 1, expect=0x87)
    return True


OLD = rules("allow: publish, topic: old")
NEW = rules("allow: publish, topic: new")


def vanish(running: Running) -> None:
    running.file.unlink()


def folder(running: Running) -> None:
    running.file.unlink()
    running.file.mkdir()


def loop(running: Running) -> None:
    """Make the file unreadable for every user, including root."""
    running.file.unlink()
    running.file.symlink_to(running.file)


def pipe(running: Running) -> None:
    running.file.unlink()
    os.mkfifo(running.file)


def text(text: str | bytes) -> Callable[[Running], None]:
    def write(running: Running) -> None:
        new = running.file.with_name("new")
        new.write_bytes(text.encode() if isinstance(text, str) else text)
        new.replace(running.file)

    return write


FAILURES = {
    "vanished": vanish,
    "a folder": folder,
    "a pipe": pipe,
    "unreadable": loop,
    "empty": text(""),
    "blank": text(" \n\n"),
    "half a line": text(NEW[:-3]),
    "half a rule": text("rules:\n  - allow: publish\n"),
    "no YAML": text("rules: [\n"),
    "no UTF-8": text(NEW.encode() + b"# \xff\n"),
    "another format": text("topic readwrite new\n"),
    "unknown key": text(rules("allow: publish, topic: new, nobody: x")),
    "a bad filter": text(rules("allow: publish, topic: new", "allow: publish, topic: a#")),
    "a list": text("[new]\n"),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_the_last_good_file_stays_in_force(run: Run, failure: str) -> None:
    running = run(OLD)
    client = running.harness.connect("c")
    assert good(client)
    FAILURES[failure](running)
    running.harness.advance(20)
    assert good(client)
    [told] = running.harness.logged("acl.file_bad")
    assert str(running.file) in str(told["error"])
    assert (running.plugin.stale, running.plugin.failed) == (True, 1)
    if running.file.is_dir():
        running.file.rmdir()
    running.rewrite(NEW)
    client.publish("new", b"x", 1, expect=0x10)
    client.publish("old", b"x", 1, expect=0x87)
    assert (running.plugin.stale, running.plugin.taken) == (False, 1)
    assert running.harness.logged("acl.file_good")


@pytest.mark.parametrize("failure", FAILURES)
def test_a_bad_file_keeps_the_broker_from_starting(file: Path, failure: str) -> None:
    running = Running(file, OLD)
    running.harness.close()
    FAILURES[failure](running)
    with pytest.raises(PluginError, match=r"acl\.yaml"):
        plugin(file)


@pytest.mark.parametrize("interval", [2.0, 0.0])
def test_a_change_while_there_are_no_descriptors_is_taken_later(
    run: Run, monkeypatch: pytest.MonkeyPatch, interval: float
) -> None:
    def none_left(path: str, flags: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files", path)

    running = run(OLD, reload_interval=interval)
    client = running.harness.connect("c")
    running.write(NEW)
    with monkeypatch.context() as patch:
        patch.setattr("hookmq.server.files._at_once", none_left)
        running.plugin.on_reload(running.harness.settings, running.harness.settings)
        running.harness.advance(20)
        assert good(client)
    assert (running.plugin.stale, running.plugin.failed) == (True, 1)
    running.harness.advance(5)
    client.publish("new", b"x", 1, expect=0x10)
    client.publish("old", b"x", 1, expect=0x87)
    assert not running.plugin.stale


def test_a_file_that_somebody_writes_to_is_not_read(run: Run) -> None:
    running = run(OLD)
    client = running.harness.connect("c")
    for count in range(5):  # each look finds another state
        running.file.write_text(NEW + "#" * count + "\n")
        os.utime(running.file, ns=(count, count))
        running.harness.advance(2)
        assert good(client)
    running.harness.advance(2)
    client.publish("new", b"x", 1, expect=0x10)


def test_a_file_that_was_touched_takes_nothing_away(run: Run) -> None:
    running = run(OLD)
    os.utime(running.file, ns=(1, 1))
    running.harness.advance(20)
    assert (running.plugin.taken, running.plugin.failed) == (0, 0)


def test_reload_by_signal_only(run: Run) -> None:
    running = run(OLD, reload_interval=0.0)
    client = running.harness.connect("c")
    running.write(NEW)
    running.harness.advance(3600)
    assert good(client)
    running.plugin.on_reload(running.harness.settings, running.harness.settings)
    running.harness.settle()
    client.publish("new", b"x", 1, expect=0x10)


def test_a_look_asked_for_during_a_look_is_not_lost(run: Run) -> None:
    running = run(OLD)
    client = running.harness.connect("c")
    running.plugin.watch.look()
    running.write(NEW)
    running.plugin.watch.look()
    running.harness.settle()
    client.publish("new", b"x", 1, expect=0x10)


def test_nothing_is_watched_after_the_end(run: Run) -> None:
    running = run(OLD)
    running.harness.close()
    running.write(NEW)
    running.harness.advance(20)
    running.plugin.watch.look()
    running.harness.settle()
    assert running.plugin.taken == 0


def test_large_rules_of_before_are_let_go_of_step_by_step(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hookmq_acl_file.plugin.LARGE", 100)
    many = [f"allow: publish, who: {{user: u{n}}}, topic: t/{n}" for n in range(1000)]
    many += [f"allow: publish, topic: a/{n}" for n in range(5000)]
    running = run(rules(*many))
    client = running.harness.connect("c")
    client.publish("a/7", b"x", 1, expect=0x10)
    old = running.plugin.rules
    [everybody] = [section.rules() for section in old.everybody]
    running.write(NEW)
    running.harness.advance(5)  # the look that finds it still, and reading takes its time
    client.publish("new", b"x", 1, expect=0x10)
    client.publish("a/7", b"x", 1, expect=0x87)
    running.harness.advance(60)
    assert (old.everybody, everybody.rules) == ([], ())
    client.publish("new", b"x", 1, expect=0x10)


# -- the rest


def test_metrics(run: Run) -> None:
    running = run(rules("allow: publish, topic: a", "deny: publish, topic: b"))
    registry = MetricRegistry()
    running.plugin.register_metrics(registry.of("acl"))
    client = running.harness.connect("c")
    client.publish("a", b"x", 1, expect=0x10)
    client.publish("b", b"x", 1, expect=0x87)
    client.publish("c", b"x", 1, expect=0x87)
    running.rewrite("rules: [\n")
    told = registry.text()
    for line in (
        'hookmq_acl_rules{plugin="acl"} 2',
        'hookmq_acl_stale{plugin="acl"} 1',
        'hookmq_acl_reloads_total{plugin="acl"} 0',
        'hookmq_acl_reload_failures_total{plugin="acl"} 1',
        'hookmq_acl_decisions_total{decision="allow",plugin="acl"} 1',
        'hookmq_acl_decisions_total{decision="deny",plugin="acl"} 1',
        'hookmq_acl_decisions_total{decision="no_match",plugin="acl"} 1',
    ):
        assert line in told


def test_an_exception_denies(file: Path) -> None:
    file.write_text(rules('allow: all, topic: "#"'))
    with Harness([plugin(file)], config=DENY) as harness:
        client = harness.connect("c")
        harness.fail("acl", "authorize", RuntimeError("broken"), times=1)
        client.publish("a", b"x", 1, expect=0x83)
        client.publish("a", b"x", 1, expect=0x10)


def test_a_mistake_is_told_with_its_line_at_start(tmp_path: Path) -> None:
    (tmp_path / "acl.yaml").write_text("rules:\n  - allow: publish\n    tpoic: a\n")
    config = tmp_path / "hookmq.yaml"
    config.write_text(
        "version: 1\nlisteners: [{name: tcp, bind: '127.0.0.1:0'}]\n"
        f"plugins: [{{use: acl_file, config: {{path: {tmp_path}/acl.yaml}}}}]\n"
    )
    assert run_command(["check", "-c", str(config)]) != 0
    (tmp_path / "acl.yaml").write_text("rules: []\n")
    assert run_command(["check", "-c", str(config)]) == 0


def test_the_config_may_be_given_as_text() -> None:
    assert AclFileConfig(path="x").path == Path("x")  # type: ignore[arg-type]


def test_plugin_errors_name_the_place(file: Path) -> None:
    file.write_text("rules:\n  - {allow: publish, tpoic: a}\n")
    with pytest.raises((ConfigError, PluginError), match=r"acl\.yaml:2:22: unknown key 'tpoic'"):
        plugin(file)
