"""Test that any input is either parsed as a token or refused."""

import base64
import json
from contextlib import suppress
from typing import Any

import pytest
from hookmq.plugin import Context
from hookmq_auth_jwt.config import JwtConfig
from hookmq_auth_jwt.plugin import AuthJwtPlugin
from hookmq_auth_jwt.refusal import KINDS, Refused
from hookmq_auth_jwt.token import MAX_DEPTH, looks_like_token, parse
from hookmq_testing import EPOCH
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokens import SECRET, b64, token


def made(header: object, claims: object, signature: str = "AAAA") -> bytes:
    parts = [
        b64(one if isinstance(one, bytes) else json.dumps(one).encode()) for one in (header, claims)
    ]
    return ".".join([*parts, signature]).encode()


HEADER = {"alg": "HS256"}


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


def test_a_good_one() -> None:
    found = parse(token({"sub": "x"}, header={"kid": "k"}), 8192)
    assert (found.algorithm, found.kid, found.claims["sub"]) == ("HS256", "k", "x")
    assert found.signed + b"." + b64(found.signature).encode() == token(
        {"sub": "x"}, header={"kid": "k"}
    )
    assert b64(found.signature) not in repr(found)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b".",
        b"..",
        b"...",
        b"a.b",
        b"a.b.c.d.e",  # an encrypted token has five parts
        b"\xff\xfe.e30.AAAA",
        made(HEADER, {})[:-4] + b"AA=A",
        made(HEADER, {}) + b"\n",
        made(HEADER, {}).replace(b".", b"=.", 1),
        *[made(HEADER, {}, part) for part in ("AB", "AE", "AI", "AAB", "AAC")],  # with bits left over after the last byte
        made(HEADER, {}, "A"),
        made(HEADER, {}, "AA+/"),
        made(HEADER, []),
        made(HEADER, "text"),
        made(HEADER, b"{"),
        made(HEADER, b"\xff{}"),
        made(HEADER, b'\xef\xbb\xbf{}'),
        made(HEADER, b'{"exp": NaN}'),
        made(HEADER, b'{"exp": Infinity}'),
        made(HEADER, b'{"sub": "a", "sub": "b"}'),
        made(HEADER, b'{"a": {"sub": "a", "sub": "b"}}'),
        made(HEADER, b'{"sub": "\\ud800"}'),
        made(HEADER, b'{"sub": ' + b"1" * 5000 + b"}"),
        made(HEADER, b'{"sub": ' + b"[" * 3000 + b"]" * 3000 + b"}"),
        made(HEADER, {"a": nested(MAX_DEPTH)}),
        made([], {}),
        made({}, {}),
        made({"alg": None}, {}),
        made({"alg": ["HS256"]}, {}),
        made({"alg": "x" * 33}, {}),
        made({"alg": "HS256", "kid": 1}, {}),
        made({"alg": "HS256", "kid": "k" * 257}, {}),
        made({"alg": "HS256", "crit": []}, {}),
        made({"alg": "HS256", "crit": ["b64"], "b64": False}, {}),
        made({"alg": "HS256", "crit": ["exp"], "exp": 1}, {}),
        made(HEADER, {"a": "x" * 9000}),
    ],
)  # fmt: skip
def test_malformed_tokens_are_refused(data: bytes) -> None:
    with pytest.raises(Refused) as refused:
        parse(data, 8192)
    assert refused.value.kind == "malformed"


def test_depth_and_size_to_the_edge() -> None:
    data = made(HEADER, {"a": nested(MAX_DEPTH - 1)})
    assert parse(data, len(data)).claims["a"]
    with pytest.raises(Refused, match="more than max_size"):
        parse(data, len(data) - 1)
    wide = made(HEADER, {"a": [[] for _ in range(100)]})
    assert len(parse(wide, 8192).claims["a"]) == 100


def test_headers_that_lead_elsewhere_are_not_followed() -> None:
    header = {
        "jku": "https://evil.example/",
        "x5u": "https://evil.example/",
        "jwk": {"kty": "oct", "k": "AAAA"},
    }
    plugin = AuthJwtPlugin(JwtConfig(secret=SECRET), Context("p"))
    found = plugin.verifier.verify(token(header=header, now=EPOCH), "c", None, 0.0, EPOCH)
    assert found.identity == "me"


@given(st.binary(max_size=300))
def test_the_form_is_told_by_the_first_bytes(data: bytes) -> None:
    if looks_like_token(data):
        assert data.count(b".") == 2


PLUGIN = AuthJwtPlugin(JwtConfig(secret=SECRET), Context("p"))


def verdict(data: bytes) -> str:
    """Return why a token is refused. Any exception other than Refused fails the test."""
    found: Refused | None = None
    try:
        PLUGIN.verifier.verify(data, "client", "user", 0.0, EPOCH)
    except Refused as refused:
        found = refused
    if found is None:
        return ""
    assert found.kind in KINDS
    assert found.verdict.code.failed
    return found.kind


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=20,
)
NAMES = st.sampled_from(
    ["sub", "exp", "nbf", "iat", "iss", "aud", "acl", "limits", "groups", "alg", "kid", "crit", "typ", "b64"]
)  # fmt: skip
OBJECTS = st.dictionaries(NAMES | st.text(max_size=5), JSON, max_size=6)


@given(st.binary(max_size=400))
@example(b"eyJhbGciOiJub25lIn0.e30.")
def test_any_bytes_are_refused(data: bytes) -> None:
    assert verdict(data)


@given(OBJECTS, JSON, st.binary(max_size=70))
def test_any_json_is_refused(header: Any, claims: Any, signature: bytes) -> None:
    assert verdict(made({"alg": "HS256", **header}, claims, b64(signature)))


@settings(max_examples=50)
@given(OBJECTS)
def test_any_claims_well_signed_are_decided(claims: Any) -> None:
    """A signed token with arbitrary claims is accepted or refused. No exception other than Refused
    is raised.
    """
    with suppress(ValueError):  # what Python writes as JSON is not always JSON
        verdict(token(claims, now=EPOCH))


@settings(max_examples=40)
@given(st.data())
def test_a_changed_token_is_refused(data: st.DataObject) -> None:
    good = token({"sub": "me"}, now=EPOCH)
    assert verdict(good) == ""
    at = data.draw(st.integers(0, len(good) - 1))
    new = data.draw(st.integers(0, 255))
    changed = good[:at] + bytes([new]) + good[at + 1 :]
    if changed != good:
        assert verdict(changed)
    cut = data.draw(st.integers(0, len(good) - 1))
    assert verdict(good[:cut])


def test_python_reads_the_same_base64() -> None:
    for size in range(70):
        data = bytes(range(size))
        found = parse(made(HEADER, {"x": base64.b64encode(data).decode()}, b64(data)), 8192)
        assert found.signature == data
