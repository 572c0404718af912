"""Test the command ``hookmq jwt``."""

import dataclasses
import io
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hookmq.plugin import HookMQError
from hookmq_auth_jwt.config import FetchConfig, JwtConfig, KeyConfig
from hookmq_auth_jwt.plugin import AuthJwtPlugin
from hookmq_testing import load_plugins, run_command
from hypothesis import given, settings
from hypothesis import strategies as st
from tokens import SECRET, jwk, jwks, pem, private, token


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "secret.txt").write_text(SECRET + "\n")
    path = tmp_path / "hookmq.yaml"
    path.write_text(
        "version: 1\nlisteners: [{name: tcp, bind: '127.0.0.1:0'}]\nplugins:\n"
        "  - use: auth_jwt\n    config:\n      secret: {$file: secret.txt}\n      issuer: me\n"
        "      required: {sub: '${clientid}'}\n"
    )
    monkeypatch.chdir(tmp_path)
    return path


class Shell:
    """Runs a command. `out` contains its output."""

    def __init__(self, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys = capsys
        self._monkeypatch = monkeypatch
        self.out = self.err = ""

    def __call__(self, *words: str, stdin: bytes = b"") -> int:
        self._monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(stdin)))
        code = run_command(["jwt", *words])
        told = self._capsys.readouterr()
        self.out, self.err = told.out, told.err
        return code


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(capsys, monkeypatch)


def test_check_accepts(config: Path, shell: Shell) -> None:
    data = token({
        "sub": "pump", "iss": "me", "groups": ["a"], "limits": {"queue_messages": 5},
        "acl": {"publish": ["x/%c/#"], "deny": ["y"]},
    })  # fmt: skip
    assert shell("check", "-c", str(config), "--client-id", "pump", stdin=data + b"\n") == 0
    for text in ("accepted", "identity  pump", "groups    a", "allow publish, will: x/%c/#", "queue_messages=5",
                 "deny deliver, publish, subscribe, will: y (claim acl.deny[0])", '"alg": "HS256"'):  # fmt: skip
        assert text in shell.out
    signature = data.decode().rpartition(".")[2]
    assert signature not in shell.out
    assert SECRET not in shell.out + shell.err


def test_check_refuses_and_tells_everything(config: Path, shell: Shell) -> None:
    config.with_name("t").write_bytes(token({"sub": "pump", "iss": "you", "exp": 1000}))
    assert shell("check", "-c", str(config), "--client-id", "other", "--file", "t") == 1
    assert "refused   expired" in shell.out
    assert "(0x86 bad user name or password; MQTT 3.x: 4)" in shell.out
    assert "also      iss is not accepted" in shell.out
    assert "also      the claim sub" in shell.out
    forged = token({"sub": "pump"}, key="z" * 40)
    assert shell("check", "-c", str(config), stdin=forged) == 1
    assert "no key verifies the signature" in shell.out
    assert shell("check", "-c", str(config), stdin=b"nonsense") == 1
    assert "1 parts" in shell.out
    assert shell("check", "-c", str(config), stdin=b"x" * 20000) == 1
    assert "more than max_size" in shell.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("check",), "no plugin auth_jwt"),
        (("check", "-c", "hookmq.yaml"), "no token"),
        (("check", "-c", "hookmq.yaml", "--file", "none"), "none: No such file"),
        (("check", "-c", "hookmq.yaml", "--plugin", "x"), "no plugin auth_jwt with the id 'x'"),
        (("keys", "-c", "none.yaml"), "none.yaml"),
        (("sign",), "required"),
        (("sign", "--secret-file", "none"), "none: No such file"),
        (("sign", "--secret-file", "secret.txt", "--claim", "x"), "expected NAME=VALUE"),
        (("sign", "--secret-file", "secret.txt", "--claims", "none"), "none: No such file"),
        (("sign", "--secret-file", "secret.txt", "--claims", "secret.txt"), "not valid JSON"),
        (("sign", "--secret-file", "secret.txt", "--expires", "soon"), "not a duration"),
        (("sign", "--secret-file", "secret.txt", "--algorithm", "RS256"), "not for a secret"),
        (("sign", "--key", "secret.txt"), "expected a private key"),
        ((), "a command is required"),
    ],
)
def test_wrong_usage(config: Path, shell: Shell, words: tuple[str, ...], says: str) -> None:
    assert shell(*words) == 2
    told = shell.err
    assert says in told
    assert SECRET not in told


def test_two_plugins(config: Path, shell: Shell) -> None:
    text = config.read_text()
    config.write_text(text + "  - {use: auth_jwt, id: b, config: {secret: {$file: secret.txt}}}\n")
    assert shell("check", "-c", str(config), stdin=b"x") == 2
    assert "auth_jwt, b (choose one with --plugin)" in shell.err
    assert shell("check", "-c", str(config), "--plugin", "b", stdin=token()) == 0


def test_keys(config: Path, shell: Shell, tmp_path: Path) -> None:
    assert shell("keys", "-c", str(config)) == 0
    assert shell.out == "secret  -  secret  HS256,HS384,HS512\n"
    (tmp_path / "set").write_bytes(jwks(jwk("RSA 2048", "k0"), jwk("RSA 1024", "weak")))
    config.write_text(config.read_text().replace("secret: {$file: secret.txt}", "jwks_file: set"))
    assert shell("keys", "-c", str(config), "--json") == 0
    first, second = json.loads(shell.out)
    assert (first["kid"], first["kind"], first["problem"]) == ("k0", "RSA 2048", "")
    assert (second["kid"], "1024 bits" in second["problem"]) == ("weak", True)
    config.write_text(
        config.read_text().replace("jwks_file: set", "jwks_url: 'http://127.0.0.1:9/x'")
    )
    assert shell("keys", "-c", str(config)) == 1
    assert "http://127.0.0.1:9/x  -  cannot connect" in shell.out
    assert shell("check", "-c", str(config), stdin=token()) == 1
    assert "source    http://127.0.0.1:9/x: cannot connect" in shell.out
    assert "(0x88 server unavailable; MQTT 3.x: 3)" in shell.out


@pytest.mark.parametrize("kind", ["RSA 2048", "EC secp256r1", "EC secp384r1", "Ed25519"])
def test_sign_with_a_private_key(config: Path, shell: Shell, tmp_path: Path, kind: str) -> None:
    written = private(kind).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "private.pem").write_bytes(written)
    (tmp_path / "public.pem").write_text(pem(kind))
    config.write_text(config.read_text().replace("secret: {$file: secret.txt}", "pem: public.pem"))
    words = ["--claim", "sub=pump", "--claim", "iss=me", "--kid", "k", "--expires", "5m"]
    assert shell("sign", "--key", "private.pem", *words) == 0
    data = shell.out.encode()
    assert shell("check", "-c", str(config), "--client-id", "pump", stdin=data) == 0


def test_sign_with_a_secret(config: Path, shell: Shell, tmp_path: Path) -> None:
    assert shell("secret") == 0
    assert len(shell.out.strip()) == 86
    (tmp_path / "secret.txt").write_text(shell.out)
    (tmp_path / "claims").write_text('{"iss": "me", "sub": "x"}')
    words = [
        "--claims",
        "claims",
        "--claim",
        "sub=pump",
        "--claim",
        "n=1",
        "--algorithm",
        "HS512",
        "--expires",
        "0",
    ]
    assert shell("sign", "--secret-file", "secret.txt", *words) == 0
    assert shell("check", "-c", str(config), "--client-id", "pump", stdin=shell.out.encode()) == 1
    assert "exp is missing" in shell.out
    assert '"n": 1' in shell.out
    (tmp_path / "weak").write_text("weak")
    assert shell("sign", "--secret-file", "weak") == 1
    assert "cannot sign" in shell.err


@pytest.mark.parametrize("command", ["", "check", "keys", "sign", "secret"])
def test_help(shell: Shell, command: str) -> None:
    assert shell(*filter(None, [command]), "--help") == 0
    assert "usage: hookmq jwt" in shell.out


# -- the configuration, as every command reads it


@pytest.mark.parametrize(
    ("config_text", "says"),
    [
        ("{}", "expected one of secret"),
        ("{secret: {$file: secret.txt}, audiense: x}", "did you mean 'audience'"),
        ("{secret: short}", "3:44: plugins[0].config.secret: a secret of 5 bytes is too short"),
        (
            "{secret: {$file: secret.txt}, keys: [{pem: /none, kid: a}, {secret: short, kid: b}]}",
            "plugins[0].config.keys[0].pem: /none: cannot be read: No such file",
        ),
        (
            "{keys: [{secret: {$file: secret.txt}}, {secret: short, kid: b}]}",
            "3:83: plugins[0].config.keys[1].secret: a secret of 5 bytes is too short",
        ),
        ("{pem: none.pem}", "/none.pem: cannot be read: No such file"),
        (
            "{jwks_url: 'https://idp.example/', jwks: {ca_file: none.pem}}",
            "plugins[0].config.jwks.ca_file: /",
        ),
        ("{pem: secret.txt}", "secret.txt: contains no public key"),
        ("{jwks_file: secret.txt}", "secret.txt: the JWK Set is not valid, unambiguous JSON"),
        ("{jwks_url: 'http://idp.example/'}", "can forge"),
        ("{secret: {$file: secret.txt}, token_in: pasword}", "did you mean 'password'"),
        ("{secret: {$file: secret.txt}, jwks: {refresh: soon}}", "a duration"),
        ("{keys: [{kid: x}]}", "0 sources of keys"),
    ],
)
def test_check_finds_mistakes(
    config: Path, capsys: pytest.CaptureFixture[str], config_text: str, says: str
) -> None:
    config.write_text(
        "version: 1\nlisteners: [{name: tcp, bind: '127.0.0.1:0'}]\n"
        f"plugins: [{{use: auth_jwt, config: {config_text}}}]\n"
    )
    assert run_command(["check", "-c", str(config)]) in (2, 3)
    told = capsys.readouterr()
    assert says in told.out + told.err
    assert SECRET not in told.out + told.err


def test_a_secret_is_not_shown(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["config", "show", "-c", str(config)]) == 0
    assert run_command(["check", "-c", str(config)]) == 0
    told = capsys.readouterr()
    assert "secret: '***'" in told.out
    assert SECRET not in told.out + told.err


def fields_of(kind: Any, prefix: str = "") -> list[str]:
    return [prefix + field.name for field in dataclasses.fields(kind)]


def test_every_setting_is_in_the_readme() -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    names = fields_of(JwtConfig) + fields_of(FetchConfig, "jwks.")
    names += [
        name for name in fields_of(KeyConfig, "keys[].") if name[7:] not in fields_of(JwtConfig)
    ]
    missing = [name for name in names if f"`{name}`" not in readme and name != "jwks"]
    assert not missing
    for name in re.findall(r"^\| `([a-z_.\[\]]+)`", readme.partition("## Settings")[2], re.M):
        assert name.startswith(("hookmq_", "jwt.")) or name in [
            *names,
            *fields_of(KeyConfig, "keys[]."),
        ]


NAMES = st.sampled_from(fields_of(JwtConfig))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 1 << 40) | st.floats() | st.text(max_size=8)
    | st.sampled_from([SECRET, "https://x", "http://127.0.0.1", "/nonexistent", "5s", "${sub}", "${", "HS256", "auth"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from([*fields_of(KeyConfig), *fields_of(FetchConfig), "$env", "$file"]) | st.text(max_size=5),
        inner,
        max_size=4,
    ),
    max_leaves=8,
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(NAMES, VALUES, max_size=5))
def test_any_configuration_is_bound_or_refused(given: Any) -> None:
    text = json.dumps(
        {
            "version": 1,
            "listeners": [{"name": "tcp", "bind": "127.0.0.1:0"}],
            "plugins": [{"use": "auth_jwt", "config": {"secret": SECRET, **given}}],
        }
    )
    refused = ""
    try:
        [made] = load_plugins(text, {})
    except HookMQError as error:
        refused = str(error)
    if refused:
        assert "constructing it failed" not in refused
    else:
        assert isinstance(made.plugin, AuthJwtPlugin)
        if SECRET not in repr(given):  # Hypothesis takes words from the source, too
            assert SECRET not in repr(made.plugin.config)
