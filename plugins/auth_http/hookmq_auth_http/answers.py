"""Parse the service's responses according to each contract.

A response that cannot be parsed completely raises `Unusable`. It decides nothing and never allows anything.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from hookmq.plugin import Accept, Allow, ConfigError, Deny, Limits, ReasonCode
from hookmq_toolkit.rules import Rules, rules_from_lists

MAX_REASON: Final = 200
"""Maximum number of characters in a reason that is sent to a client."""
PERMISSIONS: Final = "permissions"
SUPERUSER: Final = "superuser"


class Unusable(Exception):
    """The service responded, but the response cannot be used for a decision."""


class Undecided(Exception):
    """The decision failed. Hooks raise this error to make the broker refuse the action as undecided."""


class Answer(NamedTuple):
    """A parsed response. If `verdict` is None, other plugins decide."""

    verdict: Accept | Allow | Deny | None
    grants: Mapping[str, Any] = {}
    """Rights of an accepted client, under the keys `PERMISSIONS` and `SUPERUSER`. They are stored with the claims."""
    keep: float | None = None
    """Number of seconds for which the response is valid, or None if the service does not specify it."""
    bare: bool = False
    """True if only the status denies, for example because a gateway responds during an outage. The client must not lose
    state in that case.
    """


Read = Callable[[int, bytes], Answer]


def _json(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise Unusable("the answer is not JSON") from None
    if not isinstance(found, dict):
        raise Unusable("the answer is not a JSON object")
    return found


def _refuse(constant: str) -> Any:
    raise ValueError(constant)


def _take(found: Mapping[str, Any], key: str, *kinds: type) -> Any:
    value = found.get(key)
    if value is not None and type(value) not in kinds:
        names = " or ".join(kind.__name__ for kind in kinds)
        raise Unusable(f"{key} is a {type(value).__name__}, expected {names}")
    return value


def _known(found: Mapping[str, Any], keys: frozenset[str]) -> None:
    """Raise Unusable for an unknown key.

    Ignoring unknown keys could grant too much. For example, if `expires_at` were misspelt, access would never expire.
    """
    unknown = sorted(set(found) - keys)
    if unknown:
        raise Unusable(f"unknown key {unknown[0]!r}; known: {', '.join(sorted(keys))}")


def _deny(found: Mapping[str, Any], code: ReasonCode) -> Deny:
    given, reason = _take(found, "code", int), _take(found, "reason", str)
    try:
        return Deny(code if given is None else ReasonCode(given), reason and reason[:MAX_REASON])
    except ValueError:
        raise Unusable(f"code is {given}, expected a reason code of 128 or above") from None


def _keep(found: Mapping[str, Any]) -> float | None:
    seconds = _take(found, "cache", int, float)
    if seconds is not None and not 0 <= seconds < 1e9:
        raise Unusable(f"cache is {seconds}, expected seconds")
    return None if seconds is None else float(seconds)


def _result(found: Mapping[str, Any]) -> str:
    result = found.get("result")
    if result not in ("allow", "deny", "ignore"):
        raise Unusable(f"result is {str(result)[:40]!r}, expected allow, deny or ignore")
    return str(result)


def _grants(lists: Any, superuser: bool) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if lists is not None:
        try:
            Rules(rules_from_lists(lists, PERMISSIONS))
        except (ConfigError, RecursionError) as error:
            raise Unusable(str(error)) from None
        made[PERMISSIONS] = lists
    if superuser:
        made[SUPERUSER] = True
    return made


def _expiry(found: Mapping[str, Any], key: str) -> float | None:
    value = _take(found, key, int, float)
    if value is not None and not 0 < value < 1e11:
        raise Unusable(f"{key} is {value}, expected seconds since 1970")
    return None if value is None else float(value)


def _status(status: int) -> bool | None:
    """Return True if the status allows the action, False if it denies it, or None if the body decides.

    The statuses 401 and 403 deny, regardless of the body. Raises Unusable for any other failure.
    """
    if status in (401, 403):
        return False
    if status == 204:
        return True
    if not 200 <= status < 300:
        raise Unusable(f"status {status}")
    return None


def _refused(status: int, body: bytes) -> Answer | None:
    """Return a denial if the status of an `authorize` response denies the action. Otherwise, return None. Raises
    Unusable.
    """
    if status == 401:
        raise Unusable("status 401: the service does not accept the broker's credentials")
    if _status(status) is not False:
        return None
    try:
        bare = _json(body).get("result") != "deny"
    except Unusable:
        bare = True
    return Answer(Deny(), bare=bare)


# -- HookMQ's own contract

_AUTHENTICATE_KEYS: Final = frozenset(
    {
        "result", "identity", "claims", "permissions", "superuser", "limits", "expires_at", "cache", "reason", "code",
    }
)  # fmt: skip
_AUTHORIZE_KEYS: Final = frozenset({"result", "max_qos", "cache", "reason", "code"})


def hookmq_authenticate(status: int, body: bytes) -> Answer:
    """Parse a response to `authenticate`, a JSON object as described in the README. Unknown keys are errors."""
    if _status(status) is False:
        return Answer(Deny(ReasonCode.NOT_AUTHORIZED))
    if status == 204:
        return Answer(Accept())
    found = _json(body)
    _known(found, _AUTHENTICATE_KEYS)
    result, keep = _result(found), _keep(found)
    if result == "ignore":
        return Answer(None, {}, keep)
    if result == "deny":
        return Answer(_deny(found, ReasonCode.NOT_AUTHORIZED), {}, keep)
    limits = _take(found, "limits", dict)
    try:
        made = None if limits is None else Limits(**limits)
    except (TypeError, ValueError) as error:
        raise Unusable(f"limits: {error}") from None
    accept = Accept(
        _take(found, "identity", str) or None,
        _take(found, "claims", dict),
        _expiry(found, "expires_at"),
        made,
    )
    grants = _grants(found.get("permissions"), _take(found, "superuser", bool) is True)
    return Answer(accept, grants, keep)


def hookmq_authorize(status: int, body: bytes) -> Answer:
    """Parse a response to `authorize`, a JSON object as described in the README. Unknown keys are errors."""
    refused = _refused(status, body)
    if refused is not None:
        return refused
    if status == 204:
        return Answer(Allow())
    found = _json(body)
    _known(found, _AUTHORIZE_KEYS)
    result, keep = _result(found), _keep(found)
    if result == "ignore":
        return Answer(None, {}, keep)
    if result == "deny":
        return Answer(_deny(found, ReasonCode.NOT_AUTHORIZED), {}, keep)
    try:
        return Answer(Allow(max_qos=_take(found, "max_qos", int)), {}, keep)
    except ValueError as error:
        raise Unusable(str(error)) from None


# -- EMQX's contract


def emqx_authenticate(status: int, body: bytes) -> Answer:
    """Parse ``{"result", "is_superuser", "client_attrs", "expire_at", "acl"}``. Other EMQX keys are ignored.

    If the status is a failure, EMQX ignores the response and continues. HookMQ treats the decision as undecided.
    """
    if _status(status) is False:
        return Answer(Deny(ReasonCode.NOT_AUTHORIZED))
    if status == 204:
        return Answer(Accept())
    found = _json(body)
    result = _result(found)
    if result == "ignore":
        return Answer(None)
    if result == "deny":
        return Answer(Deny(ReasonCode.NOT_AUTHORIZED))
    attributes = _take(found, "client_attrs", dict)
    acl = _take(found, "acl", list)
    lists = None if acl is None else [_emqx_rule(rule) for rule in acl]
    accept = Accept(claims=attributes, expires_at=_expiry(found, "expire_at"))
    return Answer(accept, _grants(lists, _take(found, "is_superuser", bool) is True))


def _emqx_rule(rule: Any) -> Any:
    """Translate the variables and QoS lists of an EMQX rule. Raises Unusable for `eq` rules."""
    if not isinstance(rule, dict):
        raise Unusable("acl contains an entry that is not an object")
    # The remaining keys are checked like those of HookMQ rules, because an unknown condition must not be ignored.
    made = {key: value for key, value in rule.items() if key != "qos"}
    topic = made.get("topic")
    if isinstance(topic, str):
        if topic.startswith("eq "):
            raise Unusable(f"acl: eq is not supported: {topic[:60]!r}")
        made["topic"] = topic.replace("${clientid}", "%c").replace("${username}", "%u")
    if made.get("retain") == "all":
        del made["retain"]
    qos = rule.get("qos")
    if qos is not None:
        allowed = qos if isinstance(qos, list) else [qos]
        if sorted(map(str, allowed)) != [str(n) for n in range(len(allowed))]:
            raise Unusable(f"acl: qos is {str(qos)[:40]}, expected all levels up to one")
        made["qos"] = len(allowed) - 1
    return made


def emqx_authorize(status: int, body: bytes) -> Answer:
    """Parse ``{"result"}``."""
    refused = _refused(status, body)
    if refused is not None:
        return refused
    if status == 204:
        return Answer(Allow())
    result = _result(_json(body))
    verdicts: dict[str, Allow | Deny | None] = {"allow": Allow(), "deny": Deny(), "ignore": None}
    return Answer(verdicts[result])


# -- mosquitto-go-auth's contract


def _go_allows(status: int, body: bytes) -> bool:
    """Return whether a response allows the action. It does if its body is empty, ``{"ok": true}`` or the plain text
    ``ok``.
    """
    if 400 <= status < 500:
        return False
    if not 200 <= status < 300:
        raise Unusable(f"status {status}")
    text = body.strip()
    if not text or text.lower() == b"ok":
        return True
    if text[:1] != b"{":
        return False  # any other text is the reason for a denial
    found = {key.lower(): value for key, value in _json(text).items()}
    ok = found.get("ok")
    if not isinstance(ok, bool):
        raise Unusable("ok: expected true or false")
    return ok


def go_authenticate(status: int, body: bytes) -> Answer:
    """Parse a response from the user endpoint."""
    ok = _go_allows(status, body)
    return Answer(Accept() if ok else Deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD))


def go_superuser(status: int, body: bytes) -> Answer:
    """Parse a response from the superuser endpoint. The verdict is Allow for a superuser, otherwise None."""
    return Answer(Allow() if _go_allows(status, body) else None)


def go_authorize(status: int, body: bytes) -> Answer:
    """Parse a response from the ACL endpoint."""
    if _go_allows(status, body):
        return Answer(Allow())
    return Answer(Deny(), bare=status >= 400 and not _go_body_denies(body))


def _go_body_denies(body: bytes) -> bool:
    try:
        found = {key.lower(): value for key, value in _json(body).items()}
    except Unusable:
        return False
    return found.get("ok") is False


class Contract(NamedTuple):
    """The contract with a service: the default members of requests, and the functions that parse the responses."""

    authenticate: Mapping[str, str]
    authorize: Mapping[str, str]
    read_authenticate: Read
    read_authorize: Read
    superuser: Mapping[str, str] = {}


CONTRACTS: Final[Mapping[str, Contract]] = {
    "hookmq": Contract(
        {
            "clientid": "${clientid}", "username": "${username}", "password": "${password}", "peerhost": "${peerhost}",
            "listener": "${listener}", "version": "${version}", "cert_common_name": "${cert_common_name}",
        },
        {
            "clientid": "${clientid}", "username": "${username}", "identity": "${identity}", "peerhost": "${peerhost}",
            "listener": "${listener}", "action": "${action}", "topic": "${topic}", "qos": "${qos}",
            "retain": "${retain}", "share": "${share}",
        },
        hookmq_authenticate,
        hookmq_authorize,
    ),
    "emqx": Contract(
        {"clientid": "${clientid}", "username": "${username}", "password": "${password}"},
        {
            "clientid": "${clientid}", "username": "${username}", "topic": "${topic}", "action": "${action}",
            "qos": "${qos}", "retain": "${retain}",
        },
        emqx_authenticate,
        emqx_authorize,
    ),
    "mosquitto-go-auth": Contract(
        {"username": "${username}", "password": "${password}", "clientid": "${clientid}"},
        {"username": "${username}", "clientid": "${clientid}", "topic": "${topic}", "acc": "${access}"},
        go_authenticate,
        go_authorize,
        {"username": "${username}"},
    ),
}  # fmt: skip
