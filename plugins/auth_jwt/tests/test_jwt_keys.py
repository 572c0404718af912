"""Test which keys verify which tokens, and which keys are too weak."""

import base64
import hashlib
import hmac
import itertools
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric import dsa, rsa, x25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from hookmq.plugin import ConfigError, Context
from hookmq_auth_jwt.config import JwtConfig, KeyConfig
from hookmq_auth_jwt.jwks import read_set
from hookmq_auth_jwt.keys import ALGORITHMS, UnusableKey, jwk_key, pem_keys, secret_key
from hookmq_auth_jwt.plugin import AuthJwtPlugin
from hookmq_auth_jwt.refusal import Refused
from hookmq_testing import EPOCH
from hypothesis import given, settings
from hypothesis import strategies as st
from tokens import KINDS, SECRET, b64, jwk, jwks, pem, private, token

SOME: Any = ("RS256", "PS512", "ES256", "ES384", "ES512", "ES256K", "EdDSA", "Ed25519", "Ed448")

WRONG = ("algorithm", "signature", "unknown_key")


def plugin(**config: Any) -> AuthJwtPlugin:
    return AuthJwtPlugin(JwtConfig(**config), Context("p"))


def refused(made: AuthJwtPlugin, data: bytes) -> str:
    try:
        made.verifier.verify(data, "client", None, 0.0, EPOCH)
    except Refused as error:
        return error.kind
    return ""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def file(folder: Path, text: str | bytes, name: str = "key") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize("algorithm", SOME)
@pytest.mark.parametrize("place", ["pem", "jwks_file"])
def test_public_keys(folder: Path, algorithm: str, place: str) -> None:
    kind = KINDS[algorithm]
    text = pem(kind) if place == "pem" else jwks(jwk(kind, "k"))
    made = plugin(**{place: file(folder, text)})
    assert refused(made, token(algorithm=algorithm, now=EPOCH)) == ""
    stranger = token(algorithm=algorithm, now=EPOCH, number=1)
    assert refused(made, stranger) == "signature"


@pytest.mark.parametrize("size", range(32, 40))
def test_secrets_in_any_base64(size: int) -> None:
    secret = bytes(range(255 - size, 255))[::-1]
    standard, urlsafe = base64.b64encode(secret).decode(), base64.urlsafe_b64encode(secret).decode()
    assert "/" in standard
    assert "_" in urlsafe
    data = token(key=secret, now=EPOCH)
    for written in (standard, urlsafe, standard.rstrip("="), urlsafe.rstrip("=")):
        made = plugin(keys=(KeyConfig(secret=written, secret_encoding="base64"),))
        assert refused(made, data) == ""


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
@pytest.mark.parametrize("encoding", ["text", "base64"])
def test_secrets(algorithm: str, encoding: Any) -> None:
    written = SECRET if encoding == "text" else base64.b64encode(SECRET.encode()).decode()
    made = plugin(keys=(KeyConfig(secret=written, secret_encoding=encoding),))
    assert refused(made, token(algorithm=algorithm, now=EPOCH)) == ""
    assert refused(made, token(algorithm=algorithm, key="x" * 64, now=EPOCH)) == "signature"


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
@pytest.mark.parametrize("kind", ["RSA 2048", "EC secp256r1", "Ed25519"])
def test_a_public_key_is_never_a_secret(folder: Path, kind: str, algorithm: str) -> None:
    """A public key is never used as a secret. A client that knows it, in any format, cannot sign
    tokens with it.
    """
    text = pem(kind)
    single = jwk(kind, "k")
    place = file(folder, text)
    for made in (plugin(pem=place), plugin(jwks_file=file(folder, jwks(single), "set"))):
        for material in (text, text.strip(), json.dumps(single), single.get("n", single.get("x"))):
            claims = b64(json.dumps({"sub": "me", "exp": EPOCH + 60}).encode())
            header = b64(json.dumps({"alg": algorithm, "kid": "k"}).encode())
            for digest in (hashlib.sha256, hashlib.sha384, hashlib.sha512):
                signed = f"{header}.{claims}"
                forged = hmac.new(str(material).encode(), signed.encode(), digest).digest()
                assert refused(made, f"{signed}.{b64(forged)}".encode()) in WRONG


def test_a_public_key_cannot_be_configured_as_a_secret() -> None:
    certificate = trustme.CA().cert_pem.bytes().decode()
    for text in (pem("RSA 2048"), pem("Ed25519"), json.dumps(jwk("RSA 2048")), certificate):
        with pytest.raises(ConfigError, match="certificate instead of a secret"):
            plugin(secret=text)


@pytest.mark.parametrize("name", ["none", "None", "NONE", "nOnE", "HS1", "RS1", "hs256", ""])
def test_no_algorithm(name: str) -> None:
    made = plugin(secret=SECRET)
    parts = [
        b64(json.dumps(one).encode()) for one in ({"alg": name}, {"sub": "me", "exp": EPOCH + 9})
    ]
    for signature in ("", "AAAA"):
        data = f"{parts[0]}.{parts[1]}.{signature}".encode()
        assert refused(made, data) == "algorithm"


@pytest.mark.parametrize(("algorithm", "size"), [("HS256", 32), ("HS384", 48), ("HS512", 64)])
def test_a_secret_is_as_long_as_the_hash(algorithm: Any, size: int) -> None:
    with pytest.raises(
        ConfigError, match=f"{size - 1} bytes is too short: {algorithm} needs {size}"
    ):
        plugin(secret="x" * (size - 1), algorithms=(algorithm,))
    made = plugin(secret="x" * size)
    assert refused(made, token(algorithm=algorithm, key="x" * size, now=EPOCH)) == ""
    for longer in {"HS384": 48, "HS512": 64}.items():
        if longer[1] > size:
            assert (
                refused(made, token(algorithm=longer[0], key="x" * size, now=EPOCH)) == "algorithm"
            )


def test_a_weak_rsa_key(folder: Path) -> None:
    assert private("RSA 1024").key_size == 1024
    with pytest.raises(ConfigError, match="RSA with 1024 bits"):
        plugin(pem=file(folder, pem("RSA 1024")))
    with pytest.raises(ConfigError, match="RSA with 1024 bits"):
        plugin(jwks_file=file(folder, jwks(jwk("RSA 1024"))))
    found = read_set(
        jwks(jwk("RSA 1024", "weak"), jwk("RSA 2048", "k")), ALGORITHMS, False, "", "s", 9
    )
    assert [key.kid for key in found.keys] == ["k"]
    assert [(one.kid, "1024" in one.why) for one in found.left] == [("weak", True)]


def test_the_allow_list_is_per_key(folder: Path) -> None:
    first, second = file(folder, pem("RSA 2048"), "one"), file(folder, pem("RSA 2048", 1), "two")
    made = plugin(
        keys=(
            KeyConfig(pem=first, algorithms=("RS256",)),
            KeyConfig(pem=second, algorithms=("PS256",)),
        )
    )
    for number, good, bad in ((0, "RS256", "PS256"), (1, "PS256", "RS256")):
        assert refused(made, token(algorithm=good, now=EPOCH, number=number)) == ""
        assert refused(made, token(algorithm=bad, now=EPOCH, number=number)) == "signature"
    assert refused(made, token(algorithm="RS512", now=EPOCH)) == "algorithm"
    with pytest.raises(ConfigError, match="none of the allowed algorithms"):
        plugin(pem=first, algorithms=("ES256",))
    with pytest.raises(ConfigError, match="algorithms allows none of its algorithms"):
        plugin(keys=(KeyConfig(pem=first, algorithms=("RS256",)),), algorithms=("PS256",))


def test_the_alg_of_a_jwk_binds(folder: Path) -> None:
    made = plugin(jwks_file=file(folder, jwks(jwk("RSA 2048", "k", alg="RS512"))))
    good = token(algorithm="RS512", now=EPOCH, header={"kid": "k"})
    assert refused(made, good) == ""
    assert refused(made, token(algorithm="RS256", now=EPOCH, header={"kid": "k"})) == "algorithm"


def test_names_of_keys(folder: Path) -> None:
    two = jwks(jwk("RSA 2048", "a"), jwk("RSA 2048", "b", 1))
    made = plugin(jwks_file=file(folder, two))
    assert refused(made, token(algorithm="RS256", now=EPOCH, header={"kid": "a"})) == ""
    assert refused(made, token(algorithm="RS256", now=EPOCH, header={"kid": "b"})) == "signature"
    assert refused(made, token(algorithm="RS256", now=EPOCH, header={"kid": "c"})) == "unknown_key"
    assert refused(made, token(algorithm="RS256", now=EPOCH, number=1)) == ""
    named = plugin(keys=(KeyConfig(secret=SECRET, kid="s"),))
    assert refused(named, token(now=EPOCH, header={"kid": "s"})) == ""
    assert refused(named, token(now=EPOCH)) == ""
    assert refused(named, token(now=EPOCH, header={"kid": "t"})) == "unknown_key"
    assert refused(plugin(secret=SECRET), token(now=EPOCH, header={"kid": "t"})) == ""
    named = plugin(keys=(KeyConfig(pem=file(folder, pem("RSA 2048"), "pem"), kid="p"),))
    assert refused(named, token(algorithm="RS256", now=EPOCH, header={"kid": "p"})) == ""
    assert refused(named, token(algorithm="RS256", now=EPOCH, header={"kid": "q"})) == "unknown_key"


def test_a_token_without_a_name_tries_named_and_nameless_keys(folder: Path) -> None:
    made = plugin(
        keys=(
            KeyConfig(pem=file(folder, pem("RSA 2048"), "one")),
            KeyConfig(jwks_file=file(folder, jwks(jwk("RSA 2048", "k", 1)), "two")),
        )
    )
    for number in (0, 1):
        assert refused(made, token(algorithm="RS256", now=EPOCH, number=number)) == ""
    # a nameless key may be the one that is named, a key of another name is not
    assert refused(made, token(algorithm="RS256", now=EPOCH, header={"kid": "x"})) == ""
    assert (
        refused(made, token(algorithm="RS256", now=EPOCH, header={"kid": "x"}, number=1))
        == "unknown_key"
    )


def test_a_token_without_a_name_tries_few_keys(folder: Path) -> None:
    many = [jwk("EC secp256r1", f"k{n}", n) for n in range(9)]
    made = plugin(jwks_file=file(folder, jwks(*many)))
    assert refused(made, token(algorithm="ES256", now=EPOCH)) == "unknown_key"
    assert refused(made, token(algorithm="ES256", now=EPOCH, header={"kid": "k0"})) == ""
    made = plugin(jwks_file=file(folder, jwks(*many[:8])))
    assert refused(made, token(algorithm="ES256", now=EPOCH, number=7)) == ""


def test_keys_of_one_issuer_vouch_for_nobody_else(folder: Path) -> None:
    made = plugin(
        keys=(
            KeyConfig(pem=file(folder, pem("RSA 2048"), "one"), issuer="https://a"),
            KeyConfig(pem=file(folder, pem("RSA 2048", 1), "two"), issuer="https://b"),
        )
    )
    assert refused(made, token(algorithm="RS256", now=EPOCH, iss="https://a")) == ""
    assert refused(made, token(algorithm="RS256", now=EPOCH, iss="https://b", number=1)) == ""
    assert refused(made, token(algorithm="RS256", now=EPOCH, iss="https://b")) == "signature"
    assert refused(made, token(algorithm="RS256", now=EPOCH, iss="https://c")) == "algorithm"
    assert refused(made, token(algorithm="RS256", now=EPOCH)) == "algorithm"


def secret_pem() -> str:
    found: bytes = private("RSA 2048").private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    return found.decode()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "contains no public key"),
        ("nonsense", "contains no public key"),
        (pem("Ed25519")[:60], "contains no public key"),
        (pem("Ed25519").replace("M", "N"), "unreadable public key"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----", "unreadable public key or certificate"),
        ("-----BEGIN DH PARAMETERS-----\nAAAA\n-----END DH PARAMETERS-----", "'DH PARAMETERS'"),
        (secret_pem(), "private key"),
        (pem("Ed25519") + secret_pem(), "private key"),
    ],
    ids=map(str, itertools.count()),  # keys are random
)  # fmt: skip
def test_bad_pem_files(folder: Path, text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as error:
        plugin(pem=file(folder, text))
    assert "MII" not in str(error.value)


def test_a_pem_file_with_several_keys_and_a_certificate(folder: Path) -> None:
    certificate = trustme.CA().cert_pem.bytes().decode()
    found = pem_keys(
        (pem("RSA 2048") + certificate + pem("Ed25519")).encode(), ALGORITHMS, None, "", "s"
    )
    assert len(found) == 3
    with pytest.raises(ConfigError, match="No such file"):
        plugin(pem=folder / "none")


@pytest.mark.parametrize(
    ("member", "why"),
    [
        (1, "not a JSON object"),
        ({}, "kty"),
        ({"kty": "XYZ"}, "kty"),
        ({"kty": ["RSA"]}, "kty"),
        ({"kty": "RSA"}, "parameters"),
        ({"kty": "RSA", "n": 1, "e": {}}, "parameters"),
        ({"kty": "EC", "crv": "P-1", "x": "AA", "y": "AA"}, "parameters"),
        ({**jwk("EC secp256r1"), "y": "AAAA"}, "parameters"),
        ({"kty": "OKP", "crv": "Ed25519", "x": "AA"}, "parameters"),
        ({"kty": "OKP", "crv": "X25519", "x": "AA"}, "parameters"),
        ({**jwk("RSA 2048"), "use": "enc"}, "use"),
        ({**jwk("RSA 2048"), "key_ops": ["sign"]}, "key_ops"),
        ({**jwk("RSA 2048"), "key_ops": "verify"}, "key_ops"),
        ({**jwk("RSA 2048"), "alg": "RSA-OAEP"}, "alg"),
        ({**jwk("RSA 2048"), "alg": "HS256"}, "none of the allowed algorithms"),
        ({**jwk("RSA 2048"), "alg": "none"}, "alg"),
        ({**jwk("RSA 2048"), "alg": 1}, "alg"),
        ({**jwk("RSA 2048"), "kid": 1}, "kid"),
        ({**jwk("RSA 2048"), "kid": ""}, "kid"),
        ({**jwk("RSA 2048"), "d": "AQAB"}, "private"),
        ({"kty": "oct", "k": b64(SECRET.encode())}, "behind a URL"),
    ],
)  # fmt: skip
def test_members_that_are_left_out(member: Any, why: str) -> None:
    found = read_set(jwks(member, jwk("Ed25519", "k")), ALGORITHMS, False, "", "s", 9)
    assert [key.kid for key in found.keys] == ["k"]
    assert why in found.left[0].why


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "unambiguous JSON"),
        (b"<html>", "unambiguous JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "expected a list 'keys'"),
        (b'{"keys": {}}', "expected a list 'keys'"),
        (b'{"keys": [], "keys": []}', "unambiguous"),
        (b'{"keys": ' + b"[" * 5000 + b"]" * 5000 + b"}", "too deeply"),
        (jwks(*[{}] * 10), "10 keys"),
        (jwks(jwk("Ed25519"))[:-4], "unambiguous JSON"),
    ],
    ids=map(str, itertools.count()),  # keys are random
)
def test_an_invalid_jwk_set_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(UnusableKey, match=why):
        read_set(data, ALGORITHMS, False, "", "s", 9)


def test_a_secret_in_a_file_of_ones_own(folder: Path) -> None:
    member = {"kty": "oct", "k": b64(SECRET.encode()), "kid": "s", "alg": "HS256"}
    made = plugin(jwks_file=file(folder, jwks(member)))
    assert refused(made, token(now=EPOCH, header={"kid": "s"})) == ""
    assert refused(made, token(algorithm="HS512", now=EPOCH, header={"kid": "s"})) == "algorithm"
    with pytest.raises(UnusableKey, match="too short"):
        jwk_key({**member, "k": "AAAA"}, ALGORITHMS, True, "", "s")
    with pytest.raises(ConfigError, match="no usable key: it is empty"):
        plugin(jwks_file=file(folder, jwks(), "empty"))


def test_nothing_secret_is_shown(folder: Path) -> None:
    made = plugin(
        keys=(KeyConfig(secret=SECRET),), jwks_file=file(folder, jwks(jwk("RSA 2048", "k")))
    )
    [key] = made.sources[1].keys(0.0)
    shown = f"{made!r} {made.config!r} {made.sources!r} {key!r} {made.config.keys!r} {made.sources[1].label}"
    assert SECRET not in shown
    assert key.fingerprint not in shown
    assert SECRET not in repr(JwtConfig(secret=SECRET))
    with pytest.raises(UnusableKey) as error:
        secret_key("!" + SECRET, "base64", ALGORITHMS, None, "", "s")
    assert SECRET not in str(error.value)


def test_a_signature_that_the_library_cannot_read_is_none() -> None:
    [key] = pem_keys(pem("RSA 2048").encode(), ALGORITHMS, None, "", "s")
    assert not key.verifies("RS256", b"x", None)  # type: ignore[arg-type]
    assert not key.verifies("ES256", b"x", b"y")
    assert isinstance(private("RSA 2048"), rsa.RSAPrivateKey)


JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12) | st.sampled_from(["AQAB", "RSA", "EC", "sig"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
MEMBERS = st.sampled_from(
    ["kty", "kid", "use", "key_ops", "alg", "n", "e", "d", "x", "y", "crv", "k", "x5c"]
)


@given(st.binary(max_size=200))
def test_any_bytes_make_a_key_set_or_none(data: bytes) -> None:
    with suppress(UnusableKey):
        read_set(data, ALGORITHMS, True, "", "s", 9)


@settings(max_examples=150)
@given(
    st.sampled_from(["RSA 2048", "EC secp256r1", "Ed25519", "Ed448"]),
    st.dictionaries(MEMBERS, JSON, max_size=4),
    st.booleans(),
)
def test_any_change_of_a_key_leaves_it_out_or_in(kind: str, change: Any, symmetric: bool) -> None:
    """A JWK changed in any way is either used or ignored. A symmetric key is used only if secrets are allowed."""
    found = read_set(jwks({**jwk(kind, "k"), **change}), ALGORITHMS, symmetric, "", "s", 9)
    assert len(found.keys) + len(found.left) == 1
    for key in found.keys:
        assert key.kind != "secret" or symmetric
        assert not key.verifies("HS256", b"x", b"y")


@pytest.mark.parametrize(
    ("modulus", "exponent", "why"),
    [(8192, 17, ""), (8193, 17, "8193 bits"), (2047, 17, "2047 bits"), (2048, 64, ""), (2048, 65, "exponent")],
)  # fmt: skip
def test_sizes_of_rsa_keys(modulus: int, exponent: int, why: str) -> None:
    def number(bits: int) -> str:
        return b64(((1 << (bits - 1)) | 1).to_bytes(bits // 8 + 1, "big").lstrip(b"\0"))

    member = {"kty": "RSA", "kid": "k", "n": number(modulus), "e": number(exponent)}
    found = read_set(jwks(member), ALGORITHMS, False, "", "s", 9)
    assert [one.why for one in found.left if why in one.why and why] == [
        one.why for one in found.left
    ]
    assert bool(found.keys) == (not why)


@pytest.mark.parametrize("kind", ["EC secp224r1", "X25519", "DSA"])
def test_kinds_of_keys_that_are_not_taken(kind: str) -> None:
    maker: Any = {
        "EC secp224r1": lambda: private(kind),
        "X25519": x25519.X25519PrivateKey.generate,
        "DSA": lambda: dsa.generate_private_key(1024),
    }[kind]
    written = maker().public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    with pytest.raises(UnusableKey, match="type of key is not supported"):
        pem_keys(written, ALGORITHMS, None, "", "s")


def test_names_for_the_edwards_curves(folder: Path) -> None:
    for kind, name in (("Ed25519", "Ed25519"), ("Ed448", "Ed448")):
        made = plugin(pem=file(folder, pem(kind)))
        for algorithm in (name, "EdDSA"):
            data = token(algorithm=algorithm, key=private(kind), now=EPOCH)
            assert refused(made, data) == ""
        other = "Ed448" if name == "Ed25519" else "Ed25519"
        assert refused(made, token(algorithm=other, key=private(kind), now=EPOCH)) == "algorithm"


def test_as_many_keys_as_are_allowed() -> None:
    many = [jwk("Ed25519", f"k{n}", n) for n in range(4)]
    assert len(read_set(jwks(*many), ALGORITHMS, False, "", "s", 4).keys) == 4
    with pytest.raises(UnusableKey, match="4 keys"):
        read_set(jwks(*many), ALGORITHMS, False, "", "s", 3)
