"""Every way in which the broker or a plugin can refuse a client.

Each case states which hook refuses the client, how the broker is configured, and what the client receives. In-memory
brokers run the cases with the real plugins. ``python tests/support/denials.py`` writes the resulting tables into
docs/explanation/who-may-do-what.md.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from hookmq.model.client import Peer, Scope
from hookmq.mqtt.packets import Auth, Connack, Disconnect, Puback, Pubcomp, Publish, Pubrec, Suback
from hookmq.mqtt.properties import Properties
from hookmq.plugin import Context, Deny, Message, Plugin, Subscription, hookimpl
from hookmq_acl_file.plugin import AclFilePlugin
from hookmq_auth_http.config import Endpoint
from hookmq_auth_http.plugin import AuthHttpPlugin
from hookmq_auth_jwt.fetch import FetchFailed
from hookmq_auth_jwt.plugin import AuthJwtPlugin
from hookmq_auth_password.plugin import AuthPasswordPlugin
from hookmq_ratelimit.plugin import RateLimitPlugin
from hookmq_testing import Harness, HookRecorder, MemoryClient, make_plugin
from hookmq_testing.client import will
from hookmq_testing.runtime import EPOCH
from hookmq_toolkit.http_client import HttpAnswer, Unavailable
from hookmq_toolkit.passwords.hashes import Argon2, make
from tokens import SECRET, token
from workspace import ROOT

PAGE = ROOT / "docs" / "explanation" / "who-may-do-what.md"
VERSIONS = {5: "5.0", 4: "3.1.1", 3: "3.1"}
CHEAP = Argon2(1 << 20, 1, 1)
HOME = Peer("192.0.2.1", 40000, "memory")
RULES = """\
rules:
  - {deny: deliver, topic: quiet/#}
  - {allow: [publish, subscribe], topic: [open/#, quiet/#]}
  - {allow: [publish, subscribe], qos: 0, topic: low/#}
"""


class Yours(Plugin):
    """A user's own plugin. It denies topics that contain "/no", and raises an exception for topics that contain
    "/broken".
    """

    def __init__(self) -> None:
        super().__init__(None, Context("yours"))

    @hookimpl
    def on_publish(self, message: Message) -> Deny | None:
        return self._opinion(message.topic)

    @hookimpl
    def on_subscribe(self, subscription: Subscription) -> Deny | None:
        return self._opinion(subscription.topic_filter)

    def _opinion(self, topic: str) -> Deny | None:
        if "/broken" in topic:
            raise RuntimeError("broken")
        return Deny() if "/no" in topic else None


class Answering:
    """A replacement for the connection to an HTTP service. It returns `answer`, or raises an exception if `answer` is
    None.
    """

    answer: Mapping[str, Any] | None = None

    def __init__(self, config: Any, now: Any) -> None:
        pass

    async def close(self) -> None: ...

    async def ask(self, request: Any) -> HttpAnswer:
        """Return the answer, in place of `hookmq_toolkit.http_client.HttpService.ask`."""
        if self.answer is None:
            raise Unavailable("dead")
        return HttpAnswer(200, json.dumps(self.answer).encode())


@dataclass
class World:
    """An in-memory broker, the folder with its files, and a recorder of the messages that the broker publishes."""

    folder: Path
    harness: Harness
    recorder: HookRecorder

    @property
    def published(self) -> int:
        """Return how many messages were published."""
        self.harness.settle()
        return len(self.recorder.calls("on_published"))

    def plugin(self, id: str) -> Any:
        """Return the plugin object."""
        instance = self.harness.hooks.instance(id)
        assert instance is not None
        return instance.plugin

    def write(self, name: str, text: str) -> None:
        """Replace a file and let the plugins notice the change."""
        new = self.folder / "new"
        new.write_text(text)
        new.chmod(0o600)
        new.replace(self.folder / name)
        self.harness.advance(6)


@dataclass(frozen=True)
class Setting:
    """A broker configuration that several rows share: the names of its plugins, and sections of settings."""

    plugins: tuple[str, ...] = ()
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    limits: tuple[Mapping[str, Any], ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)


def users(folder: Path, names: tuple[str, ...] = ("ann", "bob")) -> str:
    """Return the text of a password file."""
    entries = "".join(f"  {name}: {{hash: '{_hash()}'}}\n" for name in names)
    return f"version: 1\nusers:\n{entries}"


@cache
def _hash() -> str:
    return make(b"right", "yaml", CHEAP)


async def _dead(url: str, config: Any) -> bytes:
    raise FetchFailed("HTTP 500")


def _made(name: str, setting: Setting, folder: Path) -> Any:
    more = dict(setting.more)
    if name == "ratelimit":
        return make_plugin(RateLimitPlugin, {"limits": setting.limits, **more}, "ratelimit")
    if name == "auth_password":
        config: dict[str, Any] = {"path": folder / "users.yaml", "argon2": CHEAP, **more}
        return make_plugin(AuthPasswordPlugin, config, "auth_password")
    if name == "auth_jwt":
        keys = {} if "jwks_url" in more else {"secret": SECRET}
        made = make_plugin(AuthJwtPlugin, {**keys, **more}, "auth_jwt")
        for source in made.plugin.sources:  # type: ignore[attr-defined]
            if hasattr(source, "fetch"):
                source.fetch = _dead
        return made
    if name == "auth_http":
        asked = more.get("ask", ("authenticate",))
        endpoints = dict.fromkeys(asked, Endpoint("http://127.0.0.1:1/"))
        return make_plugin(AuthHttpPlugin, endpoints, "auth_http")
    if name == "acl_file":
        return make_plugin(AclFilePlugin, {"path": folder / "acl.yaml", **more}, "acl_file")
    return Yours()


@contextmanager
def world(setting: Setting) -> Iterator[World]:
    """Run a broker with this configuration."""
    with (
        TemporaryDirectory() as name,
        patch("hookmq_auth_http.plugin.make_service", Answering),
    ):
        folder = Path(name)
        (folder / "users.yaml").write_text(users(folder))
        (folder / "users.yaml").chmod(0o600)
        (folder / "acl.yaml").write_text(RULES)
        plugins = [_made(one, setting, folder) for one in setting.plugins]
        recorder = HookRecorder("on_published")
        with Harness([*plugins, recorder], config=setting.settings) as harness:
            yield World(folder, harness, recorder)


Act = Callable[[World, int, int], MemoryClient]
"""A function that takes (world, version, QoS) and does something that is denied. It returns the client, whose packets
are unread.
"""


@dataclass(frozen=True)
class Row:
    """A refusal: its description, the hook or setting that refuses, the broker, and the act that causes it."""

    title: str
    setting: Setting
    act: Act
    only_5: bool = False
    waits: bool = False
    """True if the refusal happens only after an hour."""


def seen(client: MemoryClient) -> str:
    """Describe a client's unread packets, and whether its connection was closed."""
    five = client.version == 5
    client.harness.settle()
    told = []
    for packet in client.unread:
        name = type(packet).__name__.upper()
        code = getattr(packet, "code", 0)
        if isinstance(packet, Suback):
            told.append(f"{name} " + " ".join(f"0x{one:02X}" for one in packet.codes))
        elif isinstance(packet, Connack) and not five:
            told.append(f"{name} {code}")
        elif isinstance(packet, Connack | Disconnect) or (
            five and isinstance(packet, Puback | Pubrec | Auth) and code >= 0x80
        ):
            told.append(f"{name} 0x{code:02X}")
        elif isinstance(packet, Puback | Pubrec | Pubcomp | Publish | Auth):
            told.append(name)
    client.unread.clear()
    if client.closed and not any(one.startswith(("CONNACK", "DISCONNECT")) for one in told):
        told.append("closed")
    return ", ".join(told) or "nothing"


# what clients do


def bearer(**claims: Any) -> dict[str, Any]:
    """Return credentials that consist of a token with these claims."""
    return {"username": "u", "password": token(claims or None, now=EPOCH)}


ANN: dict[str, Any] = {"username": "ann", "password": b"right"}


def connect(**given: Any) -> Act:
    """Return an act that connects with these arguments."""

    def act(world: World, version: int, qos: int) -> MemoryClient:
        return world.harness.connect("c", version, expect=None, **given)

    return act


def again(times: int, last: Mapping[str, Any] | None = None, **given: Any) -> Act:
    """Return an act that connects `times` times from one address. The act returns the last client."""

    def act(world: World, version: int, qos: int) -> MemoryClient:
        for number in range(times - 1):
            one = world.harness.connect(f"c{number}", version, expect=None, peer=HOME, **given)
            world.harness.settle()
            one.drop()
        return world.harness.connect("c", version, expect=None, peer=HOME, **(last or given))

    return act


def crowd(world: World, version: int, qos: int) -> MemoryClient:
    """Connect three clients at once to a broker that hashes one password at a time and lets only one more client wait."""
    with world.harness.together():
        clients = [
            world.harness.connect(
                f"c{n}", version, expect=None, username="ann", password=b"%d" % n, peer=HOME
            )
            for n in range(3)
        ]
    return clients[2]


def broken(fault: Any) -> Act:
    """Return an act that connects while the password plugin fails because of `fault`."""

    def act(world: World, version: int, qos: int) -> MemoryClient:
        world.harness.fail("auth_password", "on_connect", fault)
        client = world.harness.connect("c", version, expect=None, **ANN)
        world.harness.advance(60)
        return client

    return act


def _answers(answer: Mapping[str, Any] | None) -> None:
    Answering.answer = answer


def asking(answer: Mapping[str, Any] | None, then: Act) -> Act:
    """Return an act that first makes the HTTP service return `answer`, then performs `then`."""

    def act(world: World, version: int, qos: int) -> MemoryClient:
        _answers(answer)
        return then(world, version, qos)

    return act


def publish(topic: str, times: int = 1, **given: Any) -> Act:
    """Return an act that publishes to a topic `times` times. The act returns the client before reading the last
    response.
    """

    def act(world: World, version: int, qos: int) -> MemoryClient:
        client = world.harness.connect("c", version, **given)
        for _ in range(times - 1):
            client.publish(topic, b"x", qos)
        client.harness.settle()
        client.unread.clear()
        before = world.published
        client.publish(topic, b"x", qos)
        assert world.published == before, "it was denied, and yet published"
        return client

    return act


def undecided_publish(topic: str) -> Act:
    """Return an act that publishes once the HTTP service that admitted the client has failed."""

    def act(world: World, version: int, qos: int) -> MemoryClient:
        _answers({"result": "allow"})
        client = world.harness.connect("c", version, username="ann", password=b"x")
        _answers(None)
        client.publish(topic, b"x", qos)
        world.harness.advance(60)
        return client

    return act


def subscribe(filter: str, qos: int | None = None, times: int = 1, **given: Any) -> Act:
    """Return an act that subscribes to a filter `times` times. The act returns the client before reading the last
    response.
    """

    def act(world: World, version: int, asked: int) -> MemoryClient:
        client = world.harness.connect("c", version, **given)
        for number in range(times - 1):
            client.subscribe(f"open/{number}", 0)
        client.send_subscribe(filter, asked if qos is None else qos)
        return client

    return act


def undecided_subscribe(world: World, version: int, qos: int) -> MemoryClient:
    """Subscribe after the HTTP service that admitted the client has failed."""
    _answers({"result": "allow"})
    client = world.harness.connect("c", version, username="ann", password=b"x")
    _answers(None)
    client.send_subscribe("a", qos)
    world.harness.advance(60)
    return client


def deliver(topic: str, times: int = 1) -> Act:
    """Return an act that subscribes, and lets another client publish `times` messages. The act returns the subscriber
    before reading the last response.
    """

    def act(world: World, version: int, qos: int) -> MemoryClient:
        client = world.harness.connect("c", version)
        assert client.subscribe(topic, qos).codes == (qos,)
        sender = world.harness.connect("sender")
        for _ in range(times - 1):
            sender.publish(topic, b"x", qos)
        client.harness.settle()
        client.unread.clear()
        sender.publish(topic, b"x", qos)
        return client

    return act


# what happens to connected clients


def _there(world: World, version: int, **given: Any) -> MemoryClient:
    return world.harness.connect("c", version, **given)


def token_ends(world: World, version: int, qos: int) -> MemoryClient:
    """Let the token of a connected client expire."""
    client = _there(world, version, **bearer())
    world.harness.advance(3603)  # an hour, and then the leeway of 5 s
    client.expect_nothing()
    world.harness.advance(3)
    return client


def renewal(data: bytes) -> Act:
    """Return an act that reauthenticates with another token."""

    def act(world: World, version: int, qos: int) -> MemoryClient:
        mine = token(now=EPOCH)
        client = _there(
            world, version, authentication_method="JWT", authentication_data=mine, password=None
        )
        given = Properties(authentication_method="JWT", authentication_data=data)
        client.send(Auth(0x19, given))
        return client

    return act


def user_goes(world: World, version: int, qos: int) -> MemoryClient:
    """Remove the user of a connected client from the password file."""
    client = _there(world, version, **ANN)
    world.write("users.yaml", users(world.folder, ("bob",)))
    return client


def right_ends(world: World, version: int, qos: int) -> MemoryClient:
    """Remove the rule that allowed a subscription. After that, the client receives nothing more."""
    client = _there(world, version)
    assert client.subscribe("open/#", 1).codes == (1,)
    world.write("acl.yaml", 'rules:\n  - {allow: publish, topic: "#"}\n')
    world.harness.connect("sender").publish("open/a", b"x", 1)
    return client


def key_goes(world: World, version: int, qos: int) -> MemoryClient:
    """Withdraw the key that signed the client's token."""
    file = world.folder / "key"
    client = _there(world, version, **bearer())
    assert not file.exists()
    plugin = world.plugin("auth_jwt")
    plugin._withdraw(world.harness.handle("auth_jwt"), lambda key: True)
    return client


def credential_ends(world: World, version: int, qos: int) -> MemoryClient:
    """Let the credentials that the HTTP service granted for a limited time expire."""
    _answers({"result": "allow", "expires_at": EPOCH + 60})
    client = _there(world, version, username="ann", password=b"x")
    world.harness.advance(59)
    client.expect_nothing()
    world.harness.advance(2)
    return client


def ban(world: World, version: int, qos: int) -> MemoryClient:
    """Exceed the limit of two refusals, so that the client is banned."""
    client = _there(world, version)
    for _ in range(4):
        client.publish("a", b"x", 0)
    return client


def will_due(world: World, version: int, qos: int) -> MemoryClient:
    """Let a will come due after the permission granted at CONNECT has been revoked."""
    watcher = world.harness.connect("watcher")
    assert watcher.subscribe("open/#").codes == (0,)
    client = _there(world, version, will=will("open/will", b"x"))
    world.write("acl.yaml", "rules:\n  - {allow: subscribe, topic: open/#}\n")
    client.drop()
    world.harness.settle()
    assert not watcher.messages
    return watcher


CLOSED = {"auth": {"default": "deny"}}
RIGHTS = {"authz": {"default": "deny"}}
JWT = Setting(("auth_jwt",), CLOSED, more={"audience": "mqtt"})
PLAIN_JWT = Setting(("auth_jwt",), CLOSED)
PASSWORD = Setting(("auth_password",), CLOSED)
HTTP = Setting(("auth_http",), CLOSED)
HTTP_MAY = Setting(("auth_http",), CLOSED, more={"ask": ("authenticate", "authorize")})
ACL = Setting(("acl_file",), RIGHTS)
ACL_ENDS = Setting(("acl_file",), {**RIGHTS, "broker": {"mqtt3_denied_publish": "disconnect"}})


def limited(*limits: Mapping[str, Any], **more: Any) -> Setting:
    """Return a configuration with only the rate limit plugin."""
    return Setting(("ratelimit",), limits=limits, more=more)


CONNECT = (
    Row("too many sessions (`broker.max_sessions`)", Setting(settings={"broker": {"max_sessions": 1}}),
        lambda w, v, q: (w.harness.connect("first"), w.harness.connect("c", v, expect=None))[1]),
    Row("too many connections (`broker.max_connections`)",
        Setting(settings={"broker": {"max_connections": 1}}),
        lambda w, v, q: (w.harness.connect("first"), w.harness.open(v))[1]),
    Row("a version that the listener does not accept", Setting(),
        connect(scope=Scope(versions=frozenset()))),
    Row("no client certificate on a listener with `identity`", Setting(),
        connect(scope=Scope(identity="common_name"))),
    Row("**ratelimit**: connections", limited({"what": "connections", "rate": "1/h"}), again(2)),
    Row("**ratelimit**: banned", limited({"rate": "1/h", "mode": "reject"}, ban={"after": "1/h"}),
        lambda w, v, q: (ban(w, v, q), w.harness.connect("c", v, expect=None))[1]),
    Row("**ratelimit**: earlier wrong passwords",
        Setting(("ratelimit", "auth_password"), CLOSED, ({"what": "auth_failures", "rate": "1/h"},)),
        again(2, ANN, username="ann", password=b"wrong")),
    Row("**auth_password**: wrong password", PASSWORD, connect(username="ann", password=b"wrong")),
    Row("**auth_password**: no such user", PASSWORD, connect(username="eve", password=b"right")),
    Row("**auth_password**: no user name", PASSWORD, connect()),
    Row("**auth_jwt**: no token", JWT, connect()),
    Row("**auth_jwt**: a token with invalid form, signature or time", JWT,
        connect(username="u", password=token(now=EPOCH - 7200, aud="mqtt"))),
    Row("**auth_jwt**: a valid token for another audience", JWT, connect(**bearer(aud="web"))),
    Row("**auth_jwt**: no keys available",
        Setting(("auth_jwt",), CLOSED, more={"jwks_url": "https://idp.example/keys"}),
        connect(**bearer())),
    Row("**auth_http**: deny", HTTP,
        asking({"result": "deny"}, connect(username="ann", password=b"x"))),
    Row("**auth_http**: no response", HTTP, asking(None, connect(username="ann", password=b"x"))),
    Row("**auth_password**: too many passwords waiting",
        Setting(("auth_password",), CLOSED, more={"threads": 1, "queue": 1}), crowd),
    Row("a plugin that fails", PASSWORD, broken(RuntimeError())),
    Row("a plugin that does not respond in time", PASSWORD, broken("timeout")),
    Row("an unknown authentication method", PLAIN_JWT,
        connect(authentication_method="other"), only_5=True),
    Row("no plugin decides, and `auth.default` is `deny`", Setting(settings=CLOSED), connect()),
    Row("a will that is not allowed (**acl_file**)", ACL, connect(will=will("secret", b"x"))),
    Row("a will with a QoS that is not allowed (**acl_file**)", ACL,
        connect(will=will("low/a", b"x", 1))),
    Row("a will that is not allowed (**auth_jwt**)", PLAIN_JWT,
        connect(**bearer(acl={"publish": ["open/#"]}), will=will("secret", b"x"))),
)  # fmt: skip

PUBLISH = (
    Row("**ratelimit**, `throttle`", limited({"rate": "1/h"}), publish("a", 2), waits=True),
    Row("**ratelimit**, `reject`", limited({"rate": "1/h", "mode": "reject"}), publish("a", 2)),
    Row("**ratelimit**, `drop`", limited({"rate": "1/h", "mode": "drop"}), publish("a", 2), waits=True),
    Row("**ratelimit**, `disconnect`", limited({"rate": "1/h", "mode": "disconnect"}), publish("a", 2)),
    Row("a topic below `$SYS/`", Setting(), publish("$SYS/a")),
    Row("**acl_file**: no rule, or a rule that denies", ACL, publish("secret")),
    Row("the same, with `mqtt3_denied_publish: disconnect`", ACL_ENDS, publish("secret")),
    Row("**auth_jwt**: not in the `acl` claim", PLAIN_JWT,
        publish("secret", **bearer(acl={"publish": ["open/#"]}))),
    Row("**auth_http**: not in the permissions, or deny", HTTP,
        asking({"result": "allow", "permissions": {"publish": ["open/#"]}},
               publish("secret", username="ann", password=b"x"))),
    Row("**auth_http**: no response", HTTP_MAY, undecided_publish("a")),
    Row("no plugin decides, and `authz.default` is `deny`", Setting(settings=RIGHTS), publish("a")),
    Row("`on_publish` of a plugin denies", Setting(("yours",)), publish("a/no")),
    Row("a plugin that fails", Setting(("yours",)), publish("a/broken")),
)  # fmt: skip

SUBSCRIBE = (
    Row("too many subscriptions (`session.max_subscriptions`)",
        Setting(settings={"session": {"max_subscriptions": 1}}), subscribe("a", times=2)),
    Row("**ratelimit**", limited({"what": "subscriptions", "rate": "1/h"}), subscribe("a", times=2)),
    Row("**acl_file**: no rule contains it, or one denies a part of it", ACL, subscribe("#", 1)),
    Row("the same behind `$share/NAME/`", ACL, subscribe("$share/g/#", 1)),
    Row("**acl_file**: allowed up to QoS 0, asked for QoS 1", ACL, subscribe("low/#", 1)),
    Row("**auth_jwt**: not in the `acl` claim", PLAIN_JWT,
        subscribe("secret", 1, **bearer(acl={"subscribe": ["open/#"]}))),
    Row("**auth_http**: not in the permissions, or deny", HTTP,
        asking({"result": "allow", "permissions": {"subscribe": ["open/#"]}},
               subscribe("secret", 1, username="ann", password=b"x"))),
    Row("**auth_http**: no response", HTTP_MAY, undecided_subscribe),
    Row("no plugin decides, and `authz.default` is `deny`", Setting(settings=RIGHTS), subscribe("a", 1)),
    Row("`on_subscribe` of a plugin denies", Setting(("yours",)), subscribe("a/no", 1)),
    Row("a plugin that fails", Setting(("yours",)), subscribe("a/broken", 1)),
)  # fmt: skip

LATER = (
    Row("**auth_jwt**: the token expires", PLAIN_JWT, token_ends),
    Row("**auth_jwt**: the same, with `on_expiry: not_authorized`",
        Setting(("auth_jwt",), CLOSED, more={"on_expiry": "not_authorized"}), token_ends),
    Row("**auth_jwt**: a renewal that is refused", PLAIN_JWT, renewal(b"nonsense"), only_5=True),
    Row("**auth_jwt**: a renewal as another user", PLAIN_JWT,
        renewal(token({"sub": "other"}, now=EPOCH)), only_5=True),
    Row("**auth_jwt**: the key is withdrawn, `on_key_removed: disconnect`",
        Setting(("auth_jwt",), CLOSED, more={"on_key_removed": "disconnect"}), key_goes),
    Row("**auth_http**: `expires_at` has passed", HTTP, credential_ends),
    Row("**auth_password**: the user is removed from the file", PASSWORD, user_goes),
    Row("**acl_file**: a subscription is no longer allowed", ACL, right_ends),
    Row("the same, with `on_revoke: silent`",
        Setting(("acl_file",), {**RIGHTS, "broker": {"on_revoke": "silent"}}), right_ends),
    Row("**ratelimit**: banned", limited({"rate": "1/h", "mode": "reject"}, ban={"after": "1/h"}), ban),
    Row("**acl_file**: a message that may not be delivered", ACL, deliver("quiet/a")),
    Row("**ratelimit**: too many deliveries", limited({"what": "deliveries", "rate": "1/h"}),
        deliver("a", 2), waits=True),
    Row("a will that is no longer allowed when it is due (**acl_file**): its subscribers", ACL, will_due),
)  # fmt: skip

TABLES = {"connect": CONNECT, "publish": PUBLISH, "subscribe": SUBSCRIBE, "later": LATER}


@cache
def told(table: str, title: str, version: int, qos: int = 1) -> str:
    """Run a row and describe what the client observes."""
    [row] = [row for row in TABLES[table] if row.title == title]
    if row.only_5 and version != 5:
        return "-"
    with world(row.setting) as made:
        client = row.act(made, version, qos)
        found = seen(client)
        assert client.closed or table != "connect", "it was refused, and yet is there"
        if not row.waits:
            return found
        before = made.published
        made.harness.advance(3601)
        if made.published == before and table == "publish":
            return found
        assert found == "nothing"
        then = seen(client)
        return "waits" if then == "nothing" else f"waits, then {then}"


def render(table: str) -> str:
    """Return a table in the form in which the page shows it."""
    if table == "publish":
        columns = [(v, q) for v in (5, 4) for q in (0, 1, 2)]
        heads = [f"{VERSIONS[v]}, QoS {q}" for v, q in columns]
    else:
        columns = [(v, 1) for v in VERSIONS]
        heads = [VERSIONS[v] for v, _ in columns]
    lines = ["| | " + " | ".join(heads) + " |", "|" + "---|" * (len(heads) + 1)]
    for row in TABLES[table]:
        cells = [told(table, row.title, version, qos) for version, qos in columns]
        lines.append(f"| {row.title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def shown(table: str) -> str:
    """Return the table that the page currently contains."""
    return _place(table, PAGE.read_text())[1].strip("\n")


def _place(table: str, text: str) -> tuple[str, str, str]:
    before, mark, rest = text.partition(f"<!-- table: {table} -->\n")
    found, end, after = rest.partition("<!-- end -->")
    assert mark, table
    return before + mark, found, end + after


def main() -> None:
    """Write the tables into the page."""
    text = PAGE.read_text()
    for table in TABLES:
        before, _, after = _place(table, text)
        text = f"{before}{render(table)}\n{after}"
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
