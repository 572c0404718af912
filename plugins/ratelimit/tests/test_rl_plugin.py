"""Test bans, wrong passwords, reloads, log events and metrics, and the plugin contract."""

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hookmq.mqtt_api import Disconnect
from hookmq.plugin import (
    Accept,
    ConfigError,
    Connect,
    Context,
    Deny,
    MetricRegistry,
    Peer,
    Plugin,
    ReasonCode,
    Scope,
    hookimpl,
)
from hookmq_ratelimit.addresses import network_of, short
from hookmq_ratelimit.bans import Bans
from hookmq_ratelimit.plugin import _RUNNING, RateLimitPlugin
from hookmq_ratelimit.settings import Ban, Limit, RateLimitConfig, parse_rates
from hookmq_testing import (
    Harness,
    HookRecorder,
    PluginContract,
    load_plugins,
    make_plugin,
    run_command,
)

BAD = Peer("203.0.113.66")
GOOD = Peer("192.0.2.7")


def limited(*limits: dict[str, Any], **config: Any) -> Any:
    return make_plugin(RateLimitPlugin, {"limits": limits, **config}, "ratelimit")


class Passwords(Plugin):
    """A plugin that accepts clients with the right password. The configuration lists it after the rate limits plugin,
    as recommended.
    """

    def __init__(self) -> None:
        super().__init__(None, Context("passwords"))
        self.asked = 0

    @hookimpl
    def on_connect(self, connect: Connect) -> Accept | Deny:
        self.asked += 1
        if connect.password == b"right":
            return Accept(identity=connect.username)
        return Deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD)


class TestContract(PluginContract):
    kind = RateLimitPlugin
    use = "ratelimit"
    configs = (
        {},
        {"limits": [{"rate": "100/s, 5000/min"}]},
        {
            "limits": [
                {"what": "connections", "rate": "1000/s"},
                {"what": "connections", "per": "listener", "rate": "1000/s"},
                {"what": "auth_failures", "rate": "10/min"},
                {"what": "auth_failures", "per": "user", "rate": "10/min"},
                {"rate": "2/s", "per": "user"},
                {"what": "bytes", "rate": "1KiB/s"},
                {"rate": "3/s", "per": "broker", "name": "all"},
                {"rate": "1/s", "filters": ["a/#"], "name": "a"},
                {"what": "subscriptions", "rate": "50/s"},
                {"what": "deliveries", "rate": "2/s"},
            ],
            "ban": {"after": "1000/s"},
            "flapping": {"after": "1000/s", "duration": 9},
        },
    )
    bad_configs = (
        {"limits": [{"rate": ""}]},
        {"limits": [{"rate": "100"}]},
        {"limits": [{"rate": "0/s"}]},
        {"limits": [{"rate": "1/s, 2/s"}]},
        {"limits": [{"rate": "1/s, 2/min", "burst": 3}]},
        {"limits": [{"rate": "1/s", "burst": 0.5}]},
        {"limits": [{"rate": "1/s", "what": "pings"}]},
        {"limits": [{"rate": "1/s", "what": "connections", "per": "client"}]},
        {"limits": [{"rate": "1/s", "what": "connections", "mode": "throttle"}]},
        {"limits": [{"rate": "1/s", "what": "deliveries", "mode": "reject"}]},
        {"limits": [{"rate": "1/s", "what": "subscriptions", "filters": ["a"]}]},
        {"limits": [{"rate": "1/s", "filters": ["a/#/b"]}]},
        {"limits": [{"rate": "1/s", "filters": ["$share/g/a"]}]},
        {"limits": [{"rate": "1/s"}, {"rate": "2/s"}]},
        {"ban": {"after": "often"}},
        {"flapping": {"after": "often"}},
        {"exempt": {"networks": ["10.0.0.1/8"]}},
    )


HEAD = 'version: 1\nlisteners: [{name: tcp, bind: "127.0.0.1:1883"}]\n'


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("limits: [{rate: 100}]", 6, "expected text"),
        ("limits:\n      - {rate: 100/s}\n      - {rate: nonsense, name: x}", 8, "is not a rate"),
        ("limits: [{rat: 100/s}]", 6, "unknown key"),
        ("limits: [{rate: 1/s, mode: slow}]", 6, "expected one of throttle"),
        ("limits: [{rate: 1/s, what: connections, per: client}]", 6, "are counted per ip or"),
        ("ipv6_prefix: 129", 6, "128"),
        ("ban: {after: x}", 6, "is not a rate"),
        ("ban: {duration: 0s}", 6, "1s"),
    ],
)
def test_mistakes_are_told_with_their_place(text: str, line: int, words: str) -> None:
    whole = f"{HEAD}plugins:\n  - use: ratelimit\n    config:\n      {text}\n"
    with pytest.raises(ConfigError) as found:
        load_plugins(whole)
    assert words in str(found.value)
    assert f":{line}:" in str(found.value)


def test_rates() -> None:
    assert [str(rate) for rate in parse_rates("5000/min, 100/s")] == ["100/s", "5000/min"]
    assert parse_rates("1MiB/s")[0].count == 1 << 20
    with pytest.raises(ValueError, match="more than ten billion"):
        parse_rates("20GB/s")


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("/run/hookmq.sock", "/run/hookmq.sock"),
        ("", ""),
    ],
)
def test_addresses_of_one_network_count_as_one(host: str, network: str) -> None:
    assert network_of(host, 32, 64) == network
    assert network_of("192.0.2.1", 24, 64) == "192.0.2.0/24"


def test_long_names_are_told_apart_and_kept_short() -> None:
    plugin = limited(
        {"rate": "1/s", "mode": "reject"},
        {"what": "auth_failures", "per": "user", "rate": "1/h"},
        ban={"after": "1/min"},
        flapping={"after": "100/s"},
    )
    one: Any = plugin.plugin
    first, second = "x" * 20000 + "1", "x" * 20000 + "2"
    with Harness([plugin, Passwords()]) as harness:
        harness.connect("c", username=first, password=b"wrong", expect=0x86)
        harness.connect("c", username=first, password=b"right", expect=0x9F)
        harness.connect("c", username=second, password=b"right")
        client = harness.connect(first, username=second, password=b"right")
        for _ in range(3):
            client.publish("a", b"", 1)
        client.reconnect(expect=0x8A)
        harness.connect(second, username=second, password=b"right").publish(
            "a", b"", 1, expect=0x10
        )
        keys = [bucket.key for one_ in one.table.all() for bucket in one_.buckets()]
        keys += [part for ban in one.bans.all(0) for part in ban.key]
        keys += [part for known in one.guard.known for part in known]
        assert max(map(len, keys)) <= 2 * 128 + 10
    assert short("a" * 128) == "a" * 128
    assert len(short("a" * 129)) == 128


# bans ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "code"), [(5, 0x8A), (4, 5), (3, 5)])
def test_repeated_violations_of_a_limit_ban_the_client(version: int, code: int) -> None:
    recorder = HookRecorder("on_event")
    plugin = limited({"rate": "1/s", "mode": "reject"}, ban={"after": "3/min", "duration": 60})
    with Harness([plugin, recorder]) as harness:
        client = harness.connect("client", version, username="u")
        for _ in range(5):
            assert not client.closed
            client.publish("a", b"", 1)
        assert client.closed
        if version == 5:
            assert client.expect(Disconnect).code == 0x96
        client.reconnect(expect=code)
        harness.connect("client", version, username="other")  # another's client of that name
        events = [call.event for call in recorder.calls("on_event")]
        assert events == ["ratelimit.limited", "ratelimit.banned", "broker.disconnected"]
        assert dict(recorder.calls("on_event")[1].fields) == {
            "kind": "client", "name": "client", "seconds": 60, "why": "publishes-per-client",
        }  # fmt: skip
        harness.advance(60)
        client.reconnect(username="u")


@pytest.mark.parametrize("per", ["user", "ip"])
def test_the_ban_is_on_what_the_limit_is_per(per: str) -> None:
    plugin = limited({"rate": "1/s", "mode": "reject", "per": per}, ban={"after": "1/min"})
    with Harness([plugin]) as harness:
        client = harness.connect("a", username="alice", peer=BAD)
        for _ in range(3):
            client.publish("a", b"", 1)
        assert client.closed
        alice, there = (0x8A, 0) if per == "user" else (0, 0x8A)
        harness.connect("b", username="alice", peer=GOOD, expect=alice)
        harness.connect("c", username="bob", peer=BAD, expect=there)


@pytest.mark.parametrize(
    "limit", [{"rate": "1/s"}, {"rate": "1/s", "per": "broker", "mode": "reject"}]
)
def test_waiting_or_a_shared_allowance_bans_no_client(limit: dict[str, Any]) -> None:
    with Harness([limited(limit, ban={"after": "1/min"})]) as harness:
        client = harness.connect("client")
        for _ in range(9):
            client.publish("a", b"", 1)
        harness.advance(20)
        assert not client.closed


def test_frequent_connections_ban_their_address() -> None:
    plugin = limited({"what": "connections", "rate": "2/s"}, ban={"after": "2/min"})
    with Harness([plugin]) as harness:
        stays = harness.connect("stays", peer=BAD)
        for number in range(5):
            harness.connect(f"c{number}", peer=BAD, expect=None)
        harness.advance(10)
        harness.connect("again", peer=BAD, expect=0x8A)
        harness.connect("good", peer=GOOD)
        assert not stays.closed  # a connected client is not disconnected because of others


def test_a_ban_does_not_disconnect_a_client_with_the_same_id() -> None:
    plugin = limited({"what": "connections", "rate": "1/s"}, ban={"after": "1/min"})
    with Harness([plugin]) as harness:
        device = harness.connect("device", peer=GOOD)
        harness.connect("first", peer=BAD)
        for _ in range(5):
            harness.connect("device", peer=BAD, expect=None)
        harness.settle()
        assert not device.closed


def test_a_limit_on_deliveries_bans_no_client() -> None:
    plugin = limited({"what": "deliveries", "rate": "1/s", "mode": "drop"}, ban={"after": "1/min"})
    with Harness([plugin]) as harness:
        client = harness.connect("client")
        client.subscribe("a")
        sender = harness.connect("sender")
        for _ in range(9):
            sender.publish("a")
        assert not client.closed
        client.reconnect()


def test_guesses_at_a_user_name_do_not_ban_the_user() -> None:
    plugin = limited(
        {"what": "auth_failures", "per": "user", "rate": "1/h"}, ban={"after": "1/min"}
    )
    with Harness([plugin, Passwords()]) as harness:
        harness.connect("home", username="alice", password=b"right", peer=GOOD)
        for _ in range(9):
            harness.connect("x", username="alice", password=b"wrong", peer=BAD, expect=None)
        harness.connect("phone", username="alice", password=b"right", peer=GOOD)


def test_bans_that_are_over_are_not_shown_and_longer_ones_stay() -> None:
    bans = Bans(10)
    first = bans.add(("ip", "a", ""), 100.0, "x", 0.0)
    assert bans.add(("ip", "a", ""), 50.0, "y", 0.0) is first
    longer = bans.add(("ip", "a", ""), 200.0, "y", 0.0)
    assert longer is not None
    assert [ban.until for ban in bans.all(150.0)] == [200.0]
    assert list(bans.all(200.0)) == []
    assert bans.lift(longer.id, 200.0) is None
    assert len(bans) == 0


def test_a_full_table_is_not_searched_again_and_again() -> None:
    bans = Bans(1)
    bans.add(("ip", "a", ""), 100.0, "", 0.0)
    assert bans.add(("ip", "b", ""), 200.0, "", 99.5) is None
    assert bans.add(("ip", "b", ""), 200.0, "", 100.2) is None  # it was looked at a moment ago
    assert bans.add(("ip", "b", ""), 200.0, "", 100.6) is not None


def test_flapping() -> None:
    passwords = Passwords()
    plugin = limited(flapping={"after": "3/min", "duration": 30})
    config: dict[str, Any] = {
        "broker": {"flapping_takeovers": 1000},
        "session": {"other_owner": "replace"},
    }
    with Harness([plugin, passwords], config=config) as harness:
        for _ in range(20):  # a refused client cannot ban anyone
            harness.connect("device", username="u", password=b"wrong", peer=BAD, expect=0x86)
        device = harness.connect("device", username="u", password=b"right")
        for _ in range(3):
            assert not device.closed
            device.reconnect()
        assert device.closed
        device.reconnect(expect=0x8A)
        harness.connect("device", username="v", password=b"right")
        harness.advance(31)
        device.reconnect()


def test_exempt_from_flapping() -> None:
    plugin = limited(flapping={"after": "1/min"}, exempt={"client_ids": ("bridge-*",)})
    with Harness([plugin]) as harness:
        bridge = harness.connect("bridge-1")
        for _ in range(5):
            bridge.reconnect()
        assert not bridge.closed


# wrong passwords ---------------------------------------------------------------------------------------------------


def test_wrong_passwords_by_address() -> None:
    passwords = Passwords()
    plugin = limited({"what": "auth_failures", "rate": "3/min"})
    with Harness([plugin, passwords]) as harness:
        for _ in range(3):
            harness.connect("a", username="u", password=b"wrong", peer=BAD, expect=0x86)
        asked = passwords.asked
        harness.connect("a", username="u", password=b"right", peer=BAD, expect=0x9F)
        assert passwords.asked == asked  # nobody computed a hash for it
        harness.connect("a", username="u", password=b"right", peer=GOOD)
        harness.advance(20)
        harness.connect("b", username="u", password=b"right", peer=BAD)


def test_guesses_at_a_name_do_not_lock_its_owner_out_where_he_was_before() -> None:
    plugin = limited({"what": "auth_failures", "per": "user", "rate": "3/min"})
    with Harness([plugin, Passwords()]) as harness:
        harness.connect("home", username="alice", password=b"right", peer=GOOD)
        for number in range(10):
            where = Peer(f"203.0.113.{number}")
            code = 0x86 if number < 3 else 0x9F
            harness.connect("x", username="alice", password=b"wrong", peer=where, expect=code)
        harness.connect("phone", username="alice", password=b"right", peer=GOOD)
        harness.connect("new", username="alice", password=b"right", peer=BAD, expect=0x9F)
        harness.connect("bob", username="bob", password=b"right", peer=BAD)


def test_failures_at_the_same_time_are_not_held_against_an_address_for_ever() -> None:
    plugin = limited({"what": "auth_failures", "rate": "5/min"})
    one: Any = plugin.plugin
    with Harness([plugin, Passwords()]) as harness:
        client = harness.connect("a", username="u", password=b"right", peer=BAD)
        info = harness.broker.state.sessions["a"].client
        handle = harness.handle("ratelimit")
        for _ in range(1000):  # as if they all had been asked about before the first failed
            asyncio.run(one.on_auth_failed(info, ReasonCode.NOT_AUTHORIZED, handle))
        client.reconnect(expect=0x9F)
        harness.advance(140)
        client.reconnect()


def test_failures_of_who_is_exempt_count_against_no_name() -> None:
    plugin = limited(
        {"what": "auth_failures", "per": "user", "rate": "1/h"},
        exempt={"networks": (GOOD.host,)},
    )
    with Harness([plugin, Passwords()]) as harness:
        for _ in range(5):
            harness.connect("x", username="u", password=b"wrong", peer=GOOD, expect=0x86)
        harness.connect("y", username="u", password=b"right", peer=BAD)


def test_refusals_of_others_are_no_wrong_passwords() -> None:
    recorder = HookRecorder("on_connect")
    recorder.answer("on_connect", Deny(ReasonCode.SERVER_BUSY))
    plugin = limited({"what": "auth_failures", "rate": "1/h"})
    with Harness([plugin, recorder]) as harness:
        for _ in range(5):
            harness.connect("a", expect=0x89)


def test_an_exchange_of_credentials_is_limited_before_it_begins() -> None:
    recorder = HookRecorder("on_auth")
    recorder.answer("on_auth", Accept(identity="x"))
    with Harness([limited({"what": "connections", "rate": "1/s"}), recorder]) as harness:
        harness.connect("a", authentication_method="X")
        harness.connect("b", authentication_method="X", expect=0x9F)
        assert len(recorder.calls("on_auth")) == 1


# reloads -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "left"), [("10/min", 2), ("100/min", 20), ("5/min", 1)])
def test_allowances_outlive_a_reload_and_keep_their_part(rate: str, left: int) -> None:
    with Harness([limited({"rate": "10/min", "mode": "reject"})]) as harness:
        client = harness.connect("client")
        away = [harness.connect(f"away-{number}") for number in range(3)]
        for _ in range(8):
            for one in (client, *away):
                one.publish("a", b"", 1, expect=0x10)
        for one in away:
            one.disconnect()
        first = harness.hooks
        harness.reload(plugins=[limited({"rate": rate, "mode": "reject"})])
        harness.wait(lambda done: first.shutdown(10.0, lambda: done(None)))
        for one in away:
            one.reconnect()
        for one in (client, *away):
            for _ in range(left):
                one.publish("a", b"", 1, expect=0x10)
            one.publish("a", b"", 1, expect=0x97)
    assert not _RUNNING


def test_allowances_outlive_reload_after_reload() -> None:
    limit = {"rate": "2/min", "mode": "reject"}
    with Harness([limited(limit)]) as harness:
        away = [harness.connect(f"away-{number}") for number in range(3)]
        for one in away:
            for _ in range(2):
                one.publish("a", b"", 1, expect=0x10)
            one.disconnect()
        for number in range(3):
            before = harness.hooks
            harness.reload(plugins=[limited(limit, max_bans=number + 1)])
            harness.connect("somebody")
            harness.wait(lambda done, old=before: old.shutdown(10.0, lambda: done(None)))  # type: ignore[misc]
        plugin: Any = harness.hooks.plugins[0].plugin
        assert plugin._before is None
        assert plugin.bans.most == 3
        for one in away:
            one.reconnect()
            one.publish("a", b"", 1, expect=0x97)


def test_a_shorter_window_is_not_held_up_by_what_a_longer_one_had_used() -> None:
    with Harness([limited({"rate": "10/h", "mode": "reject"})]) as harness:
        client = harness.connect("client")
        for _ in range(10):
            client.publish("a", b"", 1, expect=0x10)
        harness.reload(plugins=[limited({"rate": "10/s", "mode": "reject"})])
        client.publish("a", b"", 1, expect=0x97)
        harness.advance(0.2)
        client.publish("a", b"", 1, expect=0x10)


def test_bans_outlive_a_reload() -> None:
    plugin = limited({"what": "connections", "rate": "1/s"}, ban={"after": "1/min"})
    with Harness([plugin]) as harness:
        for _ in range(4):
            harness.connect("x", peer=BAD, expect=None)
        harness.reload(plugins=[limited({"what": "connections", "rate": "5/s"})])
        harness.connect("x", peer=BAD, expect=0x8A)


def test_waiting_messages_continue_if_a_reload_removes_their_limit() -> None:
    with Harness([limited({"rate": "1/s"}, {"what": "deliveries", "rate": "1/s"})]) as harness:
        other = harness.connect("other")
        other.subscribe("a", 1)
        client = harness.connect("client")
        for number in range(5):
            client.publish("a", b"%d" % number, 1)
        harness.reload(plugins=[limited()])
        harness.advance(1)
        assert [m.payload for m in other.messages] == [b"0", b"1", b"2", b"3", b"4"]


def test_the_object_that_is_kept_goes_on() -> None:
    plugin = limited({"rate": "2/min", "mode": "reject"})
    with Harness([plugin]) as harness:
        client = harness.connect("client")
        client.publish("a", b"", 1, expect=0x10)
        harness.reload()
        client.publish("a", b"", 1, expect=0x10)
        client.publish("a", b"", 1, expect=0x97)


# reports -----------------------------------------------------------------------------------------------------------


def test_events_come_once_for_a_key_and_window() -> None:
    recorder = HookRecorder("on_event")
    plugin = limited({"rate": "1/s, 10/min", "mode": "reject"})
    with Harness([plugin, recorder]) as harness:
        for name in ("a", "b"):
            client = harness.connect(name)
            for _ in range(20):
                client.publish("t", b"", 1)
        told = [(call.client.client_id, call.fields["key"]) for call in recorder.calls("on_event")]
        assert told == [("a", "a"), ("b", "b")]
        assert len(harness.logged("ratelimit.limited")) == 2
        harness.advance(60)
        client.publish("t", b"", 1)
        client.publish("t", b"", 1)
        harness.settle()
        assert len(recorder.calls("on_event")) == 3


def test_metrics() -> None:
    plugin = limited(
        {"rate": "1/s", "name": "slow"},
        {"rate": "1/s", "mode": "reject", "filters": ["r"], "name": "never"},
        ban={"after": "100/s"},
    )
    with Harness([plugin]) as harness:
        registry = MetricRegistry()
        harness.hooks.register("register_metrics", registry.of)
        client = harness.connect("client")
        for topic in ("r", "r", "a", "a"):
            client.publish(topic, b"", 1)
        waits = registry.text()
        assert 'hookmq_ratelimit_waiting{plugin="ratelimit"} 1' in waits
        harness.advance(5)
        text = registry.text()
        for line in (
            'limited_total{limit="never",outcome="rejected",plugin="ratelimit"} 1',
            'limited_total{limit="slow",outcome="throttled",plugin="ratelimit"} 2',
            'wait_seconds_count{limit="slow",plugin="ratelimit"} 2',
            'waiting{plugin="ratelimit"} 0',
            'keys{limit="slow",plugin="ratelimit"} 1',
            'evicted_total{limit="slow",plugin="ratelimit"} 0',
            'bans{plugin="ratelimit"} 0',
            'turned_away_total{plugin="ratelimit"} 0',
        ):
            assert f"hookmq_ratelimit_{line}\n" in text
        client.publish("a", b"", 1)
        client.publish("a", b"", 1)
        client.drop()
        assert 'hookmq_ratelimit_waiting{plugin="ratelimit"} 0' in registry.text()


class Request:
    """An empty request. The routes read nothing from it."""


class Routes:
    def __init__(self) -> None:
        self.found: dict[tuple[str, str], Callable[..., Any]] = {}

    def add(self, method: str, path: str, handler: Callable[..., Any]) -> None:
        self.found[method, path] = handler


def test_bans_over_http() -> None:
    from aiohttp import web

    plugin = limited({"what": "connections", "rate": "1/s"}, ban={"after": "1/min"})
    with Harness([plugin]) as harness:
        routes = Routes()
        harness.hooks.register("register_http", lambda _: routes)
        show, lift = routes.found["GET", "/bans"], routes.found["DELETE", "/bans/{id}"]

        def bans() -> list[Mapping[str, Any]]:
            found: list[Mapping[str, Any]] = json.loads(asyncio.run(show(Request())).body)["bans"]
            return found

        assert bans() == []
        for _ in range(4):
            harness.connect("x", peer=BAD, expect=None)
        (ban,) = bans()
        assert (ban["kind"], ban["name"], ban["seconds_left"]) == ("ip", BAD.host, 300)
        assert asyncio.run(lift(Request(), id=str(ban["id"]))).status == 204
        for wrong in (str(ban["id"]), "x", "", "9" * 99, "²"):
            with pytest.raises(web.HTTPNotFound):
                asyncio.run(lift(Request(), id=wrong))
        harness.advance(5)
        harness.connect("x", peer=BAD)


# the command -------------------------------------------------------------------------------------------------------

CONFIG = (
    HEAD
    + """
plugins:
  - use: ratelimit
    config:
      limits:
        - {what: connections, rate: "20/s"}
        - {rate: "100/s, 5000/min"}
        - {rate: 5/s, per: user, filters: ["alarms/#"], mode: reject, name: alarms}
        - {rate: 5/s, filters: ["other"], name: other}
      exempt: {users: ["svc-*"], networks: ["10.0.0.0/8"]}
"""
)


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "hookmq.yaml").write_text(CONFIG)
    return str(tmp_path / "hookmq.yaml")


def test_explain(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["ratelimit", "explain", "-c", file, "--json"]
    words += ["--user", "alice", "--ip", "2001:db8::9", "--topic", "alarms/1"]
    assert run_command(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["exempt"] == {}
    assert [(row["limit"], row["key"]) for row in found["limits"]] == [
        ("ratelimit/connections-per-ip", "2001:db8::/64"),
        ("ratelimit/publishes-per-client", "a-client"),
        ("ratelimit/alarms", "alice"),
    ]
    assert run_command(["ratelimit", "explain", "-c", file, "--user", "svc-1"]) == 0
    text = capsys.readouterr().out
    assert "exempt from ratelimit: user svc-1" in text
    assert "connections-per-ip" in text  # before the client is known
    assert "publishes" not in text
    assert run_command(["ratelimit", "explain", "-c", file, "--ip", "10.1.1.1"]) == 0
    assert "no limit applies" in capsys.readouterr().out
    assert run_command(["ratelimit", "explain", "-c", file]) == 0
    assert "100/s, 5000/min" in capsys.readouterr().out


@pytest.mark.parametrize(
    "wrong",
    [
        ["--ip", "nowhere"],
        ["--topic", "a/#"],
        ["--listener", "none"],
        ["--plugin", "none"],
        ["-o", "plugins.0.config.limits.0.rate=x"],
    ],
)
def test_explain_says_what_is_wrong(
    file: str, wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["ratelimit", "explain", "-c", file, *wrong]) == 2
    assert capsys.readouterr().err


def test_made_by_hand() -> None:
    config = RateLimitConfig(limits=(Limit(rate="1/s"),), ban=Ban("1/s"))
    plugin = RateLimitPlugin(config, Context("mine"))
    assert plugin.allowances[0].rule == "mine/publishes-per-client"
    with Harness([plugin]) as harness:
        harness.connect("a", scope=Scope("tcp"))
