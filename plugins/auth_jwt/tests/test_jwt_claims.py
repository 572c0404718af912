"""Test the claims that tokens must contain. Also test tokens from real identity providers."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hookmq.plugin import ConfigError, Context, Limits
from hookmq_auth_jwt.config import JwtConfig
from hookmq_auth_jwt.plugin import AuthJwtPlugin
from hookmq_auth_jwt.refusal import Refused
from hookmq_auth_jwt.template import ClaimTemplate
from hookmq_auth_jwt.verify import Verified
from hookmq_testing import EPOCH
from hookmq_toolkit.claims import MISSING, find_claim
from hypothesis import given
from hypothesis import strategies as st
from tokens import SECRET, jwk, jwks, token

NOW = int(EPOCH)


def verify(
    claims: Any = None,
    *,
    client_id: str = "client",
    username: str | None = None,
    header: Any = None,
    at: float = EPOCH,
    **config: Any,
) -> Verified | str:
    plugin = AuthJwtPlugin(JwtConfig(secret=SECRET, **config), Context("p"))
    data = token(claims, now=EPOCH, header=header)
    try:
        return plugin.verifier.verify(data, client_id, username, 0.0, at)
    except Refused as refused:
        return f"{refused.kind} {refused.code:02X}"


def good(claims: Any = None, **config: Any) -> Verified:
    found = verify(claims, **config)
    assert isinstance(found, Verified), found
    return found


# -- time

NO_TIMES: Any = ("1", True, -1, [], {}, 1e30, 253402300800, str(NOW + 99))


@pytest.mark.parametrize(
    ("claims", "config", "expected"),
    [
        ({"exp": NOW + 1}, {}, ""),
        ({"exp": NOW}, {"leeway": 0.0}, "expired 86"),
        ({"exp": NOW - 4}, {}, ""),
        ({"exp": NOW - 5}, {}, "expired 86"),
        ({"exp": NOW - 30}, {"leeway": 60.0}, ""),
        ({"exp": NOW + 0.5}, {"leeway": 0.0}, ""),
        ({"exp": None}, {}, "expired 87"),
        ({"exp": None}, {"require_exp": False}, ""),
        ({"nbf": NOW + 5}, {}, ""),
        ({"nbf": NOW + 6}, {}, "not_yet 86"),
        ({"nbf": NOW + 1}, {"leeway": 0.0}, "not_yet 86"),
        ({"iat": NOW + 5}, {}, ""),
        ({"iat": NOW + 6}, {}, "issued 86"),
        ({"iat": NOW - 100}, {"issued_within": 60.0}, "issued 86"),
        ({"iat": NOW - 65}, {"issued_within": 60.0}, ""),
        ({}, {"issued_within": 60.0}, "issued 87"),
        *[({name: value}, {}, "malformed 86") for name in ("exp", "nbf", "iat")
          for value in NO_TIMES],
    ],
)  # fmt: skip
def test_times(claims: Any, config: Any, expected: str) -> None:
    found = verify(claims, **config)
    assert (found if isinstance(found, str) else "") == expected


@pytest.mark.parametrize("name", ["exp", "nbf", "iat"])
@pytest.mark.parametrize("value", [None, "1", {}])
def test_an_invalid_time_is_malformed(name: str, value: Any) -> None:
    plugin = AuthJwtPlugin(JwtConfig(secret=SECRET, require_exp=False), Context("p"))
    found = list(plugin.verifier.checker.problems({}, {name: value}, "c", None, EPOCH))
    assert [one.kind for one in found] == ["malformed"]


def test_the_end_has_the_leeway_too() -> None:
    assert good({"exp": NOW + 10}, leeway=30.0).expires_at == NOW + 40
    assert good({"exp": None}, require_exp=False).expires_at is None


# -- issuer, audience, type


@pytest.mark.parametrize(
    ("claims", "config", "expected"),
    [
        ({"iss": "a"}, {"issuer": "a"}, ""),
        ({"iss": "b"}, {"issuer": ("a", "b")}, ""),
        ({"iss": "a/"}, {"issuer": "a"}, "issuer 87"),
        ({"iss": "A"}, {"issuer": "a"}, "issuer 87"),
        ({"iss": ["a"]}, {"issuer": "a"}, "issuer 87"),
        ({}, {"issuer": "a"}, "issuer 87"),
        ({"aud": "mqtt"}, {"audience": "mqtt"}, ""),
        ({"aud": ["x", "mqtt"]}, {"audience": "mqtt"}, ""),
        ({"aud": "mqtt2"}, {"audience": "mqtt"}, "audience 87"),
        ({"aud": []}, {"audience": "mqtt"}, "audience 87"),
        ({"aud": ["mqtt", 1]}, {"audience": "mqtt"}, "malformed 86"),
        ({"aud": {"mqtt": 1}}, {"audience": "mqtt"}, "malformed 86"),
        ({}, {"audience": "mqtt"}, "audience 87"),
        ({"aud": "mqtt"}, {}, "audience 87"),
        ({"aud": "mqtt"}, {"audience": "*"}, ""),
        ({}, {"audience": "*"}, ""),
    ],
)
def test_issuer_and_audience_of_a_token_are_checked(
    claims: Any, config: Any, expected: str
) -> None:
    found = verify(claims, **config)
    assert (found if isinstance(found, str) else "") == expected


@pytest.mark.parametrize(
    ("typ", "expected"),
    [("at+jwt", ""), ("application/AT+JWT", ""), ("JWT", "type 87"), (None, "type 87"), (1, "type 87")],
)  # fmt: skip
def test_type(typ: Any, expected: str) -> None:
    found = verify(header={"typ": typ}, typ="at+jwt")
    assert (found if isinstance(found, str) else "") == expected


# -- required claims


@pytest.mark.parametrize(
    ("claims", "required", "expected"),
    [
        ({"sub": "client"}, {"sub": "${clientid}"}, ""),
        ({"sub": "Client"}, {"sub": "${clientid}"}, "claim 87"),
        ({"sub": "client "}, {"sub": "${clientid}"}, "claim 87"),
        ({"sub": "user"}, {"sub": "${username}"}, ""),
        ({"sub": "dev:client:user"}, {"sub": "dev:${clientid}:${username}"}, ""),
        ({"device": "client"}, {"sub": "me", "device": ["other", "${clientid}"]}, ""),
        ({}, {"device": "${clientid}"}, "claim 87"),
        ({"v": 1}, {"v": 1}, ""),
        ({"v": "1"}, {"v": 1}, "claim 87"),
        ({"v": True}, {"v": 1}, "claim 87"),
        ({"v": 1}, {"v": True}, "claim 87"),
        ({"v": True}, {"v": True}, ""),
        ({"v": 1.0}, {"v": 1}, "claim 87"),
        ({"v": ["a", "b"]}, {"v": "b"}, ""),
        ({"v": ["ab"]}, {"v": "b"}, "claim 87"),
        ({"v": {"b": 1}}, {"v": "b"}, "claim 87"),
        ({"a": {"b.c": {"d": "x"}}}, {"a.b.c.d": "x"}, ""),
        ({"v": []}, {"v": "b"}, "claim 87"),
    ],
)
def test_required(claims: Any, required: Any, expected: str) -> None:
    found = verify(claims, required=required, username="user")
    assert (found if isinstance(found, str) else "") == expected


@pytest.mark.parametrize("sub", ["", "None", "${username}"])
def test_a_client_without_a_user_name_matches_nothing(sub: str) -> None:
    assert verify({"sub": sub}, required={"sub": "${username}"}, identity="x") == "claim 87"
    both = {"sub": ["${username}", "dev-${username}", "me"]}
    assert verify({"sub": sub}, required=both, identity="x") == "claim 87"
    good({"sub": "me"}, required=both)


@given(st.text(max_size=10), st.text(max_size=10))
def test_a_client_id_is_compared_exactly(client_id: str, sub: str) -> None:
    found = verify({"sub": sub}, client_id=client_id, required={"sub": "${clientid}"}, identity="x")
    assert isinstance(found, Verified) == (client_id == sub)


# -- identity, groups, limits, permissions


@pytest.mark.parametrize(
    ("claims", "identity", "expected"),
    [
        ({"sub": "x"}, "${sub}", "x"),
        ({"sub": "x"}, "${claims.sub}", "x"),
        ({"claims.sub": "y", "sub": "x"}, "${claims.sub}", "y"),
        ({"claims": {"sub": "y"}, "sub": "x"}, "${claims.sub}", "y"),
        ({"sub": "x"}, "${another.sub}", "identity 87"),
        ({"sub": "x"}, "${abcdefgsub}", "identity 87"),
        ({"sub": 12}, "${sub}", "12"),
        ({"a": {"b": "y"}, "sub": "x"}, "${a.b}/${sub}", "y/x"),
        ({"username": "claimed"}, "${username}", "user"),
        ({"username": "claimed"}, "${claims.username}", "claimed"),
        ({}, "${clientid}", "client"),
        ({}, "fixed", "fixed"),
        ({"sub": None}, "${sub}", "identity 87"),
        ({"sub": ""}, "${sub}", "identity 87"),
        ({"sub": True}, "${sub}", "identity 87"),
        ({"sub": ["x"]}, "${sub}", "identity 87"),
        ({"sub": "a\nb"}, "${sub}", "identity 87"),
        ({"sub": "a\x00"}, "${sub}", "identity 87"),
        ({"sub": "x" * 1024}, "${sub}", "x" * 1024),
        ({"sub": "x" * 1025}, "${sub}", "identity 87"),
    ],
)
def test_identity(claims: Any, identity: str, expected: str) -> None:
    found = verify(claims, identity=identity, username="user")
    assert (found if isinstance(found, str) else found.identity) == expected


@pytest.mark.parametrize(
    ("claims", "groups", "expected"),
    [
        ({"groups": ["a", "b", "a"]}, "groups", ["a", "b"]),
        ({"groups": "a"}, "groups", ["a"]),
        ({"groups": []}, "groups", []),
        ({}, "groups", None),
        ({"r": {"roles": ["a"]}, "cognito:groups": ["b"]}, ("r.roles", "x", "cognito:groups"), ["a", "b"]),
        ({"r": {"roles": None}, "g": ["b"]}, ("r.roles", "g"), ["b"]),
        ({"groups": ["a"]}, (), ["a"]),  # as it came
        ({"groups": {"a": 1}}, "groups", "groups 87"),
        ({"groups": ["a", 1]}, "groups", "groups 87"),
        ({"groups": 7}, "groups", "groups 87"),
    ],
)  # fmt: skip
def test_groups(claims: Any, groups: Any, expected: Any) -> None:
    found = verify(claims, groups=groups)
    assert (found if isinstance(found, str) else found.claims.get("groups")) == expected


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ({}, None),
        ({"limits": {}}, Limits()),
        ({"limits": {"queue_messages": (1 << 32) - 1}}, Limits(queue_messages=(1 << 32) - 1)),
        ({"limits": {"max_packet_size": 1000, "session_expiry": 0}}, Limits(1000, None, 0)),
        ({"limits": {"queue_messages": -1}}, "limits 87"),
        ({"limits": {"queue_messages": True}}, "limits 87"),
        ({"limits": {"queue_messages": 1.5}}, "limits 87"),
        ({"limits": {"queue_messages": 1 << 32}}, "limits 87"),
        ({"limits": {"queue_mesages": 1}}, "limits 87"),
        ({"limits": [1]}, "limits 87"),
        ({"limits": 5}, "limits 87"),
    ],
)
def test_limits(claims: Any, expected: Any) -> None:
    found = verify(claims)
    assert (found if isinstance(found, str) else found.limits) == expected
    other = verify(claims, limits="")
    assert isinstance(other, Verified)
    assert other.limits is None


@pytest.mark.parametrize(
    "acl",
    [
        None, 1, "a/#", True, {"publish": 1}, {"publish": ["a/#/b"]}, {"publish": [1]}, {"pubish": ["a"]},
        {"publish": ["a/x%u"]}, {"publish": ["$share/g/a"]}, {"deny": 1}, {"deny": {"x": []}}, [1],
        {"publish": [{"topic": "a", "qos": 3}]}, {"publish": ["a"] * 11}, {"publish": [""]},
    ],
)  # fmt: skip
def test_permissions_that_cannot_be_read(acl: Any) -> None:
    plugin = AuthJwtPlugin(JwtConfig(secret=SECRET, max_rules=10), Context("p"))
    with pytest.raises(Refused) as refused:
        plugin.verifier.checker.rules({"acl": acl})
    assert (refused.value.kind, refused.value.code) == ("acl", 0x87)


def test_permissions_may_be_required() -> None:
    assert good().rules is None
    assert verify(require_acl=True) == "acl 87"
    found = good({"acl": {}}, require_acl=True).rules
    assert found is not None
    assert len(found) == 0
    nested = good({"x": {"acl": {"pub": ["a"]}}}, acl="x.acl").rules
    assert nested is not None
    assert len(nested) == 1


def test_limits_that_are_null_are_none() -> None:
    plugin = AuthJwtPlugin(JwtConfig(secret=SECRET), Context("p"))
    assert plugin.verifier.checker.limits({"limits": None}) is None
    assert plugin.verifier.checker.groups({"groups": None}) is None


@pytest.mark.parametrize("at", [0, 0.0, 253402300799])
def test_times_to_the_edge(at: float) -> None:
    plugin = AuthJwtPlugin(JwtConfig(secret=SECRET, leeway=0.0), Context("p"))
    found = list(plugin.verifier.checker.problems({}, {"exp": at, "nbf": 0}, "c", None, EPOCH))
    assert [one.kind for one in found] == ([] if at else ["expired"])


# -- paths and templates


def test_paths() -> None:
    claims = {"a": {"b": 1, "b.c": 2, "x": {"c": 3}}, "a.b": 4, "https://e.com/roles": 5, "n": None}
    for path, expected in (
        ("a.b", 4), ("a.b.c", 2), ("a.x.c", 3), ("https://e.com/roles", 5), ("n", None), ("a.b.d", MISSING),
        ("", MISSING), (".", MISSING), ("a.", MISSING), ("a..b", MISSING), ("n.x", MISSING),
    ):  # fmt: skip
        assert find_claim(claims, path) is expected or find_claim(claims, path) == expected


@pytest.mark.parametrize(
    "text",
    ["${", "${a", "${}", "${sub}", "x${${a}}", "${clientid}${", "a${clientid}b${clientid}${x"],
)
def test_bad_templates(text: str) -> None:
    with pytest.raises(ConfigError):
        ClaimTemplate(text, "key")


# -- configuration


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({}, "expected one of secret"),
        ({"secret": "short"}, "5 bytes is too short"),
        ({"secret": SECRET, "algorithms": ("none",)}, "algorithms: 'none'"),
        ({"secret": SECRET, "algorithms": ("RS256",)}, "none of the allowed algorithms"),
        ({"secret": SECRET, "token_in": "x"}, "token_in"),
        ({"secret": SECRET, "token_in": "auth", "method": ""}, "method"),
        ({"secret": SECRET, "token_in": "username", "required": {"sub": "${username}"}}, "token_in"),
        ({"secret": SECRET, "token_in": "username", "identity": "${username}"}, "token_in"),
        ({"secret": SECRET, "token_in": "username", "identity": "${sub}-${username}"}, "token_in"),
        ({"secret": SECRET, "token_in": "username", "identity": "${a}${b}${username}"}, "token_in"),
        ({"secret": SECRET, "identity": ""}, "identity"),
        ({"secret": SECRET, "identity": "${"}, "identity"),
        ({"secret": SECRET, "required": {"a": "${sub}"}}, "required"),
        ({"secret": SECRET, "required": {"a": None}}, "required: a"),
        ({"secret": SECRET, "required": {"a": []}}, "required: a"),
        ({"secret": SECRET, "required": {"a": [{}]}}, "required: a"),
        ({"secret": SECRET, "audience": ("*", "x")}, "audience"),
        ({"secret": SECRET, "on_expiry": "x"}, "on_expiry"),
        ({"secret": SECRET, "require_acl": True, "acl": ""}, "require_acl"),
        ({"keys": ({},)}, "0 sources"),
        ({"keys": ({"secret": SECRET, "jwks_url": "https://x"},)}, "2 sources"),
        ({"keys": ({"jwks_url": "https://x", "kid": "k"},)}, "kid"),
        ({"keys": ({"secret": SECRET, "secret_encoding": "hex"},)}, "secret_encoding"),
        ({"keys": ({"secret": "%", "secret_encoding": "base64"},)}, "not valid base64"),
        ({"jwks_url": "http://idp.example/keys"}, "can forge"),
        ({"jwks_url": "ftp://idp.example/keys"}, "jwks_url"),
        ({"jwks_url": "https:///keys"}, "jwks_url"),
        ({"jwks_url": "https://x:99999/keys"}, "jwks_url"),
        ({"jwks_url": "https://user:pw@x/keys"}, "user name and password"),
        ({"jwks_url": "https://x", "jwks": {"max_age": 1.0}}, "max_age"),
        ({"jwks_url": "https://x", "jwks": {"ca_file": "/nonexistent"}}, "/nonexistent cannot be used"),
        ({"jwks_file": "/nonexistent"}, "cannot be read"),
    ],
)  # fmt: skip
def test_configurations_that_are_refused(config: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as error:
        AuthJwtPlugin(JwtConfig(**config), Context("p"))
    assert "pw" not in str(error.value)
    assert SECRET not in str(error.value)


def test_http_where_nobody_listens_in() -> None:
    for url in (
        "http://127.0.0.1/x",
        "http://localhost:8080",
        "http://[::1]/x",
        "https://idp.example",
    ):
        JwtConfig(jwks_url=url)
    for url in (
        "http://127.0.0.1.evil.example",
        "http://10.0.0.1",
        "http://localhost.evil.example",
    ):
        with pytest.raises(ConfigError, match="can forge"):
            JwtConfig(jwks_url=url)
    JwtConfig(jwks_url="http://idp.example", jwks={"insecure_http": True})  # type: ignore[arg-type]


# -- what identity providers issue


def issued(folder: Path, claims: Any, header: Any = None, **config: Any) -> Any:
    """Verify an identity provider's token with the provider's own key. Return what the plugin accepts, or why it
    refuses the token.
    """
    path = folder / "jwks.json"
    path.write_bytes(jwks(jwk("RSA 2048", "kid1", use="sig", alg="RS256", x5t="x", x5c=["MIIC"])))
    plugin = AuthJwtPlugin(JwtConfig(jwks_file=path, **config), Context("p"))
    data = token(claims, "RS256", now=EPOCH, header={"kid": "kid1", **(header or {})})
    try:
        found = plugin.verifier.verify(data, "client", "user", 0.0, EPOCH)
    except Refused as refused:
        return refused.why
    return SimpleNamespace(identity=found.identity, groups=found.claims.get("groups"))


KEYCLOAK = {
    "iat": NOW - 10, "jti": "onrtac:5a1c", "iss": "https://kc.example/realms/plant", "aud": ["mqtt", "account"],
    "sub": "f1b1", "typ": "Bearer", "azp": "mqtt-broker", "sid": "s", "acr": "1", "allowed-origins": ["*"],
    "realm_access": {"roles": ["offline_access", "operators"]},
    "resource_access": {"mqtt.broker": {"roles": ["publisher"]}, "account": {"roles": ["view-profile"]}},
    "scope": "openid email", "email_verified": True, "preferred_username": "alice", "name": "Alice",
}  # fmt: skip
KEYCLOAK_CONFIG: dict[str, Any] = {
    "issuer": "https://kc.example/realms/plant", "audience": "mqtt", "identity": "${preferred_username}",
    "groups": ("realm_access.roles", "resource_access.mqtt.broker.roles"),
    "required": {"azp": "mqtt-broker", "typ": "Bearer"},
}  # fmt: skip


def test_keycloak(tmp_path: Path) -> None:
    found = issued(tmp_path, KEYCLOAK, **KEYCLOAK_CONFIG)
    assert found.identity == "alice"
    assert found.groups == ["offline_access", "operators", "publisher"]
    other = {**KEYCLOAK, "azp": "another-client"}
    assert "azp" in issued(tmp_path, other, **KEYCLOAK_CONFIG)
    assert "aud" in issued(tmp_path, {**KEYCLOAK, "aud": "account"}, **KEYCLOAK_CONFIG)
    assert "iss" in issued(
        tmp_path, {**KEYCLOAK, "iss": "https://kc.example/realms/other"}, **KEYCLOAK_CONFIG
    )
    role = {**KEYCLOAK_CONFIG, "required": {"realm_access.roles": "admins"}}
    assert "realm_access.roles" in issued(tmp_path, KEYCLOAK, **role)
    refresh = {**KEYCLOAK, "typ": "Refresh"}
    assert "typ" in issued(tmp_path, refresh, **KEYCLOAK_CONFIG)


AUTH0 = {
    "https://plant.example/roles": ["operators"], "https://plant.example/device": "client",
    "iss": "https://plant.eu.auth0.com/", "sub": "auth0|5f7c8ec7c33c6c004bbafe82",
    "aud": ["mqtt://plant", "https://plant.eu.auth0.com/userinfo"], "iat": NOW, "azp": "my_client_id",
    "scope": "openid profile", "permissions": ["publish:pumps"],
}  # fmt: skip


def test_auth0(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "issuer": "https://plant.eu.auth0.com/", "audience": "mqtt://plant",
        "groups": ("https://plant.example/roles", "permissions"),
        "required": {"https://plant.example/device": "${clientid}"},
    }  # fmt: skip
    found = issued(tmp_path, AUTH0, **config)
    assert found.identity == "auth0|5f7c8ec7c33c6c004bbafe82"
    assert found.groups == ["operators", "publish:pumps"]
    assert "iss" in issued(tmp_path, {**AUTH0, "iss": "https://plant.eu.auth0.com"}, **config)
    id_token = {**AUTH0, "aud": "my_client_id"}
    assert "aud" in issued(tmp_path, id_token, **config)


COGNITO = {
    "sub": "aaaaaaaa-bbbb", "cognito:groups": ["pumps"], "token_use": "access", "scope": "aws.cognito.signin.user.admin",
    "auth_time": NOW, "iss": "https://cognito-idp.eu-west-1.amazonaws.com/eu-west-1_example", "iat": NOW,
    "version": 2, "jti": "j", "client_id": "57cbishk4j24pabc1234567890", "username": "janedoe",
}  # fmt: skip


def test_cognito(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "issuer": "https://cognito-idp.eu-west-1.amazonaws.com/eu-west-1_example",
        "required": {"token_use": "access", "client_id": "57cbishk4j24pabc1234567890"},
        "identity": "${claims.username}", "groups": "cognito:groups",
    }  # fmt: skip
    found = issued(tmp_path, COGNITO, **config)
    assert (found.identity, found.groups) == ("janedoe", ["pumps"])
    # an id token names its audience and is not for an API
    id_token = {**COGNITO, "token_use": "id", "aud": "57cbishk4j24pabc1234567890"}
    assert "aud" in issued(tmp_path, id_token, **config)
    assert "token_use" in issued(tmp_path, {**COGNITO, "token_use": "id"}, **config)
    assert "client_id" in issued(tmp_path, {**COGNITO, "client_id": "other"}, **config)


GOOGLE = {
    "iss": "https://accounts.google.com", "azp": "117", "aud": "mqtt.plant.example", "sub": "117", "iat": NOW,
    "email": "pump@plant.iam.gserviceaccount.com", "email_verified": True,
}  # fmt: skip


def test_google_service_accounts(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "issuer": ("https://accounts.google.com", "accounts.google.com"), "audience": "mqtt.plant.example",
        "identity": "${email}", "algorithms": ("RS256",),
        "required": {"email_verified": True, "email": ["pump@plant.iam.gserviceaccount.com"]},
    }  # fmt: skip
    assert issued(tmp_path, GOOGLE, **config).identity == "pump@plant.iam.gserviceaccount.com"
    assert "email" in issued(tmp_path, {**GOOGLE, "email": "mallory@evil.example"}, **config)
    assert "email_verified" in issued(tmp_path, {**GOOGLE, "email_verified": "true"}, **config)
    assert issued(tmp_path, {**GOOGLE, "email_verified": None}, **config).startswith("the claim")
    assert "aud" in issued(tmp_path, {**GOOGLE, "aud": "other.example"}, **config)
