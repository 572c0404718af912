"""Test what a client observes for each MQTT version, QoS and mode. Waiting messages are never lost."""

from typing import Any

import pytest
from hookmq.mqtt_api import Connack, Disconnect, Puback, Pubcomp, Pubrec
from hookmq.plugin import Direction, DropReason, Peer
from hookmq_ratelimit.plugin import RateLimitPlugin
from hookmq_testing import Harness, HookRecorder, make_plugin


def limited(*limits: dict[str, Any], **config: Any) -> Any:
    """Return the plugin, configured with these limits."""
    return make_plugin(RateLimitPlugin, {"limits": limits, **config}, "ratelimit")


def drops(recorder: HookRecorder) -> list[tuple[str, str, str]]:
    return [(c.why.reason, c.why.direction, c.why.detail) for c in recorder.calls("on_dropped")]


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("mode", ["throttle", "drop"])
def test_publishes_above_the_rate_arrive_in_order(version: int, qos: int, mode: str) -> None:
    recorder = HookRecorder("on_dropped")
    plugin = limited({"what": "publishes", "rate": "10/s", "burst": 2, "mode": mode})
    with Harness([plugin, recorder]) as harness:
        other = harness.connect("other")
        other.subscribe("a", 2)
        client = harness.connect("client", version)
        for number in range(6):
            client.publish("a", b"%d" % number, qos)
        client.ping()
        assert [m.payload for m in other.messages] == [b"0", b"1"]
        harness.advance(1)
        found = [m.payload for m in other.messages]
        if mode == "drop" and qos == 0:
            assert found == [b"0", b"1"]
            assert (
                drops(recorder)
                == [(DropReason.RATE_LIMITED, Direction.IN, "ratelimit/publishes-per-client")] * 4
            )
            return
        assert found == [b"%d" % number for number in range(6)]
        assert drops(recorder) == []
        answers = [p.packet_id for p in client.received if isinstance(p, Puback | Pubcomp)]
        assert answers == ([1, 2, 3, 4, 5, 6] if qos else [])


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_rejected(version: int, qos: int) -> None:
    recorder = HookRecorder("on_dropped", "on_denied")
    with Harness([limited({"rate": "1/s", "mode": "reject"}), recorder]) as harness:
        client = harness.connect("client", version)
        other = harness.connect("other")
        other.subscribe("a", 2)
        client.publish("a", b"1", qos, expect=0 if qos else None)
        client.publish("a", b"2", qos, expect=(0x97 if version == 5 else 0) if qos else None)
        harness.settle()
        rule = "ratelimit/publishes-per-client"
        assert drops(recorder) == [(DropReason.RATE_LIMITED, Direction.IN, rule)]
        (denied,) = recorder.calls("on_denied")
        assert (denied.code, denied.rule, denied.topic) == (0x97, rule, "a")
        harness.advance(1)
        client.publish("a", b"3", qos, expect=0 if qos else None)
        assert [m.payload for m in other.messages] == [b"1", b"3"]


@pytest.mark.parametrize("qos", [1, 2])
def test_rejected_of_a_client_that_is_told_by_disconnecting(qos: int) -> None:
    config = {"broker": {"mqtt3_denied_publish": "disconnect"}}
    with Harness([limited({"rate": "1/s", "mode": "reject"})], config=config) as harness:
        client = harness.connect("client", 4)
        client.publish("a", b"1", qos, expect=0)
        client.publish("a", b"2", qos)
        assert client.closed


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_disconnected(version: int, qos: int) -> None:
    with Harness([limited({"rate": "1/s", "mode": "disconnect"})]) as harness:
        client = harness.connect("client", version)
        client.publish("a", b"1", qos)
        client.publish("a", b"2", qos)
        if version == 5:
            assert client.expect(Disconnect).code == 0x96
        assert client.closed


@pytest.mark.parametrize(("version", "code"), [(5, 0x9F), (4, 3), (3, 3)])
def test_connections(version: int, code: int) -> None:
    recorder = HookRecorder("on_auth_failed")
    plugin = limited(
        {"what": "connections", "rate": "2/s"},
        {"what": "connections", "per": "listener", "rate": "3/s"},
    )
    with Harness([plugin, recorder]) as harness:
        one, two = Peer("198.51.100.1"), Peer("198.51.100.2")
        harness.connect("a", version, peer=one)
        harness.connect("b", version, peer=one)
        harness.connect("c", version, peer=one, expect=code)
        harness.connect("d", version, peer=two)
        harness.connect("e", version, peer=two, expect=code)
        reasons = [call.reason for call in recorder.calls("on_auth_failed")]
        assert reasons == [
            "over ratelimit/connections-per-ip",
            "over ratelimit/connections-per-listener",
        ]
        harness.advance(1)
        harness.connect("c", version, peer=one)


@pytest.mark.parametrize(("version", "answer"), [(5, (0, 0x97)), (4, (0, 0x80)), (3, (0, 1))])
def test_subscriptions(version: int, answer: tuple[int, int]) -> None:
    recorder = HookRecorder("on_denied")
    plugin = limited({"what": "subscriptions", "rate": "1/s"})
    with Harness([plugin, recorder]) as harness:
        client = harness.connect("client", version)
        assert client.subscribe(["a", "b"], 1 if version == 3 else 0).codes == (
            answer if version != 3 else (1, 1)
        )
        (denied,) = recorder.calls("on_denied")
        assert (denied.rule, denied.topic) == ("ratelimit/subscriptions-per-client", "b")
        harness.connect("other").publish("b", b"")
        assert not client.messages


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("mode", ["throttle", "drop"])
def test_deliveries(version: int, qos: int, mode: str) -> None:
    recorder = HookRecorder("on_dropped")
    plugin = limited({"what": "deliveries", "rate": "2/s", "mode": mode})
    with Harness([plugin, recorder]) as harness:
        client = harness.connect("client", version)
        client.subscribe("a", qos)
        free = harness.connect("free")
        free.subscribe("a", 2)
        harness.advance(1)
        sender = harness.connect("sender")
        for number in range(6):
            sender.publish("a", b"%d" % number, qos)
        assert len(client.messages) == 2
        assert len(free.messages) == 2  # it is limited as well, and by an allowance of its own
        harness.advance(1.1)
        lost = mode == "drop" and qos == 0
        assert len(client.messages) == (2 if lost else 4)
        harness.advance(2)
        assert [m.payload for m in client.messages] == [
            b"%d" % number for number in range(2 if lost else 6)
        ]
        found = drops(recorder)
        rule = "ratelimit/deliveries-per-client"
        assert found == ([(DropReason.RATE_LIMITED, Direction.OUT, rule)] * 8 if lost else [])


@pytest.mark.parametrize("version", [3, 4, 5])
def test_a_waiting_publish_has_no_deadline(version: int) -> None:
    with Harness([limited({"rate": "2/h", "burst": 1})]) as harness:
        client = harness.connect("client", version, keep_alive=60)
        client.publish("a", b"1", 1)
        client.publish("a", b"2", 1)
        for _ in range(30):
            assert not [p for p in client.received if isinstance(p, Puback) and p.packet_id == 2]
            harness.advance(59.9)
            client.ping()
        harness.advance(5)
        assert [p.packet_id for p in client.received if isinstance(p, Puback)] == [1, 2]


def test_refused_when_its_turn_comes() -> None:
    plugin = limited(
        {"rate": "1/s", "name": "own"},
        {"rate": "2/s", "per": "user", "mode": "reject", "name": "ours"},
    )
    with Harness([plugin]) as harness:
        one = harness.connect("one", username="u")
        two = harness.connect("two", username="u")
        one.publish("a", b"", 1, expect=0x10)
        one.publish("a", b"", 1)
        harness.advance(0.9)
        two.publish("a", b"", 1, expect=0x10)
        harness.connect("more", username="u").publish("a", b"", 1, expect=0x10)
        harness.advance(0.05)
        assert plugin.plugin.waiting == 1
        harness.connect("three", username="u").publish("a", b"", 1, expect=0x97)
        harness.advance(0.05)
        one_more = [p.code for p in one.received if isinstance(p, Puback)]
        assert one_more == [0x10, 0x97]
        assert plugin.plugin.waiting == 0


def test_of_two_limits_on_deliveries_the_dropping_one_drops() -> None:
    plugin = limited(
        {"what": "deliveries", "rate": "2/s", "name": "waits"},
        {"what": "deliveries", "rate": "5/min", "mode": "drop", "name": "drops"},
    )
    recorder = HookRecorder("on_dropped")
    with Harness([plugin, recorder]) as harness:
        client = harness.connect("client")
        client.subscribe("a")
        harness.advance(60)
        sender = harness.connect("sender")
        for _ in range(4):
            sender.publish("a")
        assert len(client.messages) == 2
        assert not drops(recorder)
        harness.advance(1.1)
        assert len(client.messages) == 4
        harness.advance(1)
        for _ in range(4):
            sender.publish("a")
        found = {detail for _, _, detail in drops(recorder)}
        assert found == {"ratelimit/drops"}


def test_several_windows_all_hold() -> None:
    with Harness([limited({"rate": "10/s, 15/min", "mode": "reject"})]) as harness:
        client = harness.connect("client")
        other = harness.connect("other")
        other.subscribe("a")
        for _ in range(12):
            client.publish("a")
        assert len(other.messages) == 10
        harness.advance(1)
        for _ in range(12):
            client.publish("a")
        assert len(other.messages) == 15


def test_bytes_count_the_packet_and_one_larger_than_the_window_passes_alone() -> None:
    with Harness([limited({"what": "bytes", "rate": "100/s"})]) as harness:
        client = harness.connect("client")
        other = harness.connect("other")
        other.subscribe("a")
        client.publish("a", bytes(46))  # 2 + 1 + 1 + 46
        client.publish("a", bytes(46))
        client.publish("a", bytes(296))
        assert len(other.messages) == 2
        harness.advance(0.99)
        assert len(other.messages) == 2
        harness.advance(0.02)
        assert len(other.messages) == 3
        client.publish("a", bytes(46))
        harness.advance(2.4)
        assert len(other.messages) == 3
        harness.advance(0.1)
        assert len(other.messages) == 4


def test_limits_by_topic() -> None:
    plugin = limited(
        {"rate": "3/s", "mode": "reject", "name": "all"},
        {"rate": "1/s", "mode": "reject", "filters": ["alarms/#", "+/urgent"], "name": "alarms"},
        {"rate": "2/s", "mode": "reject", "filters": ["a/urgent"], "per": "broker", "name": "x"},
    )
    with Harness([plugin]) as harness:
        client = harness.connect("client")
        client.publish("alarms/1", b"", 1, expect=0x10)
        client.publish("alarms/2", b"", 1, expect=0x97)
        client.publish("b/urgent", b"", 1, expect=0x97)  # one allowance for its filters
        client.publish("b", b"", 1, expect=0x10)  # what was refused was not counted
        client.publish("b", b"", 1, expect=0x10)
        client.publish("b", b"", 1, expect=0x97)
        for name, code in (("u1", 0x10), ("u2", 0x10), ("u3", 0x97)):
            harness.connect(name).publish("a/urgent", b"", 1, expect=code)


@pytest.mark.parametrize(
    ("per", "codes"),
    [
        ("client", [0x10, 0x10, 0x10, 0x10]),
        ("user", [0x10, 0x97, 0x10, 0x10]),
        ("ip", [0x10, 0x97, 0x10, 0x97]),
        ("listener", [0x10, 0x97, 0x97, 0x97]),
        ("broker", [0x10, 0x97, 0x97, 0x97]),
    ],
)
def test_clients_share_an_allowance_by_the_per_setting(per: str, codes: list[int]) -> None:
    with Harness([limited({"per": per, "rate": "1/s", "mode": "reject"})]) as harness:
        seen = []
        for name, user, host in (
            ("a", "alice", "2001:db8::1"),
            ("b", "alice", "2001:db8::ffff:1"),
            ("c", "bob", "2001:db8:0:1::1"),
            ("d", None, "2001:db8:0:1::2"),
        ):
            client = harness.connect(name, username=user, peer=Peer(host))
            client.publish("t", b"", 1)
            seen.append(client.expect(Puback).code)
        assert seen == codes


def test_exempt_clients_are_not_limited() -> None:
    plugin = limited(
        {"rate": "1/h", "mode": "reject"},
        {"what": "connections", "per": "broker", "rate": "5/h"},
        exempt={
            "users": ("svc-*",),
            "client_ids": ("monitor",),
            "networks": ("10.0.0.0/8",),
            "listeners": ("inside",),
        },
    )
    from hookmq.plugin import Scope

    with Harness([plugin]) as harness:
        clients = [
            harness.connect("a", username="svc-1"),
            harness.connect("monitor"),
            harness.connect("b", peer=Peer("10.1.2.3")),
            harness.connect("c", peer=Peer("::ffff:10.1.2.3")),
            harness.connect("d", scope=Scope("inside")),
        ]
        for client in clients:
            for _ in range(3):
                client.publish("t", b"", 1, expect=0x10)
        client = harness.connect("e", username="SVC-1")
        client.publish("t", b"", 1, expect=0x10)
        client.publish("t", b"", 1, expect=0x97)
        # a name that was not proved yet opens no door
        harness.connect("f")
        harness.connect("g")
        harness.connect("h", username="svc-1", expect=0x9F)
        harness.connect("i", peer=Peer("10.1.2.3"))


def test_a_first_message_in_connack_order() -> None:
    with Harness([limited({"rate": "1/s"})]) as harness:
        client = harness.connect("client")
        assert isinstance(client.received[0], Connack)
        client.publish("t", b"", 2, packet_id=9)
        client.publish("t", b"", 2, packet_id=9, dup=True)
        assert len([p for p in client.received if isinstance(p, Pubrec)]) >= 1
