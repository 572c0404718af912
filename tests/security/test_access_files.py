"""The access plugins deny if a file is missing, damaged or incomplete, at startup and while clients are connected.

Invalid configurations raise ConfigError, and error messages contain no secrets.
"""

import copy
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hookmq.config.model import loads
from hookmq.config.plugins import build
from hookmq.hooks.instance import PluginInstance
from hookmq.model.errors import ConfigError, PluginError
from hookmq.mqtt.errors import HookMQError
from hookmq_acl_file.plugin import AclFilePlugin
from hookmq_auth_jwt.plugin import AuthJwtPlugin
from hookmq_auth_password.plugin import AuthPasswordPlugin
from hookmq_testing import Harness, HookRecorder, make_plugin
from hookmq_testing.runtime import EPOCH
from hookmq_toolkit.passwords.hashes import Argon2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from passwords import ALICE, BOB, MOSQUITTO
from tokens import jwk, jwks, pem, token
from workspace import ROOT

CLOSED = {"auth": {"default": "deny"}, "authz": {"default": "deny"}}
OPEN = {"auth": {"default": "allow"}, "authz": {"default": "deny"}}
BIG = "x" * (65 << 20)


class Kind:
    """A plugin with a file: the contents of the file and the permissions it grants."""

    def __init__(
        self,
        plugin: Any,
        config: dict[str, Any],
        key: str,
        text: str,
        settings: Any,
        credentials: Callable[[bool], dict[str, Any]],
        told: str,
    ) -> None:
        self.plugin, self.config, self.key, self.text = plugin, config, key, text
        self.settings, self.credentials, self.told = settings, credentials, told

    def make(self, file: Path) -> PluginInstance:
        return make_plugin(self.plugin, {**self.config, self.key: file}, "it")


def _password(right: bool) -> dict[str, Any]:
    return {"username": "alice", "password": b"secret" if right else b"wrong"}


def _token(right: bool) -> dict[str, Any]:
    claims = {"acl": {"publish": ["open"]}}
    return {
        "username": "u",
        "password": token(
            claims, "RS256", now=EPOCH, number=0 if right else 1, header={"kid": "k0"}
        ),
    }


def _anybody(right: bool) -> dict[str, Any]:
    return {"username": "alice" if right else "eve"}


CHEAP = Argon2(1 << 20, 1, 1)
USERS = f"version: 1\nusers:\n  alice: {{hash: '{ALICE}'}}\n  bob: {{hash: '{BOB}'}}\n"
RULES = "rules:\n  - {allow: publish, who: {user: alice}, topic: open}\n"
KINDS = {
    "users": Kind(AuthPasswordPlugin, {"argon2": CHEAP}, "path", USERS, CLOSED, _password, "auth_password.reload_failed"),
    "users of mosquitto": Kind(
        AuthPasswordPlugin, {"format": "mosquitto"}, "path", MOSQUITTO, CLOSED, _password, "auth_password.reload_failed"
    ),
    "rules": Kind(AclFilePlugin, {}, "path", RULES, OPEN, _anybody, "acl.file_bad"),
    "rules of mosquitto": Kind(
        AclFilePlugin, {"format": "mosquitto"}, "path", "user alice\ntopic write open\n", OPEN, _anybody, "acl.file_bad"
    ),
    "keys, PEM": Kind(AuthJwtPlugin, {}, "pem", pem("RSA 2048"), CLOSED, _token, "jwt.file_refused"),
    "keys, JWKS": Kind(
        AuthJwtPlugin, {}, "jwks_file", jwks(jwk("RSA 2048", "k0")).decode(), CLOSED, _token, "jwt.file_refused"
    ),
}  # fmt: skip


def _half(file: Path) -> None:
    # Cut in the middle of a line.
    text = file.read_bytes()
    middle = len(text) // 2
    if text[middle - 1 : middle] == b"\n":
        middle += 1
    file.write_bytes(text[:middle])


def _folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def _link(file: Path) -> None:
    file.unlink()
    file.symlink_to("nowhere")


DAMAGE: dict[str, Callable[[Path], object]] = {
    "deleted": Path.unlink,
    "empty": lambda file: file.write_bytes(b""),
    "half": _half,
    "bytes": lambda file: file.write_bytes(b"\xff\xfe\x00" * 100),
    "zeroes": lambda file: file.write_bytes(bytes(file.stat().st_size)),
    "nonsense": lambda file: file.write_text("{[not: what, it] was}\n"),
    "a folder": _folder,
    "a link to nowhere": _link,
    "enormous": lambda file: file.write_text(BIG),
}
CASES = [(kind, damage) for kind in KINDS for damage in DAMAGE]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "file"


def write(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o600)


@pytest.mark.parametrize(("name", "damage"), CASES)
def test_at_start_the_plugin_is_not_made(file: Path, name: str, damage: str) -> None:
    kind = KINDS[name]
    write(file, kind.text)
    kind.make(file)
    DAMAGE[damage](file)
    with pytest.raises(PluginError) as found:
        kind.make(file)
    # `hookmq serve` exits. The error names the plugin and the file, and for `auth_jwt` also the key that contains the
    # file's name.
    assert isinstance(found.value.__cause__, ConfigError)
    place = f"plugins[0].config.{kind.key}: " if kind.plugin is AuthJwtPlugin else ""
    assert str(found.value).startswith(f"plugin 'it': {place}{file}:")
    assert "Traceback (most recent" not in str(found.value)
    for secret in (ALICE, BOB, ALICE[-20:], BOB[-20:]):
        assert secret not in str(found.value)


def can(harness: Harness, name: str, version: int, right: bool, client_id: str) -> set[str]:
    """Return the actions that a client may perform."""
    client = harness.connect(client_id, version, expect=None, **KINDS[name].credentials(right))
    harness.advance(1)
    if client.connack is None or client.connack.code:
        return set()
    found = {"connect"}
    before = len(harness.hooks.instance("seen").plugin.calls("on_published"))  # type: ignore[union-attr]
    client.publish("open", b"x", 1)
    client.publish("shut", b"x", 1)
    harness.settle()
    after = harness.hooks.instance("seen").plugin.calls("on_published")[before:]  # type: ignore[union-attr]
    return found | {call.message.topic for call in after}


@pytest.mark.parametrize(
    ("name", "damage", "version"),
    [
        (name, damage, v)
        for name, damage in CASES
        for v in (3, 4, 5)
        if v == 5 or damage != "enormous"
    ],
)
def test_while_clients_are_there_the_last_good_file_holds(
    file: Path, name: str, damage: str, version: int
) -> None:
    kind = KINDS[name]
    write(file, kind.text)
    seen = HookRecorder("on_published", id="seen")
    instance = kind.make(file)
    with Harness([instance, seen], config=kind.settings, start=False) as harness:
        instance.plugin.context = type(instance.plugin.context)("it", "it", "0", harness.clock.log)
        harness.start()
        passwords = kind.plugin is AuthPasswordPlugin
        yes = {"connect"} if passwords else {"connect", "open"}
        no = set() if kind.settings is CLOSED else {"connect"}
        there = harness.connect("there", version, **kind.credentials(True))
        assert can(harness, name, version, True, "a") == yes
        assert can(harness, name, version, False, "b") == no
        DAMAGE[damage](file)
        harness.advance(30)
        there.expect_nothing()
        assert can(harness, name, version, True, "c") == yes
        assert can(harness, name, version, False, "d") == no
        assert len(harness.logged(kind.told)) == 1
        said = repr(harness.logs)
        assert ALICE[-20:] not in said
        assert BOB[-20:] not in said
        if file.is_dir():
            file.rmdir()
        elif file.is_symlink():
            file.unlink()
        write(file, kind.text + "\n")
        harness.advance(30)
        there.expect_nothing()
        assert can(harness, name, version, True, "e") == yes


# -- half of the example's configuration


def test_no_beginning_of_the_example_is_open(tmp_path: Path) -> None:
    """A truncated configuration grants nothing that the whole one denies.

    Either the truncated configuration is invalid, or it still denies everything that no plugin decides.
    """
    source = ROOT / "examples" / "secure"
    for name in ("acl.yaml", "devices.yaml", "users.yaml"):
        shutil.copy(source / name, tmp_path / name)
    (tmp_path / "secret.txt").write_text("s" * 64)
    text = (source / "hookmq.yaml").read_text()
    read = 0
    for end in range(0, len(text), 3):
        try:
            config = loads(text[:end], environ={}, folder=tmp_path)
        except ConfigError:
            continue
        read += 1
        assert (config.auth.default, config.authz.default) == ("deny", "deny")
    assert read > 50


# -- any configuration at all

VALID: dict[str, dict[str, Any]] = {
    "auth_password": {
        "path": "users.yaml", "format": "yaml", "anonymous": "deny", "unknown": "ignore", "passwordless": "deny",
        "certificate": "enough", "password_limit": 100, "threads": 1, "queue": 5, "cache_time": "1m", "cache_size": 10,
        "reload_interval": "2s", "disconnect": "rights", "upgrade": False,
        "argon2": {"memory": "8MiB", "passes": 1, "lanes": 1},
    },
    "auth_jwt": {
        "keys": [{"secret": "s3cret-" * 10, "kid": "a", "algorithms": ["HS256"]}], "issuer": ["x"], "audience": "y",
        "algorithms": ["HS256"], "jwks": {"refresh": "5m", "max_keys": 3}, "token_in": "password", "method": "JWT",
        "required": {"sub": "${clientid}"}, "identity": "${sub}", "groups": ["a.b"], "acl": "acl", "max_rules": 5,
        "on_expiry": "not_authorized", "leeway": "1s",
    },
    "auth_http": {
        "contract": "hookmq", "authenticate": {
            "url": "http://127.0.0.1/x", "method": "post", "format": "json",
            "headers": {"Authorization": "s3cret-header"},
            "body": {"a": "${username}"},
        },
        "authorize": {"url": "http://127.0.0.1/y"}, "timeout": "1s", "retries": 1, "max_parallel": 3, "cache": "1s",
        "breaker_failures": 3, "max_answer": "1KiB", "plain_http": False,
    },
    "acl_file": {"path": "acl.yaml", "format": "yaml", "reload_interval": "2s", "no_match": "deny", "explain": True},
    "ratelimit": {
        "limits": [
            {"what": "publishes", "per": "client", "rate": "1/s, 5/min", "mode": "throttle", "filters": ["a/#"]},
            {"what": "connections", "rate": "5/s", "burst": 3},
        ],
        "ban": {"after": "3/min", "duration": "1m"}, "flapping": {"after": "3/min"}, "ipv4_prefix": 24, "max_keys": 10,
        "exempt": {"users": ["a*"], "networks": ["10.0.0.0/8"], "listeners": ["tcp"], "client_ids": ["x"]},
    },
}  # fmt: skip
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.floats() | st.text(max_size=12)
    | st.sampled_from(
        ["", "0", "-1s", "1h", "999999999d", "1/s", "0/0s", "1e999/s", "a/#/b", "$share/g/a", "#", "${", "${a}", "${}",
         "%c", "http://x/", "https://${username}/", "http://[", "file:///etc/passwd", "users.yaml", "acl.yaml", "/",
         ".", "nowhere", "deny", "allow", "none", "HS256", "\x00", "\ud7ff", "10.0.0.0/99", "::/0", "64KiB",
         "9" * 400]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, one in inner:
        yield from _places(one, (*path, key))


@pytest.mark.parametrize("name", VALID)
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_configuration_is_good_or_an_error_of_ours(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp() / "fuzzed"
    if not folder.exists():
        folder.mkdir()
        write(folder / "users.yaml", USERS)
        write(folder / "acl.yaml", RULES)
    config = copy.deepcopy(VALID[name])
    for key in ("path",):
        if key in config:
            config[key] = str(folder / config[key])
    for _ in range(data.draw(st.integers(0, 3))):
        places = list(_places(config))
        *path, last = data.draw(st.sampled_from(places))
        inner: Any = config
        for key in path:
            inner = inner[key]
        what = data.draw(st.sampled_from(["change", "remove", "add"]))
        if what == "change":
            inner[last] = data.draw(VALUES)
        elif what == "remove":
            del inner[last]
        elif isinstance(inner, dict):
            inner[data.draw(st.text(max_size=8))] = data.draw(VALUES)
        if not config:
            return
    text = json.dumps(
        {
            "version": 1,
            "listeners": [{"name": "tcp", "bind": "127.0.0.1:0"}],
            "plugins": [{"use": name, "config": config}],
        }
    )
    try:
        made = build(loads(text, environ={}, folder=folder))
    except HookMQError as error:  # PluginError if the plugin's constructor found the problem
        said = str(error)
        if name == "auth_jwt":
            assert "s3cret" not in said
    else:
        assert len(made) == 1


@pytest.mark.parametrize("name", VALID)
def test_the_configuration_that_is_fuzzed_is_good(tmp_path: Path, name: str) -> None:
    write(tmp_path / "users.yaml", USERS)
    write(tmp_path / "acl.yaml", RULES)
    config = dict(VALID[name])
    if "path" in config:
        config["path"] = str(tmp_path / config["path"])
    entry = {"use": name, "config": config}
    listeners = [{"name": "tcp", "bind": "127.0.0.1:0"}]
    text = json.dumps({"version": 1, "listeners": listeners, "plugins": [entry]})
    assert len(build(loads(text, environ={}, folder=tmp_path))) == 1
