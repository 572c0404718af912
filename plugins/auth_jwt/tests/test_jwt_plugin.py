"""Test the plugin in an in-memory broker: which clients may connect, for how long, and what they may do."""

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hookmq.mqtt_api import Connack, Puback, Pubrec
from hookmq.plugin import (
    Accept,
    Auth,
    AuthSettings,
    AuthzSettings,
    MetricRegistry,
    Peer,
    Plugin,
    Properties,
    ReasonCode,
    Scope,
    Settings,
    hookimpl,
)
from hookmq_auth_jwt.config import KeyConfig
from hookmq_auth_jwt.fetch import FetchFailed
from hookmq_auth_jwt.plugin import AuthJwtPlugin
from hookmq_testing import (
    EPOCH,
    DurableStore,
    Harness,
    HookRecorder,
    MemoryClient,
    PluginContract,
    PluginInstance,
)
from hookmq_testing.client import will
from hookmq_testing.plugins import make_plugin
from tokens import SECRET, b64, jwk, jwks, pem, token

DENY = Settings(auth=AuthSettings("deny"), authz=AuthzSettings("deny"))
NOW = int(EPOCH)
Make = Callable[..., Harness]


def made(**config: Any) -> PluginInstance:
    config.setdefault("secret", SECRET)
    return make_plugin(AuthJwtPlugin, config, "jwt", use="auth_jwt")


@pytest.fixture
def broker(broker_harness: Make) -> Callable[..., Harness]:
    """Return a function that creates a broker with this plugin and others."""

    def make(*others: Any, **config: Any) -> Harness:
        return broker_harness([made(**config), *others], DENY)

    return make


def good(claims: Any = None, at: float = EPOCH, **more: Any) -> bytes:
    return token(claims, now=at, **more)


class TestContract(PluginContract):
    kind = AuthJwtPlugin
    use = "auth_jwt"
    configs: ClassVar[Any] = (
        {"secret": SECRET},
        {"secret": SECRET, "optional": True},
        {"secret": SECRET, "token_in": "username"},
        {"secret": SECRET, "token_in": "auth", "require_acl": True},
        {"jwks_url": "http://127.0.0.1:9/", "secret": SECRET},
    )
    bad_configs: ClassVar[Any] = (
        {},
        {"secret": "x"},
        {"jwks_url": "http://idp.example/"},
        {"scret": SECRET},
    )


# -- every failure, in every version


def other_key(kid: str = "") -> bytes:
    return token(key="y" * 64, now=EPOCH, header={"kid": kid} if kid else None)


FAILURES: dict[str, tuple[bytes | None, int, str]] = {
    "missing": (None, 0x86, "missing"),
    "empty": (b"", 0x86, "missing"),
    "a password": (b"hunter2", 0x86, "malformed"),
    "not text": (b"\xff\x00", 0x86, "malformed"),
    "too large": (good({"x": "y" * 9000}), 0x86, "malformed"),
    "no algorithm": (f"{b64(json.dumps({'alg': 'none'}).encode())}.{b64(b'{}')}.".encode(), 0x86, "algorithm"),
    "another algorithm": (token(algorithm="ES256", now=EPOCH), 0x86, "algorithm"),
    "crit": (good(header={"crit": ["exp"]}), 0x86, "malformed"),
    "signature": (other_key(), 0x86, "signature"),
    "expired": (good({"exp": NOW - 60}), 0x86, "expired"),
    "not yet": (good({"nbf": NOW + 60}), 0x86, "not_yet"),
    "never expires": (good({"exp": None}), 0x87, "expired"),
    "issuer": (good({"iss": "b"}), 0x87, "issuer"),
    "audience": (good({"iss": "a", "aud": "b"}), 0x87, "audience"),
    "required": (good({"iss": "a", "dev": "other"}), 0x87, "claim"),
    "identity": (good({"iss": "a", "dev": "c", "sub": None}), 0x87, "identity"),
    "acl": (good({"iss": "a", "dev": "c", "acl": ["a"]}), 0x87, "acl"),
    "limits": (good({"iss": "a", "dev": "c", "limits": 1}), 0x87, "limits"),
    "groups": (good({"iss": "a", "dev": "c", "groups": 1}), 0x87, "groups"),
}  # fmt: skip
V3 = {0x86: 4, 0x87: 5, 0x88: 3}


@pytest.mark.parametrize("place", ["password", "username", "auth"])
@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("name", sorted(FAILURES))
def test_every_failure_denies(broker: Make, name: str, version: int, place: str) -> None:
    data, code, kind = FAILURES[name]
    harness = broker(token_in=place, issuer="a", required={"dev": "${clientid}"})
    given: dict[str, Any] = {}
    if place == "password":
        given = {"username": "u", "password": data}
    elif place == "username":
        if data is not None and b"\xff" in data:
            return  # a user name is text
        given = {"username": None if data is None else data.decode()}
    elif version == 5:
        given = {"authentication_method": "JWT", "authentication_data": data}
        if not data:
            client = harness.connect("c", 5, expect=None, **given)
            client.expect(Auth)
            properties = Properties(authentication_method="JWT")
            client.send(Auth(ReasonCode.CONTINUE_AUTHENTICATION, properties))
            assert client.expect(Connack).code == 0x86
            client.expect_closed()
            return
    else:
        kind, code = "missing", 0x86  # there is no enhanced authentication
    client = harness.connect("c", version, expect=code if version == 5 else V3[code], **given)
    client.expect_closed()
    plugin: Any = harness.hooks.plugins[0].plugin
    assert {k: n for k, n in plugin.counts.refused.items() if n} == {kind: 1}
    if version == 5:
        assert client.connack is not None
        assert client.connack.properties.reason_string == f"token refused: {kind.replace('_', ' ')}"


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("place", ["password", "username", "auth"])
def test_a_good_token(broker: Make, version: int, place: str) -> None:
    harness = broker(token_in=place)
    data = good({"sub": "alice", "groups": ["a"]})
    ways: dict[str, dict[str, Any]] = {
        "password": {"username": "u", "password": data},
        "username": {"username": data.decode()},
        "auth": {"authentication_method": "JWT", "authentication_data": data},
    }
    if place == "auth" and version < 5:
        return
    harness.connect("c", version, **ways[place])
    client = harness.broker.sessions["c"].client
    assert (client.identity, client.claims["groups"]) == ("alice", ["a"])
    assert client.expires_at == NOW + 3600 + 5


def test_enhanced_authentication_is_there_beside_passwords(broker: Make) -> None:
    harness = broker()
    harness.connect("a", authentication_method="JWT", authentication_data=good())
    harness.connect("b", password=good())
    harness.connect("c", authentication_method="OTHER", password=good(), expect=0x8C)
    harness = broker(method="")
    harness.connect("a", authentication_method="JWT", authentication_data=good(), expect=0x8C)
    harness = broker(method="K8S-OAUTH")
    harness.connect("a", authentication_method="K8S-OAUTH", authentication_data=good())


def test_a_token_that_is_asked_for(broker: Make) -> None:
    harness = broker()
    client = harness.connect("c", authentication_method="JWT", expect=None)
    asked = client.expect(Auth)
    assert (asked.code, asked.properties.authentication_data) == (0x18, None)
    properties = Properties(authentication_method="JWT", authentication_data=good({"sub": "x"}))
    client.send(Auth(ReasonCode.CONTINUE_AUTHENTICATION, properties))
    assert client.expect(Connack).code == 0
    assert harness.broker.sessions["c"].client.identity == "x"


def test_a_method_of_another_plugin_is_no_token(broker: Make) -> None:
    other = HookRecorder("on_auth", id="other")
    other.answer("on_auth", Accept("scram"))
    broker(other).connect("c", authentication_method="SCRAM", authentication_data=b"x", expect=0x86)
    other.clear()
    other.answer("on_auth", Accept("scram"))
    harness = broker(other, optional=True)
    harness.connect("c", authentication_method="SCRAM", authentication_data=b"x")
    assert harness.broker.sessions["c"].client.identity == "scram"


def test_optional(broker: Make) -> None:
    class Passwords(Plugin):
        @hookimpl
        def on_connect(self, connect: Any) -> Accept | None:
            return Accept("by password") if connect.password == b"hunter2" else None

    harness = broker(Passwords, optional=True)
    harness.connect("a", username="u", password=b"hunter2")
    assert harness.broker.sessions["a"].client.identity == "by password"
    harness.connect("b", username="u", password=b"wrong", expect=0x87)  # auth.default
    harness.connect("c", username="u", expect=0x87)
    harness.connect("d", password=good({"exp": NOW - 60}), expect=0x86)
    harness.connect("d", password=b"a.b.c", expect=0x87)
    harness.connect("d", password=b"eyJ.b.c", expect=0x86)
    harness.connect("e", password=good({"sub": "x"}))
    assert harness.broker.sessions["e"].client.identity == "x"


def test_a_token_in_the_user_name_is_not_logged(broker: Make) -> None:
    harness = broker(token_in="username")
    data, bad = good({"sub": "alice"}).decode(), good({"exp": 5}).decode()
    harness.connect("c", username=data)
    assert harness.broker.sessions["c"].client.username == "alice"
    harness.connect("d", username=bad, expect=0x86)
    harness.connect("e", username="not.a.token", expect=0x86)
    text = repr(harness.logs)
    assert "alice" in text
    for secret in (data, bad, "not.a.token", data.rpartition(".")[2], SECRET):
        assert secret not in text


def test_a_certificate_gives_the_user_name_and_the_token_the_rest(broker: Make) -> None:
    harness = broker(token_in="username", identity="${sub}", required={"sub": "${clientid}"})
    from hookmq.plugin import Certificate

    peer = Peer("192.0.2.1", 1, "tls", Certificate("pump7"))
    scope = Scope(identity="common_name")
    client = harness.connect("me", username=good().decode(), peer=peer, scope=scope)
    assert harness.broker.sessions["me"].client.username == "pump7"
    client.expect_nothing()


# -- permissions


def acl(value: Any, **claims: Any) -> bytes:
    return good({"acl": value, **claims})


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_permissions(broker: Make, version: int, qos: int) -> None:
    value = {
        "publish": ["dev/${clientid}/#", "by/%u/x", "site/${site}/x", {"topic": "low", "qos": 0}],
        "subscribe": ["in/%c/+", "$share/g/x"][:1],
        "deny": {"publish": ["dev/%c/secret"], "subscribe": ["in/+/private"]},
    }
    harness = broker()
    data = acl(value, sub="alice", site="berlin")
    client = harness.connect("c1", version, username="u", password=data)
    watcher = harness.connect("w", password=acl({"all": ["#"]}))
    watcher.subscribe("#", 2)
    allowed = ["dev/c1/a", "by/alice/x", "site/berlin/x"]
    denied = ["dev/c2/a", "dev/c1/secret", "by/u/x", "site/paris/x", "other"]
    for topic in allowed + denied:
        client.publish(topic, b"x", qos)
    client.publish("low", b"x", qos)
    expected = [*allowed, *(["low"] if qos == 0 else [])]
    assert [message.topic for message in watcher.messages] == expected
    if version == 5 and qos:
        codes = [one.code for one in client.received if isinstance(one, Puback | Pubrec)]
        assert codes == [0] * 3 + [0x87] * 6
    answer = client.subscribe(
        ["in/c1/x", "in/c1/#", "in/c1/+", "in/c1/private", "#", "$share/g/in/c1/x"], 1
    )
    # MQTT 3.1 has no word for a refused subscription
    refused = {3: 1, 4: 0x80, 5: 0x87}[version]
    assert list(answer.codes) == [1, refused, refused, refused, refused, 1]
    made = harness.broker.sessions["c1"].subscriptions
    assert set(made) == {"in/c1/x", "$share/g/in/c1/x"}


VALUES = {
    "name": ("a/${name}", "a/x"),
    "number": ("a/${number}", "a/7"),
    "clientid": ("a/${clientid}", "a/c"),
    "username": ("a/${username}", "a/u"),
    "id": ("a/%c", "a/c"),
    "identity": ("a/%u", "a/me"),
    "nested": ("a/${deep.site}", "a/berlin"),
}


@pytest.mark.parametrize("names", [*[(name,) for name in VALUES], tuple(VALUES)])
def test_values_are_those_of_the_token(broker: Make, names: tuple[str, ...]) -> None:
    """The rules' variables take their values from the token, even if another plugin sets claims first."""

    class Other(Plugin):
        @hookimpl
        def on_connect(self) -> Accept:
            claims = {"name": "evil", "number": 8, "clientid": "evil", "username": "evil", "missing": "evil",
                      "list": "evil", "deep": {"site": "evil"}}  # fmt: skip
            return Accept(claims=claims)

    instances = [make_plugin(Other), made()]
    harness = Harness(instances, DENY)
    value = [VALUES[name][0] for name in names] + ["b/${missing}", "b/${list}"]
    claims = {
        "name": "x",
        "number": 7,
        "list": ["x"],
        "deep": {"site": "berlin"},
        "clientid": "y",
        "username": "y",
    }
    client = harness.connect("c", username="u", password=acl({"publish": value}, **claims))
    allowed = {VALUES[name][1] for name in names}
    for _, topic in VALUES.values():
        client.publish(topic, b"x", 1, expect=0x10 if topic in allowed else 0x87)
    for topic in ("b/evil", "b/x", "a/evil", "a/8", "a/y", "a/", "b/None"):
        client.publish(topic, b"x", 1, expect=0x87)
    harness.close()


def test_without_permissions_others_decide(broker: Make) -> None:
    other = HookRecorder("authorize", id="other")
    harness = broker(other)
    client = harness.connect("c", password=good())
    client.publish("a", b"x", 1, expect=0x87)
    assert len(other.calls("authorize")) == 1
    restricted = harness.connect("d", password=acl({"publish": ["a"]}))
    restricted.publish("a", b"x", 1, expect=0x10)
    restricted.publish("b", b"x", 1, expect=0x87)
    assert len(other.calls("authorize")) == 2


def test_permissions_may_be_demanded(broker: Make) -> None:
    harness = broker(require_acl=True)
    client = harness.connect("c", password=good(), expect=0x87)
    assert client.connack is not None
    harness.connect("c", password=acl({}))


def test_a_will_without_permission(broker: Make) -> None:
    harness = broker()
    testament = will("gone/c", b"x", qos=1)
    harness.connect("c", password=acl({"publish": ["a"]}), will=testament, expect=0x87)
    harness.connect(
        "c", 4, password=acl({"publish": ["a"]}), username="u", will=testament, expect=5
    )
    harness.connect("c", password=acl({"publish": ["gone/%c"]}), will=testament)


def test_limits(broker: Make) -> None:
    harness = broker()
    limits = {
        "max_packet_size": 500,
        "receive_maximum": 3,
        "session_expiry": 60,
        "max_subscriptions": 1,
    }
    data = good({"limits": limits, "acl": {"all": ["#"]}})
    client = harness.connect("c", password=data, session_expiry_interval=600)
    assert client.connack is not None
    properties = client.connack.properties
    assert (properties.maximum_packet_size, properties.receive_maximum) == (500, 3)
    assert properties.session_expiry_interval == 60
    assert list(client.subscribe(["a", "b"], 0).codes) == [0, 0x97]


def test_a_restored_session_keeps_its_permissions(broker: Make) -> None:
    """A session restored after a restart keeps its permissions, because the store holds the token's claims as well."""
    harness = broker()
    testament = will("gone/c", b"x", qos=1, delay=30)
    data = acl({"publish": ["gone/%c"], "subscribe": ["a/#"]}, sub="alice")
    client = harness.connect("c", password=data, will=testament, session_expiry_interval=600)
    client.subscribe("a/b", 1)
    bad = harness.connect("d", password=acl({"publish": ["gone/d"]}), session_expiry_interval=600,
                          will=will("gone/d", b"x", qos=1, delay=30))  # fmt: skip
    harness.broker.sessions["d"].client.claims = {"acl": {"publish": 1}}
    watcher = harness.connect("w", password=acl({"all": ["#"]}), session_expiry_interval=600)
    watcher.subscribe("gone/#", 1)
    assert not bad.closed
    for session in harness.broker.sessions.values():
        session.client.state.clear()
    client.drop()
    bad.drop()
    harness.advance(31)
    assert [message.topic for message in watcher.messages] == ["gone/c"]


@pytest.mark.parametrize("require", [False, True])
def test_a_restart_takes_no_permission_for_another(broker_harness: Make, require: bool) -> None:
    """After a crash, each stored will is published with its own client's permissions."""
    open_to_all = Settings(auth=AuthSettings("deny"), authz=AuthzSettings("allow"))
    harness: Harness = broker_harness([made(require_acl=False)], open_to_all, store=DurableStore())
    tokens = {
        "c": acl({"publish": ["gone/%c"]}, sub="alice"),
        "none": good(sub="bob"),
        "w": acl({"all": ["#"]}),
    }
    for name in ("c", "none"):
        testament = will(f"gone/{name}", b"x", qos=1, delay=30)
        harness.connect(name, password=tokens[name], will=testament, session_expiry_interval=600)
    watcher = harness.connect("w", password=tokens["w"], session_expiry_interval=600)
    watcher.subscribe("gone/#", 1)
    plugin: Any = harness.hooks.plugins[0].plugin
    harness.restart()
    found = harness.broker.sessions["c"].client
    assert (found.identity, "jwt" in found.state) == ("alice", False)
    if require:
        object.__setattr__(plugin.config, "require_acl", True)
    watcher.reconnect(session_expiry_interval=600)
    harness.advance(31)
    expected = ["gone/c"] if require else ["gone/c", "gone/none"]
    assert sorted(message.topic for message in watcher.messages) == expected


# -- the end of a token, and a new one


def again(client: MemoryClient, data: bytes | None, code: int = 0x19) -> None:
    properties = Properties(authentication_method="JWT", authentication_data=data)
    client.send(Auth(code, properties))


@pytest.mark.parametrize(
    ("setting", "code"), [("maximum_connect_time", 0xA0), ("not_authorized", 0x87)]
)
@pytest.mark.parametrize("version", [3, 4, 5])
def test_the_end_of_a_token_is_the_end_of_the_connection(
    broker: Make, version: int, setting: str, code: int
) -> None:
    harness = broker(on_expiry=setting, leeway=2.0)
    client = harness.connect("c", version, username="u", password=good({"exp": NOW + 60}))
    harness.advance(61.9)
    client.expect_nothing()
    harness.advance(0.2)
    client.expect_disconnect(code)
    harness.connect(
        "c",
        version,
        username="u",
        password=good({"exp": NOW + 60}),
        expect=0x86 if version == 5 else 4,
    )


def enter(harness: Harness, data: bytes, **options: Any) -> MemoryClient:
    return harness.connect("c", authentication_method="JWT", authentication_data=data, **options)


def test_renewal(broker: Make) -> None:
    harness = broker()
    first = acl({"subscribe": ["a/#", "b/#"], "publish": ["a/x"]}, exp=NOW + 60, site="one")
    client = enter(harness, first, session_expiry_interval=600)
    client.subscribe(["a/1", "b/1"], 1)
    client.publish("a/x", b"x", 1, expect=0x10)
    client.publish("b/x", b"x", 1, expect=0x87)
    harness.advance(50)
    second = acl({"subscribe": ["a/#", "b/#"], "publish": ["b/x"]}, exp=NOW + 600, site="two")
    again(client, second)
    assert client.expect(Auth).code == 0
    # the new permissions hold at once, remembered answers included
    client.publish("a/x", b"x", 1, expect=0x87)
    client.publish("b/x", b"x", 1, expect=0x10)
    harness.advance(60)
    client.expect_nothing()
    session = harness.broker.sessions["c"]
    assert set(session.subscriptions) == {"a/1", "b/1"}
    assert (session.client.claims["site"], session.client.expires_at) == ("two", NOW + 605)
    # rights that the next one lacks end subscriptions
    again(client, acl({"subscribe": ["a/#"]}, exp=NOW + 900))
    assert client.expect(Auth).code == 0
    client.expect_disconnect(0x87)
    assert set(session.subscriptions) == {"a/1"}


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (good({"exp": 5}), "expired"),
        (other_key(), "signature"),
        (b"nonsense", "malformed"),
        (good({"sub": "mallory"}), "other_identity"),
        (good({"acl": 1}), "acl"),
    ],
)
def test_a_bad_renewal_ends_the_connection(broker: Make, data: bytes, kind: str) -> None:
    harness = broker()
    client = enter(harness, good())
    again(client, data)
    packet = client.expect_disconnect(0x87)
    assert packet is not None
    assert packet.properties.reason_string == f"token refused: {kind.replace('_', ' ')}"


def test_a_renewal_that_is_asked_for(broker: Make) -> None:
    harness = broker()
    client = enter(harness, good({"exp": NOW + 60}))
    again(client, None)
    assert client.expect(Auth).code == 0x18
    again(client, good({"exp": NOW + 600}), 0x18)
    assert client.expect(Auth).code == 0
    harness.advance(100)
    client.expect_nothing()


def test_a_token_without_end_takes_the_end_away(broker: Make) -> None:
    harness = broker(require_exp=False)
    client = enter(harness, good({"exp": NOW + 60}))
    again(client, good({"exp": None}))
    assert client.expect(Auth).code == 0
    harness.advance(86400)
    client.expect_nothing()


def test_a_client_that_came_with_a_password_cannot_renew_its_token(broker: Make) -> None:
    harness = broker()
    client = harness.connect("c", password=good())
    again(client, good())
    client.expect_disconnect(0x82)


# -- keys that are fetched


class Idp:
    """The identity provider whose keys the plugin fetches in these tests."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.asked = 0
        self.body: bytes = jwks(jwk("RSA 2048", "k0"))
        self.fails = ""
        self.hangs = False
        self.event = harness.clock.event()

    async def __call__(self, url: str, config: Any) -> bytes:
        self.asked += 1
        if self.hangs:
            await self.event
        if self.fails:
            raise FetchFailed(self.fails)
        return self.body

    def release(self) -> None:
        self.hangs = False
        self.event.set()


@pytest.fixture
def remote(broker_harness: Make) -> Callable[..., tuple[Harness, Idp]]:
    def make(start: bool = True, fails: str = "", **config: Any) -> tuple[Harness, Idp]:
        config = {"secret": None, "jwks_url": "https://idp.example/keys?secret=1", **config}
        instance = made(**config)
        harness: Harness = broker_harness([instance], DENY, start=False)
        idp = Idp(harness)
        idp.fails = fails
        plugin: Any = instance.plugin
        for source in plugin.sources:
            source.fetch = idp
        if start:
            harness.start()
        return harness, idp

    return make


Remote = Callable[..., tuple[Harness, Idp]]


def named(kid: str | None, number: int = 0, **claims: Any) -> bytes:
    header = {"kid": kid} if kid else None
    return token(claims, "RS256", now=EPOCH, number=number, header=header)


def test_keys_are_there_when_the_doors_open(remote: Remote) -> None:
    harness, idp = remote()
    assert idp.asked == 1
    harness.connect("c", password=named("k0"))
    harness.connect("c", password=named(None))


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("enhanced", [False, True])
def test_without_keys_nobody_comes_in(remote: Remote, version: int, enhanced: bool) -> None:
    harness, _ = remote(fails="HTTP 500")
    given: dict[str, Any] = {"username": "u", "password": named("k0")}
    if enhanced:
        if version < 5:
            return
        given = {"authentication_method": "JWT", "authentication_data": named("k0")}
    harness.connect("c", version, expect=0x88 if version == 5 else 3, **given)
    [told] = harness.logged("jwt.fetch_failed")
    assert told["error"] == "HTTP 500"
    assert "secret" not in repr(harness.logs)


def test_they_come_in_when_the_keys_are_there(remote: Remote) -> None:
    harness, idp = remote(fails="HTTP 500")
    idp.fails = ""
    harness.connect("c", password=named("k0"), expect=0x88)  # asked a moment ago
    harness.advance(4)
    harness.connect("c", password=named("k0"))


def test_a_start_that_waits_for_keys(remote: Remote) -> None:
    harness, idp = remote(start=False, fails="HTTP 503", jwks={"required": True})
    harness.clock.call_later(5, lambda: setattr(idp, "fails", ""))
    harness.start()
    assert idp.asked > 3
    harness.connect("c", password=named("k0"))


def test_a_start_that_waits_in_vain(remote: Remote) -> None:
    harness, idp = remote(start=False, fails="HTTP 503", jwks={"required": True})
    with pytest.raises(Exception, match=r"no keys: https://idp.example/keys: HTTP 503"):
        harness.start()
    assert idp.asked >= 20


@pytest.mark.parametrize("timeout", [4.0, 20.0])
def test_a_start_is_over_before_the_broker_gives_up(remote: Remote, timeout: float) -> None:
    harness, idp = remote(start=False, jwks={"required": True, "timeout": timeout})

    async def slow(url: str, config: Any) -> bytes:
        idp.asked += 1
        await harness.clock.sleep(timeout)
        raise FetchFailed("slow")

    plugin: Any = harness.hooks.plugins[0].plugin
    plugin.sources[0].fetch = slow
    with pytest.raises(Exception, match=r"there are no keys: .*slow"):
        harness.start()
    assert harness.clock.now() < 30
    assert idp.asked >= 2 or timeout == 20.0


def test_a_key_that_is_new(remote: Remote) -> None:
    harness, idp = remote()
    harness.advance(11)
    idp.body = jwks(jwk("RSA 2048", "k0"), jwk("RSA 2048", "k1", 1))
    harness.connect("c", password=named("k1", 1))
    assert idp.asked == 2


def test_unknown_keys_cause_few_fetches(remote: Remote) -> None:
    harness, idp = remote()
    harness.advance(11)
    for number in range(50):
        harness.connect(f"c{number}", password=named(f"x{number}", 1), expect=0x86)
    assert idp.asked == 2
    plugin: Any = harness.hooks.plugins[0].plugin
    assert plugin.sources[0].suppressed == 49
    harness.advance(11)
    harness.connect("c", password=named("x", 1), expect=0x86)
    assert idp.asked == 3


def test_tokens_that_no_key_could_verify_cause_no_fetch(remote: Remote) -> None:
    harness, idp = remote()
    harness.advance(11)
    none = f"{b64(json.dumps({'alg': 'none', 'kid': 'x'}).encode())}.{b64(b'{}')}.".encode()
    for data in (none, b"x.y.z", named("k0", 1), good({"exp": 5})):
        harness.connect("c", password=data, expect=0x86)
    assert idp.asked == 1


def test_a_new_key_beside_one_without_a_name(remote: Remote, tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    path.write_text(pem("RSA 2048", 3))
    harness, idp = remote(keys=(KeyConfig(pem=path),))
    harness.connect("a", password=named("any", 3))
    harness.advance(11)
    idp.body = jwks(jwk("RSA 2048", "k1", 1))
    harness.connect("b", password=named("k1", 1))
    assert idp.asked == 2


def test_one_fetch_for_all_who_wait(remote: Remote) -> None:
    harness, idp = remote(jwks={"max_waiting": 20})
    harness.advance(11)
    idp.hangs, idp.body = True, jwks(jwk("RSA 2048", "k1", 1))
    waiting = [harness.connect(f"c{n}", password=named("k1", 1), expect=None) for n in range(20)]
    # one client too many must come back later; a client that needs no new key does not wait
    harness.connect("late", password=named("k1", 1), expect=0x86)
    harness.connect("known", password=named("k0"))
    assert idp.asked == 2
    waiting[0].drop()
    for client in waiting[1:]:
        client.expect_nothing()
    idp.release()
    for client in waiting[1:]:
        assert client.expect(Connack).code == 0
    assert idp.asked == 2


def test_a_slow_server_holds_up_who_needs_it_and_for_a_time(remote: Remote) -> None:
    harness, idp = remote()
    harness.advance(11)
    idp.hangs = True
    client = harness.connect("c", password=named("k1", 1), expect=None)
    harness.advance(4.9)
    client.expect_nothing()
    harness.connect("known", password=named("k0"))
    harness.advance(0.2)
    assert client.expect(Connack).code == 0x88


def test_the_last_good_keys_and_their_end(remote: Remote) -> None:
    harness, idp = remote(jwks={"refresh": 60.0, "max_age": 600.0})
    harness.advance(100)
    assert idp.asked == 2
    idp.fails = "no answer"
    harness.advance(400)
    harness.connect(
        "c", password=token(None, "RS256", now=harness.clock.time(), header={"kid": "k0"})
    )
    told = harness.logged("jwt.fetch_failed")
    assert [one["keys_kept"] for one in told] == [1]
    harness.advance(400)
    data = token(None, "RS256", now=harness.clock.time(), header={"kid": "k0"})
    harness.connect("d", password=data, expect=0x88)
    told = harness.logged("jwt.fetch_failed")
    assert [one["keys_kept"] for one in told] == [1, 0]
    idp.fails = ""
    harness.advance(70)
    harness.connect("d", password=data)
    assert idp.asked < 40, "a dead server is asked less and less often"


def test_a_set_without_keys_is_believed(remote: Remote) -> None:
    harness, idp = remote(jwks={"refresh": 60.0})
    idp.body = jwks()
    harness.advance(70)
    harness.connect("c", password=named("k0"), expect=0x88)
    assert harness.logged("jwt.keys")[-1]["keys"] == []
    levels = [level for level, event, _ in harness.logs if event == "jwt.keys"]
    assert levels == ["info", "warning"]


def test_a_recovery_is_told(remote: Remote) -> None:
    harness, idp = remote(jwks={"refresh": 60.0})
    harness.advance(200)
    assert len(harness.logged("jwt.keys")) == 1, "what did not change is not told"
    idp.fails = "dead"
    harness.advance(100)
    idp.fails = ""
    harness.advance(100)
    assert len(harness.logged("jwt.keys")) == 2
    assert harness.logged("jwt.keys")[1]["keys"] == ["k0"]


@pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b'{"keys": 1}', b"\xff", b"["])
def test_garbage_is_not_believed(remote: Remote, body: bytes) -> None:
    harness, idp = remote(jwks={"refresh": 60.0})
    idp.body = body
    harness.advance(70)
    harness.connect("c", password=named("k0"))
    assert len(harness.logged("jwt.fetch_failed")) == 1


@pytest.mark.parametrize("setting", ["keep", "disconnect"])
def test_a_withdrawn_key(remote: Remote, setting: str) -> None:
    harness, idp = remote(jwks={"refresh": 60.0}, on_key_removed=setting)
    idp.body = jwks(jwk("RSA 2048", "k0"), jwk("RSA 2048", "k1", 1))
    harness.advance(70)
    old, new = (
        harness.connect("a", password=named("k0")),
        harness.connect("b", password=named("k1", 1)),
    )
    idp.body = jwks(jwk("RSA 2048", "k1", 1))
    harness.advance(70)
    new.expect_nothing()
    if setting == "keep":
        old.expect_nothing()
    else:
        old.expect_disconnect(0x87)
        assert harness.logged("jwt.key_withdrawn")[0]["clients"] == 1
    harness.connect("c", password=named("k0"), expect=0x86)


def test_renewal_while_the_keys_are_fetched(remote: Remote) -> None:
    harness, idp = remote()
    client = enter(harness, named("k0", exp=NOW + 600))
    client.subscribe("x", 1)
    harness.advance(11)
    idp.body = jwks(jwk("RSA 2048", "k1", 1))
    again(client, named("k1", 1, exp=NOW + 6000))
    assert client.expect(Auth).code == 0
    harness.advance(11)
    idp.fails = "dead"
    again(client, named("k2", 2))
    client.expect_disconnect(0x89)  # what DISCONNECT has for 0x88


def test_a_shutdown_lets_those_go_who_wait(remote: Remote) -> None:
    harness, idp = remote()
    harness.advance(11)
    idp.hangs = True
    client = harness.connect("c", password=named("k1", 1), expect=None)
    harness.close()
    assert client.wire.closed
    asked = idp.asked
    harness.clock.advance(86400)
    assert idp.asked == asked, "nothing is fetched by who has gone"


# -- keys in files


def test_files_that_change(broker: Make, tmp_path: Path) -> None:
    path, key = tmp_path / "keys.json", tmp_path / "key.pem"
    path.write_bytes(jwks(jwk("RSA 2048", "k0")))
    key.write_text(pem("Ed25519"))
    harness = broker(
        secret=None, jwks_file=path, keys=(KeyConfig(pem=key),), on_key_removed="disconnect"
    )
    first = harness.connect("a", password=named("k0"))
    second = harness.connect("b", password=token(algorithm="EdDSA", now=EPOCH))
    registry = MetricRegistry()
    loaded: Any = harness.hooks.plugins[0].plugin
    loaded.register_metrics(registry)
    assert f'hookmq_jwt_source_failing{{source="{path}"}} 0\n' in registry.text()
    for broken in (b"", b'{"keys": [', b"\xff"):
        path.write_bytes(broken)
        harness.advance(11)
        harness.connect("c", password=named("k0"))
    assert {one["keys_kept"] for one in harness.logged("jwt.file_refused")} == {1}
    path.unlink()
    key.unlink()
    harness.advance(11)
    harness.connect("c", password=named("k0"))
    first.expect_nothing()
    second.expect_nothing()
    path.write_bytes(jwks(jwk("RSA 2048", "k1", 1)))
    key.write_text(pem("Ed25519"))
    harness.advance(11)
    first.expect_disconnect(0x87)
    second.expect_nothing()
    harness.connect("d", password=named("k1", 1))
    harness.connect("e", password=named("k0"), expect=0x86)
    plugin: Any = harness.hooks.plugins[0].plugin
    assert [one.fails for one in plugin.sources] == ["", ""]


def test_keys_withdrawn_while_there_are_no_descriptors(
    broker: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(jwks(jwk("RSA 2048", "k0")))
    harness = broker(secret=None, jwks_file=path, on_key_removed="disconnect")
    client = harness.connect("a", password=named("k0"))
    path.write_bytes(jwks(jwk("RSA 2048", "k1", 1)))
    with monkeypatch.context() as patch:
        patch.setattr("hookmq.server.files._at_once", out_of_descriptors)
        harness.advance(30)
        client.ping()
    harness.advance(5)
    client.expect_disconnect(0x87)


def out_of_descriptors(path: str, flags: int) -> int:
    raise OSError(errno.EMFILE, "Too many open files", path)


def test_a_reload_looks_at_once(broker: Make, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(jwks(jwk("RSA 2048", "k0")))
    harness = broker(secret=None, jwks_file=path, watch=0.0)
    path.write_bytes(jwks(jwk("RSA 2048", "k1", 1)))
    harness.advance(100)
    harness.connect("a", password=named("k1", 1), expect=0x86)
    plugin: Any = harness.hooks.plugins[0].plugin
    plugin.on_reload(DENY, DENY)
    harness.settle()
    harness.connect("a", password=named("k1", 1))


# -- logs and metrics


def test_metrics(remote: Remote) -> None:
    harness, idp = remote()
    plugin: Any = harness.hooks.plugins[0].plugin
    registry = MetricRegistry()
    plugin.register_metrics(registry)
    harness.connect("c", password=named("k0"))
    harness.connect("d", password=b"x", expect=0x86)
    harness.connect("d", password=named("x"), expect=0x86)
    label = '{source="https://idp.example/keys"}'
    assert f"hookmq_jwt_fetches_total{label} 1\n" in registry.text()
    assert f"hookmq_jwt_fetch_failures_total{label} 0\n" in registry.text()
    idp.fails = "dead"
    harness.advance(400)
    text = registry.text()
    assert "hookmq_jwt_accepted_total 1\n" in text
    assert 'hookmq_jwt_refused_total{reason="malformed"} 1\n' in text
    assert 'hookmq_jwt_refused_total{reason="unknown_key"} 1\n' in text
    assert "hookmq_jwt_verify_seconds_count 3\n" in text
    counted = f"hookmq_jwt_fetches_total{label} {idp.asked}\n"
    assert counted in text
    assert (
        counted.replace("fetches", "fetch_failures").replace(
            f" {idp.asked}\n", f" {idp.asked - 1}\n"
        )
        in text
    )
    assert f"hookmq_jwt_keys{label} 1\n" in text
    assert f"hookmq_jwt_source_failing{label} 1\n" in text
    assert f"hookmq_jwt_fetches_suppressed_total{label} 1\n" in text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(values[f"hookmq_jwt_keys_age_seconds{label}"]) > 300
    assert float(values[f"hookmq_jwt_fetch_failures_total{label}"]) > 0
    assert "secret" not in text
    assert "metric_errors_total{" not in text


def test_metrics_of_keys_in_one_place_twice(broker: Make) -> None:
    harness = broker(keys=(KeyConfig(secret=SECRET), KeyConfig(secret=SECRET, kid="k")))
    registry = MetricRegistry()
    plugin: Any = harness.hooks.plugins[0].plugin
    plugin.register_metrics(registry)
    text = registry.text()
    for label in ("secret", "secret (2)", "secret k"):
        assert f'hookmq_jwt_keys{{source="{label}"}} 1\n' in text


def test_no_token_in_logs(broker: Make) -> None:
    harness = broker()
    for name, (data, _, _) in FAILURES.items():
        harness.connect(name, username="u", password=data, expect=None)
    harness.connect("good", password=good())
    text = repr(harness.logs)
    assert "jwt.refused" in text
    for data, _, _ in FAILURES.values():
        for part in (data or b"").decode("latin-1").split("."):
            assert len(part) < 6 or part not in text
    assert SECRET not in text
