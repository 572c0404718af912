"""What services answer, and what it means. An answer that cannot be understood in full is `Unusable`: it decides nothing,
and nothing is allowed by it."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from hookmq.plugin import Accept, Allow, ConfigError, Deny, Limits, ReasonCode
from hookmq.rules import Rules, rules_from_lists

MAX_REASON: Final = 200
DEPTH: Final = 32
GRANTS: Final = "permissions"
SUPERUSER: Final = "superuser"


class Unusable(Exception):
    """The service answered, but not so that anything could be decided."""


class Undecided(Exception):
    """Raised out of a hook: the broker refuses, as with every plugin that could not decide."""


class Answer(NamedTuple):
    """A verdict, None to leave it to others. `grants` is what an accepted client may do, as the plugin keeps it among the
    claims; `keep` is for how many seconds the answer holds, None where the service does not say. `bare`: a status alone
    said no, as a gateway does during an incident, so that nothing the client has may be taken away for it."""

    verdict: Accept | Allow | Deny | None
    grants: Mapping[str, Any] = {}
    keep: float | None = None
    bare: bool = False


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
        raise Unusable(f"{key} is a {type(value).__name__}, not {names}")
    return value


def _known(found: Mapping[str, Any], keys: frozenset[str]) -> None:
    """A key with a slip of the pen would otherwise grant more than was meant: an ``expire_at`` that never expires."""
    unknown = sorted(set(found) - keys)
    if unknown:
        raise Unusable(f"unknown key {unknown[0]!r}; known: {', '.join(sorted(keys))}")


def _deny(found: Mapping[str, Any], code: ReasonCode) -> Deny:
    told, reason = _take(found, "code", int), _take(found, "reason", str)
    try:
        return Deny(code if told is None else ReasonCode(told), reason and reason[:MAX_REASON])
    except ValueError:
        raise Unusable(f"code {told} is no reason code of a refusal") from None


def _keep(found: Mapping[str, Any]) -> float | None:
    seconds = _take(found, "cache", int, float)
    if seconds is not None and not 0 <= seconds < 1e9:
        raise Unusable(f"cache is {seconds}: seconds")
    return None if seconds is None else float(seconds)


def _result(found: Mapping[str, Any]) -> str:
    result = found.get("result")
    if result not in ("allow", "deny", "ignore"):
        raise Unusable(f"result is {str(result)[:40]!r}: allow, deny or ignore")
    return str(result)


def _grants(lists: Any, superuser: bool) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if lists is not None:
        try:
            Rules(rules_from_lists(lists, GRANTS))
        except (ConfigError, RecursionError) as error:
            raise Unusable(str(error)) from None
        made[GRANTS] = lists
    if superuser:
        made[SUPERUSER] = True
    return made


def _expiry(found: Mapping[str, Any], key: str) -> float | None:
    value = _take(found, key, int, float)
    if value is not None and not 0 < value < 1e11:
        raise Unusable(f"{key} is {value}: seconds since 1970")
    return None if value is None else float(value)


def _status(status: int) -> bool | None:
    """Whether a status without a body that counts says yes; None: look at the body. 401 and 403 are a no, whatever the
    body; every other failure leaves it undecided."""
    if status in (401, 403):
        return False
    if status == 204:
        return True
    if not 200 <= status < 300:
        raise Unusable(f"status {status}")
    return None


def _refused(status: int, body: bytes) -> Answer | None:
    """What a status of `authorize` says against it; None if it says yes or leaves it to the body. A 401 is about the
    broker's own credentials."""
    if status == 401:
        raise Unusable("status 401: the service does not know the broker")
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
    """See the README: 200 with a JSON object whose every key is known."""
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
    """As `hookmq_authenticate`, with ``max_qos``."""
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
    """``{"result", "is_superuser", "client_attrs", "expire_at", "acl"}``; other keys are EMQX's own and are passed over.
    Where EMQX ignores a failing status, nothing is decided here."""
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
    """EMQX writes its variables otherwise, has ``eq`` for one filter alone, and lists of QoS."""
    if not isinstance(rule, dict):
        raise Unusable("acl holds something that is not an object")
    # What is left is looked at as our own rules are: a condition that is not known must not be passed over.
    made = {key: value for key, value in rule.items() if key != "qos"}
    topic = made.get("topic")
    if isinstance(topic, str):
        if topic.startswith("eq "):
            raise Unusable(f"acl: {topic[:60]!r}: eq is not supported")
        made["topic"] = topic.replace("${clientid}", "%c").replace("${username}", "%u")
    if made.get("retain") == "all":
        del made["retain"]
    qos = rule.get("qos")
    if qos is not None:
        allowed = qos if isinstance(qos, list) else [qos]
        if sorted(map(str, allowed)) != [str(n) for n in range(len(allowed))]:
            raise Unusable(f"acl: qos {str(qos)[:40]} is not all up to one")
        made["qos"] = len(allowed) - 1
    return made


def emqx_authorize(status: int, body: bytes) -> Answer:
    """``{"result"}``."""
    refused = _refused(status, body)
    if refused is not None:
        return refused
    if status == 204:
        return Answer(Allow())
    result = _result(_json(body))
    verdicts: dict[str, Allow | Deny | None] = {"allow": Allow(), "deny": Deny(), "ignore": None}
    return Answer(verdicts[result])


# -- mosquitto-go-auth's contract


def _go_says(status: int, body: bytes) -> bool:
    """Its three ways to answer, told apart by the body: the status alone, ``{"ok": true}``, or the text ``ok``."""
    if 400 <= status < 500:
        return False
    if not 200 <= status < 300:
        raise Unusable(f"status {status}")
    text = body.strip()
    if not text or text.lower() == b"ok":
        return True
    if text[:1] != b"{":
        return False  # a text that is not ok is its reason
    found = {key.lower(): value for key, value in _json(text).items()}
    ok = found.get("ok")
    if not isinstance(ok, bool):
        raise Unusable("ok is not true or false")
    return ok


def go_authenticate(status: int, body: bytes) -> Answer:
    """The user endpoint."""
    ok = _go_says(status, body)
    return Answer(Accept() if ok else Deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD))


def go_superuser(status: int, body: bytes) -> Answer:
    """The superuser endpoint: Allow for one, None for anybody else."""
    return Answer(Allow() if _go_says(status, body) else None)


def go_authorize(status: int, body: bytes) -> Answer:
    """The acl endpoint."""
    if _go_says(status, body):
        return Answer(Allow())
    return Answer(Deny(), bare=status >= 400 and not _go_tells(body))


def _go_tells(body: bytes) -> bool:
    """Whether the body itself says no."""
    try:
        found = {key.lower(): value for key, value in _json(body).items()}
    except Unusable:
        return False
    return found.get("ok") is False


class Contract(NamedTuple):
    """What is sent where the configuration does not say, and how answers are read."""

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
