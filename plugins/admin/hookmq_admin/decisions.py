"""Routes that explain decisions: whether a client may do something, whether credentials would be accepted, and which
plugin decides.
"""

from secrets import token_hex
from typing import Any, Final

from hookmq.mqtt_api import parse_share, validate_filter, validate_topic
from hookmq.plugin import (
    Accept,
    Action,
    Allow,
    ClientInfo,
    ClientRequest,
    Deny,
    Message,
    Peer,
    PluginDecision,
    Scope,
)
from hookmq_toolkit.accounts import SERVICE, AccountError, AccountManager

from hookmq_admin import shown
from hookmq_admin.errors import ApiError
from hookmq_admin.fields import QOS, Field, Fields
from hookmq_admin.schemas import ref
from hookmq_admin.services import Call, Route
from hookmq_admin.tokens import Role

ACTIONS: Final = ("publish", "subscribe", "deliver", "will")
_DEFAULT: Final = {Action.DELIVER: "the broker: no plugin denies it"}


async def check_access(call: Call) -> Any:
    """Ask all plugins whether a client may perform an action."""
    given = call.arguments
    action = Action(given["action"])
    client, online = _client(call)
    topic = _topic(client, action, given["topic"])
    message = None
    if action is not Action.SUBSCRIBE:
        sender = None if action is Action.DELIVER else client.client_id
        message = Message(topic, b"", given["qos"], given["retain"], sender=sender)
    found = await call.broker.explain(client, action, topic, message)
    verdict: Allow | Deny | Accept = _combined(found)
    if action is not Action.DELIVER:
        verdict = await call.broker.authorize(client, action, topic, message)
    plugin, rule = _decider(found, isinstance(verdict, Deny))
    return {
        "allowed": not isinstance(verdict, Deny),
        "decided": not isinstance(verdict, Deny) or verdict.decided,
        "plugin": plugin,
        "rule": rule,
        "why": _why(verdict, plugin, rule, _DEFAULT.get(action, "authz.default")),
        "client": {
            "client_id": client.client_id,
            "identity": client.identity,
            "vouched_by": client.vouched_by,
            "listener": client.listener,
            "online": online,
        },
        "plugins": [_shown(one) for one in found],
    }


async def check_credentials(call: Call) -> Any:
    """Ask all plugins whether they would accept a client, without connecting it."""
    given = call.arguments
    password = given["password"]
    request = ClientRequest(
        given["client_id"] or f"test-{token_hex(4)}",
        given["username"],
        None if password is None else password.encode(),
        listener=given["listener"],
        peer=Peer(given["address"] or call.address, 0, "plugin"),
    )
    found = await call.broker.explain_connect(request)
    verdict = _combined(found)
    denied = isinstance(verdict, Deny)
    plugin, rule = _decider(found, denied)
    accepts = [one.verdict for one in found if isinstance(one.verdict, Accept)]
    identity = next((one.identity for one in accepts if one.identity is not None), None)
    return {
        "accepted": not denied,
        "decided": not isinstance(verdict, Deny) or verdict.decided,
        "identity": None if denied else identity,
        "plugin": plugin,
        "rule": rule,
        "why": _why(verdict, plugin, rule, "auth.default"),
        "plugins": [_shown(one) for one in found],
    }


def _client(call: Call) -> tuple[ClientInfo, bool]:
    """Return the client that a request is about, and whether it is online."""
    given = call.arguments
    client_id, user = given["client_id"], given["user"]
    if user is None:
        if client_id is None:
            raise ApiError(400, "give a client id, a user, or both", "client_id")
        online = call.broker.client(client_id)
        if online is not None:
            return online, True
        session = call.broker.session(client_id)
        if session is None:
            raise ApiError(404, "no client has this id", "client_id")
        user = session.identity if session.identity is not None else session.username
        peer, listener, version = session.peer, session.listener, session.version
    else:
        peer, listener, version = Peer(given["address"], 0, "plugin"), given["listener"], 5
        client_id = f"test-{token_hex(4)}" if client_id is None else client_id
    voucher = given["vouched_by"]
    if voucher is None:
        voucher = _voucher(call, user)
    made = ClientInfo(
        client_id, version, user, peer, Scope(listener), identity=user, vouched_by=voucher,
        claims=given["claims"] or {},
    )  # fmt: skip
    return made, False


def _voucher(call: Call, user: str | None) -> str:
    """Return the name of the plugin that has an account for a user. That plugin would authenticate the client."""
    for plugin, manager in call.broker.services(SERVICE).items():
        if user is not None and isinstance(manager, AccountManager):
            try:
                manager.find("user", user)
            except AccountError as error:
                if error.reason == "missing":
                    continue
            return f"plugin:{plugin}"
    return ""


def _topic(client: ClientInfo, action: Action, topic: str) -> str:
    """Return a topic as plugins see it, prefixed with the mount point of the client's listener."""
    mount = client.scope.mount_point
    if action is not Action.SUBSCRIBE:
        Field("string", "", check=validate_topic).parse("topic", topic)
        return mount + topic
    Field("string", "", check=validate_filter).parse("topic", topic)
    share, inner = parse_share(topic)
    return mount + inner if share is None else f"$share/{share}/{mount}{inner}"


def _combined(found: tuple[PluginDecision, ...]) -> Accept | Allow | Deny:
    """Return the combined verdict of all plugins. If all of them abstain, the last entry in the list is the default."""
    verdicts = [one.verdict for one in found if one.verdict is not None]
    return next((one for one in verdicts if isinstance(one, Deny)), verdicts[0])


def _decider(found: tuple[PluginDecision, ...], denied: bool) -> tuple[str, str]:
    """Return the plugin whose verdict was decisive, and the rule behind it."""
    for one in found:
        if one.verdict is not None and isinstance(one.verdict, Deny) == denied:
            return one.plugin, getattr(one.verdict, "rule", "")
    return "", ""


def _why(verdict: Accept | Allow | Deny, plugin: str, rule: str, default: str) -> str:
    done = "allowed" if isinstance(verdict, Allow) else "accepted"
    if isinstance(verdict, Deny):
        done = "denied" if verdict.decided else "refused, because it could not be decided,"
    by = f"{plugin} ({rule})" if plugin and rule else plugin
    if not by:
        by = default
        if isinstance(verdict, Deny) and verdict.reason:
            by = f"the broker: {verdict.reason}"
    return f"{done} by {by}"


def _shown(decision: PluginDecision) -> dict[str, Any]:
    verdict = decision.verdict
    word = "abstain"
    if isinstance(verdict, Deny):
        word = "deny" if verdict.decided else "undecided"
    elif isinstance(verdict, Allow):
        word = "allow"
    elif isinstance(verdict, Accept):
        word = "accept"
    return {
        "plugin": decision.plugin,
        "verdict": word,
        "rule": getattr(verdict, "rule", ""),
        "reason": getattr(verdict, "reason", None) or "",
        "code": int(verdict.code) if isinstance(verdict, Deny) else None,
        "max_qos": verdict.max_qos if isinstance(verdict, Allow) else None,
        "identity": verdict.identity if isinstance(verdict, Accept) else None,
        "claims": shown.masked(verdict.claims or {}) if isinstance(verdict, Accept) else {},
    }


# fmt: off
_CLIENT_ID: Final = Field("string", "a client id", minimum=1)
ACCESS: Final[Fields] = {
    "client_id": Field("string", "a client; without `user`, it must have a session", minimum=1),
    "user": Field("string", "the identity of a client that need not be connected", minimum=1),
    "action": Field("string", "what it wants to do", required=True, choices=ACTIONS),
    "topic": Field("string", "a topic, or a filter for subscribe", required=True, minimum=1),
    "qos": QOS,
    "retain": Field("boolean", "whether the message has the RETAIN flag set", default=False),
    "vouched_by": Field("string", "what authenticated the client, as `plugin:ID`; by default, the plugin that has an "
                        "account for the user"),
    "claims": Field("map", "claims of the client"),
    "listener": Field("string", "the name of its listener", default="default"),
    "address": Field("string", "its address", default=""),
}
CREDENTIALS: Final[Fields] = {
    "username": Field("string", "the user name"),
    "password": Field("string", "the password or token", secret=True),
    "client_id": Field("string", "the client id; random by default", default=""),
    "listener": Field("string", "the name of its listener", default="default"),
    "address": Field("string", "its address; that of this request by default", default=""),
}
ROUTES: Final = (
    Route("POST", "/access", "checkAccess", Role.OPERATOR, "Test whether a client may do something, and explain why",
          check_access, ref("Access"), body=ACCESS, errors=(404,)),
    Route("POST", "/credentials", "checkCredentials", Role.ADMIN,
          "Test whether a client would be accepted, and explain why", check_credentials, ref("Credentials"),
          body=CREDENTIALS, change=True),
)
# fmt: on
