"""Test which clients may connect to an in-memory broker, in every MQTT version."""

from pathlib import Path
from typing import Any, ClassVar

import pytest
from hookmq.plugin import Accept, Certificate, ConfigError, Connect, MetricRegistry, Peer, Scope
from hookmq_auth_password.config import AuthPasswordConfig
from hookmq_auth_password.plugin import AuthPasswordPlugin
from hookmq_testing import Harness, HookRecorder, PluginContract, PluginInstance, make_plugin
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from passwords import ALICE, CHEAP, USERS, Make, Verified, cheap, of

CODES = {
    "wrong": {5: 0x86, 4: 4, 3: 4},
    "nobody": {5: 0x87, 4: 5, 3: 5},
    "busy": {5: 0x89, 4: 3, 3: 3},
}
OK = {5: 0, 4: 0, 3: 0}
VERSIONS = pytest.mark.parametrize("version", [3, 4, 5])


class TestContract(PluginContract):
    kind = AuthPasswordPlugin
    use = "auth_password"
    configs: ClassVar[Any] = (
        {},
        {"anonymous": "ignore", "unknown": "ignore"},
        {"anonymous": "allow", "passwordless": "allow", "disconnect": "changed", "upgrade": True},
        {"cache_time": 0, "reload_interval": 0, "threads": 1, "queue": 1},
    )
    bad_configs: ClassVar[Any] = (
        {"paht": "x"},
        {"path": "/does/not/exist"},
        {"format": "mosquitto"},
        {"format": "htpasswd"},
        {"upgrade": True, "reload_interval": 0},
        {"reload_interval": 0.01},
        {"anonymous": "yes"},
    )

    @pytest.fixture(autouse=True)
    def _file(self, file: Path) -> None:
        file.write_text(USERS.replace("alice:", f"user:\n    hash: '{ALICE}'\n  alice:"))
        self.file = file

    def instance(self, config: Any, id: str = "") -> PluginInstance:
        return super().instance({"path": self.file, "argon2": CHEAP, **config}, id)


MATRIX = [
    ("alice", b"secret", "", OK),
    ("alice", b"wrong", "", CODES["wrong"]),
    ("alice", b"secret ", "", CODES["wrong"]),
    ("alice", b"secret\0", "", CODES["wrong"]),
    ("alice", b"", "", CODES["wrong"]),
    ("alice", None, "", CODES["wrong"]),
    ("Alice", b"secret", "", CODES["wrong"]),
    ("nobody", b"secret", "", CODES["wrong"]),
    ("nobody", b"", "", CODES["wrong"]),
    ("nobody", None, "", CODES["wrong"]),
    ("", b"secret", "", CODES["wrong"]),
    ("", None, "", CODES["wrong"]),
    ("carol", b"secret", "", CODES["wrong"]),
    ("door", None, "", CODES["wrong"]),
    ("door", b"", "", CODES["wrong"]),
    ("door", b"secret", "", CODES["wrong"]),
    ("door", None, "passwordless", OK),
    ("door", b"", "passwordless", CODES["wrong"]),
    ("door", b"secret", "passwordless", CODES["wrong"]),
    ("alice", None, "passwordless", CODES["wrong"]),
    ("alice", b"", "passwordless", CODES["wrong"]),
    ("carol", None, "passwordless", CODES["wrong"]),
    ("nobody", None, "passwordless", CODES["wrong"]),
    (None, None, "", CODES["nobody"]),
    (None, None, "anonymous", OK),
]


@VERSIONS
@pytest.mark.parametrize(("name", "password", "allowed", "codes"), MATRIX)
def test_the_matrix(
    broker: Make, version: int, name: str | None, password: bytes | None, allowed: str, codes: Any
) -> None:
    harness = broker(**({allowed: "allow"} if allowed else {}))
    client = harness.connect("c", version, username=name, password=password, expect=codes[version])
    assert client.closed == bool(codes[version])


@pytest.mark.parametrize("anonymous", ["deny", "ignore", "allow"])
def test_a_password_without_a_user_name(broker: Make, anonymous: str) -> None:
    """A password without a user name, which MQTT 5 allows for tokens, does not make a client
    anonymous.
    """
    harness = broker(anonymous=anonymous)
    harness.connect("c", password=b"token", expect=0x87)
    [(result, count)] = [(k, v) for k, v in of(harness).counts.results.items() if v]
    assert (result, count) == ("ignored" if anonymous == "ignore" else "no_user_name", 1)


def test_identity_groups_and_claims(broker: Make) -> None:
    harness = broker()
    for _ in range(2):  # the second from the cache
        harness.connect("c", username="alice", password=b"secret")
        info = harness.handle("users").client("c")
        assert info is not None
        assert info.identity == "alice"
        assert info.claims == {"groups": ["meters", "admins"], "tenant": "acme", "level": 3}


@pytest.mark.parametrize("key", ["unknown", "anonymous"])
def test_ignore_leaves_it_to_others(file: Path, key: str) -> None:
    other = HookRecorder("on_connect")
    mine = make_plugin(AuthPasswordPlugin, {"path": file, key: "ignore"}, "users")
    with Harness([mine, other], config={"auth": {"default": "deny"}}) as harness:
        given: Any = {"username": "nobody", "password": b"x"} if key == "unknown" else {}
        harness.connect("c", **given, expect=0x87)
        other.answer("on_connect", Accept("somebody"))
        harness.connect("c", **given)
        harness.connect("d", username="alice", password=b"wrong", expect=0x86)
        harness.connect("e", username="carol", password=b"secret", expect=0x86)


def test_another_authentication_method_is_left_alone(file: Path) -> None:
    other = HookRecorder("on_auth")
    mine = make_plugin(AuthPasswordPlugin, {"path": file}, "users")
    with Harness([mine, other], config={"auth": {"default": "deny"}}) as harness:
        harness.connect("c", authentication_method="X", expect=0x8C)
        other.answer("on_auth", Accept("somebody"))
        harness.connect("c", authentication_method="X")


CERTIFIED = Scope("tls", identity="common_name")


@pytest.mark.parametrize(
    ("certificate", "name", "password", "code"),
    [
        ("password", "alice", b"secret", 0),
        ("password", "alice", None, 0x86),
        ("password", "alice", b"wrong", 0x86),
        ("password", "door", None, 0x86),
        ("enough", "alice", None, 0),
        ("enough", "alice", b"wrong", 0),
        ("enough", "door", None, 0),
        ("enough", "carol", None, 0x86),
        ("enough", "nobody", None, 0x86),
    ],
)
def test_certificates(
    broker: Make, certificate: str, name: str, password: bytes | None, code: int
) -> None:
    """The user name comes from the certificate, even if CONNECT contains another one."""
    harness = broker(certificate=certificate)
    peer = Peer("192.0.2.1", 1, "tls", Certificate(common_name=name))
    harness.connect("c", username="bob", password=password, scope=CERTIFIED, peer=peer, expect=code)


def test_a_listener_without_certificates_never_gets_in_without_a_password(broker: Make) -> None:
    harness = broker(certificate="enough")
    peer = Peer("192.0.2.1", 1, "tls", Certificate(common_name="alice"))
    harness.connect("c", username="alice", peer=peer, expect=0x86)
    harness.connect("c", scope=CERTIFIED, expect=0x87)


# both failures take the same time


def test_an_unknown_user_is_as_much_work_as_a_wrong_password(
    broker: Make, verified: Verified
) -> None:
    harness = broker()
    for name in ("alice", "nobody", "carol", "door", ""):
        before = len(verified.calls)
        harness.connect("c", username=name, password=b"wrong", expect=0x86)
        [(hash, password)] = verified.calls[before:]
        assert password == b"wrong"
        assert (hash.scheme, hash.cost) == ("argon2id", (1024, 1, 1))


def test_the_answers_are_the_same(broker: Make) -> None:
    harness = broker()
    answers = {
        repr(harness.connect("c", version, username=name, password=b"wrong", expect=None).connack)
        for version in (3, 4)
        for name in ("alice", "nobody", "carol", "door")
    }
    assert len(answers) == 1
    five = {
        repr(harness.connect("c", 5, username=name, password=b"wrong", expect=None).connack)
        for name in ("alice", "nobody", "carol", "door")
    }
    assert len(five) == 1


def test_in_a_file_without_users_it_is_as_well(
    broker: Make, verified: Verified, file: Path
) -> None:
    file.write_text("version: 1\nusers:\n")
    broker().connect("c", username="nobody", password=b"x", expect=0x86)
    [(hash, _)] = verified.calls
    assert hash.cost == (1024, 1, 1)


def test_the_decoys_password_lets_nobody_in(broker: Make, file: Path) -> None:
    """If a user does not exist, the password is checked against the hash of a decoy user. A client that knows the
    decoy's password must not be accepted.
    """
    file.write_text(f"version: 1\nusers:\n  alice: {{hash: '{ALICE}'}}\n  none: {{hash: null}}\n")
    harness = broker()
    for name in ("nobody", "none"):
        for _ in range(2):
            harness.connect("c", username=name, password=b"secret", expect=0x86)
    assert len(of(harness).cache) == 0


def test_one_name_always_gets_the_same_decoy(broker: Make, verified: Verified, file: Path) -> None:
    hashes = [cheap(b"x") for _ in range(20)]
    file.write_text(
        "version: 1\nusers:\n" + "".join(f"  u{i}: {{hash: '{h}'}}\n" for i, h in enumerate(hashes))
    )
    harness = broker()
    for _ in range(5):
        harness.connect("c", username="nobody", password=b"wrong", expect=0x86)
    assert len({hash for hash, _ in verified.calls}) == 1
    for number in range(20):
        harness.connect("c", username=f"nobody{number}", password=b"wrong", expect=0x86)
    assert len({hash for hash, _ in verified.calls}) > 5


# the cache


def test_a_right_password_is_remembered_for_a_minute(broker: Make, verified: Verified) -> None:
    harness = broker(cache_time=60.0)
    for _ in range(3):
        harness.connect("c", username="alice", password=b"secret")
    assert len(verified.calls) == 1
    harness.connect("c", username="alice", password=b"wrong", expect=0x86)
    harness.connect("c", username="bob", password=b"secret", expect=0x86)
    assert len(verified.calls) == 3
    harness.advance(59)
    harness.connect("c", username="alice", password=b"secret")
    assert len(verified.calls) == 3
    harness.advance(1)
    harness.connect("c", username="alice", password=b"secret")
    assert len(verified.calls) == 4


def test_the_cache_lets_no_disabled_user_in(broker: Make) -> None:
    harness = broker()
    plugin = of(harness)
    carol = plugin.users.get("carol")
    assert carol is not None
    assert carol.hash is not None
    plugin.cache.add(plugin.cache.key("carol", carol.hash, b"secret"), "carol", 0)
    harness.connect("c", username="carol", password=b"secret", expect=0x86)


def test_a_wrong_password_is_not_remembered(broker: Make, verified: Verified) -> None:
    harness = broker()
    for _ in range(3):
        harness.connect("c", username="alice", password=b"wrong", expect=0x86)
    assert len(verified.calls) == 3


def test_the_cache_may_be_off(broker: Make, verified: Verified) -> None:
    harness = broker(cache_time=0.0)
    for _ in range(3):
        harness.connect("c", username="alice", password=b"secret")
    assert len(verified.calls) == 3


def test_many_with_one_password_at_once_cost_one_hash(broker: Make, verified: Verified) -> None:
    harness = broker(queue=1, threads=1)
    with harness.together():
        clients = [
            harness.connect(f"c{n}", username="alice", password=b"secret", expect=None)
            for n in range(50)
        ]
    assert all(client.connack is not None and client.connack.code == 0 for client in clients)
    assert len(verified.calls) == 1


# too many


@VERSIONS
def test_beyond_the_queue_the_server_is_busy(
    broker: Make, version: int, verified: Verified
) -> None:
    harness = broker(threads=1, queue=2)
    with harness.together():
        clients = [
            harness.connect(
                f"c{n}", version, username="alice", password=b"wrong%d" % n, expect=None
            )
            for n in range(6)
        ]
    codes = [client.connack.code for client in clients if client.connack is not None]
    wrong, busy = CODES["wrong"][version], CODES["busy"][version]
    assert codes == [wrong] * 3 + [busy] * 3
    assert len(verified.calls) == 3
    assert of(harness).counts.results["busy"] == 3
    harness.connect("d", version, username="alice", password=b"secret")


def test_a_client_that_leaves_is_not_hashed_for(broker: Make, verified: Verified) -> None:
    harness = broker(threads=1)
    with harness.together():
        clients = [
            harness.connect(f"c{n}", username="alice", password=b"wrong%d" % n, expect=None)
            for n in range(10)
        ]
        harness.clock.turn()
        harness.clock.turn()
        assert of(harness).waiting == 9
        for client in clients[5:]:
            client.drop()
        harness.clock.turn()
    assert len(verified.calls) == 5
    assert (of(harness).hashing, of(harness).waiting) == (0, 0)


def test_a_hash_that_fails_denies(
    broker: Make, verified: Verified, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(hash: object, password: bytes) -> bool:
        raise MemoryError("no memory")

    monkeypatch.setattr("hookmq_auth_password.plugin.verify", broken)
    harness = broker()
    for name in ("alice", "nobody"):
        harness.connect("c", username=name, password=b"secret", expect=0x88)
    monkeypatch.setattr("hookmq_auth_password.plugin.verify", verified)
    harness.connect("c", username="alice", password=b"secret")


# known vulnerabilities of other brokers


def test_cve_2016_9877_an_absent_or_empty_password_is_no_password(broker: Make, file: Path) -> None:
    """RabbitMQ accepted a user name without a password (CVE-2016-9877). The test also uses a hash
    of the empty password.
    """
    file.write_text(USERS + f"  empty:\n    hash: '{cheap(b'')}'\n")
    harness = broker(passwordless="allow")
    for version in (3, 4, 5):
        for name in ("alice", "empty", "nobody"):
            for password in (None, b""):
                code = CODES["wrong"][version]
                harness.connect("c", version, username=name, password=password, expect=code)


def test_a_very_long_password_is_not_hashed(broker: Make, verified: Verified) -> None:
    harness = broker(password_limit=100)
    for name in ("alice", "nobody"):
        harness.connect("c", username=name, password=b"x" * 60000, expect=0x86)
        harness.connect("c", username=name, password=b"x" * 101, expect=0x86)
    assert verified.calls == []
    harness.connect("c", username="alice", password=b"x" * 100, expect=0x86)
    assert len(verified.calls) == 1


@pytest.mark.parametrize("version", [4, 5])
def test_nul_in_a_user_name(broker: Make, version: int) -> None:
    """The decoder refuses a user name with NUL. No password file can contain such a name, and the plugin would not find
    the user.
    """
    harness = broker()
    client = harness.open(version)
    protocol = b"\0\4MQTT" + bytes([version, 0xC2, 0, 0]) + (b"\0" if version == 5 else b"")
    body = protocol + b"\0\1c" + b"\0\7alice\0x" + b"\0\6secret"
    client.raw(b"\x10" + bytes([len(body)]) + body)
    assert client.closed
    assert harness.handle("users").sessions().items == ()
    assert of(harness).users.get("alice\0") is None
    assert of(harness).users.get("alice\0x") is None


def test_names_are_compared_as_they_are(broker: Make, file: Path) -> None:
    file.write_text(f"version: 1\nusers:\n  \u00e9: {{hash: '{ALICE}'}}\n")
    harness = broker()
    harness.connect("c", username="\u00e9", password=b"secret")
    for other in ("e\u0301", "\u00c9", "\u00e9 ", "\uff45\u0301"):
        harness.connect("c", username=other, password=b"secret", expect=0x86)


@pytest.mark.parametrize(
    "name", ["__class__", "users", "version", "../alice", "alice:x", "$SYS", "+", "#"]
)
def test_names_with_a_meaning_elsewhere(broker: Make, name: str) -> None:
    broker().connect("c", username=name, password=b"secret", expect=0x86)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(["alice", "bob", "carol", "door", "nobody", "", "Alice"]),
    password=st.none() | st.binary(max_size=12) | st.sampled_from([b"secret", b"hunter2"]),
)
def test_only_the_right_one_is_right(broker: Make, name: str, password: bytes | None) -> None:
    harness = broker()
    right = (name, password) in (("alice", b"secret"), ("bob", b"hunter2"))
    harness.connect("c", username=name, password=password, expect=0 if right else 0x86)
    harness.close()


# secrets stay secret


def test_secrets_are_told_nowhere(broker: Make, file: Path, capfd: Any) -> None:
    harness = broker(upgrade=True)
    registry = MetricRegistry()
    plugin = of(harness)
    plugin.register_metrics(registry)
    for name, password in (("alice", b"secret"), ("alice", b"geheim"), ("nobody", b"geheim")):
        harness.connect(
            f"c{len(name)}{len(password)}", username=name, password=password, expect=None
        )
    handle = harness.handle("users")
    client = handle.client(handle.sessions(connected=True).items[0].client_id)
    assert client is not None
    file.write_text(USERS.replace(ALICE, ALICE[:-3] + "!!!"))
    harness.advance(10)
    assert plugin.counts.reloads["failed"] == 1
    told = [
        repr(harness.logs), registry.text(), repr(plugin), repr(plugin.config), repr(client), repr(client.state),
        repr(list(plugin.users)), repr(Connect("c", 5, True, 0, "alice", b"geheim")), "".join(capfd.readouterr()),
    ]  # fmt: skip
    for text in told:
        for secret in (
            "geheim",
            "hunter2",
            ALICE,
            ALICE.rpartition("$")[2][:20],
            ALICE.split("$")[-2],
        ):
            assert secret not in text
    assert "nobody" not in registry.text()


def test_metrics(broker: Make) -> None:
    harness = broker()
    registry = MetricRegistry()
    of(harness).register_metrics(registry)
    for name, password in (
        ("alice", b"secret"),
        ("alice", b"secret"),
        ("x", b"y"),
        ("bob", b"z"),
        ("carol", b"secret"),
    ):
        harness.connect("c", username=name, password=password, expect=None)
    values = dict(line.rsplit(" ", 1) for line in registry.text().splitlines() if line[:1] != "#")
    for result in ("accepted", "cached", "unknown_user", "wrong_password", "disabled"):
        assert values[f'hookmq_auth_password_connects_total{{result="{result}"}}'] == "1"
    assert values["hookmq_auth_password_hash_seconds_count"] == "4"
    assert float(values["hookmq_auth_password_hash_seconds_sum"]) > 0
    assert values['hookmq_auth_password_users{scheme="argon2id"}'] == "3"
    assert values['hookmq_auth_password_users{scheme="none"}'] == "1"
    assert values["hookmq_auth_password_cached"] == "1"
    assert values["hookmq_auth_password_file_good"] == "1"


def test_metrics_before_the_start(file: Path) -> None:
    registry = MetricRegistry()
    plugin = make_plugin(AuthPasswordPlugin, {"path": file}).plugin
    assert isinstance(plugin, AuthPasswordPlugin)
    plugin.register_metrics(registry)
    assert "hookmq_auth_password_hashing 0" in registry.text()


def test_the_configuration_is_whole(file: Path) -> None:
    for bad in (
        {"upgrade": True, "reload_interval": 0},
        {"reload_interval": 0.05},
        {"disconnect": "x"},
    ):
        with pytest.raises(ConfigError):
            AuthPasswordConfig(path=file, **bad)
