"""Routes for users, groups and their rules. A plugin such as `accounts` stores them; see `hookmq_toolkit.accounts`."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

from hookmq.plugin import BrokerHandle
from hookmq_toolkit.accounts import SERVICE, AccountError, AccountManager, Kind
from hookmq_toolkit.rules import ACTIONS

from hookmq_admin.errors import ApiError
from hookmq_admin.fields import PAGED, Field, Fields
from hookmq_admin.preconditions import tag_of
from hookmq_admin.schemas import FLAG, WHOLE, paged, record, ref
from hookmq_admin.services import Call, Route
from hookmq_admin.tokens import Role

MAX_NAME: Final = 512
MAX_IMPORTED: Final = 100_000
"""Maximum number of users or groups in one document. The listener's ``max_body`` is usually the lower limit."""
_STATUS: Final = {"invalid": 400, "missing": 404, "conflict": 409, "busy": 503}
Handler = Callable[[Call], Awaitable[Any]]


def manager_of(broker: BrokerHandle) -> AccountManager:
    """Return the service of the first plugin that manages accounts. Raises ApiError 409."""
    for found in broker.services(SERVICE).values():
        if isinstance(found, AccountManager):
            return found
    raise ApiError(409, "users and groups need the plugin accounts, which is not configured")


@contextmanager
def reported() -> Iterator[None]:
    """Convert an AccountError to an ApiError."""
    try:
        yield
    except AccountError as error:
        raise ApiError(_STATUS[error.reason], str(error), error.field) from None


# handlers ------------------------------------------------------------------------------------------------------------


async def _list(call: Call, kind: Kind) -> Any:
    given = call.arguments
    selected = {name: given[name] for name in ("search", "group", "enabled") if name in given}
    with reported():
        page = manager_of(call.broker).page(kind, given["cursor"], given["limit"], **selected)
    return {"items": list(page.items), "cursor": page.cursor}


async def _show(call: Call, kind: Kind) -> Any:
    with reported():
        return manager_of(call.broker).find(kind, call.parts[kind])


async def _create(call: Call, kind: Kind) -> Any:
    given = _given(call)
    password = given.pop("password", None)
    with reported():
        found = manager_of(call.broker)
        return await found.create(kind, given, None if password is None else password.encode())


async def _change(call: Call, kind: Kind) -> Any:
    with reported():
        return await manager_of(call.broker).change(kind, call.parts[kind], _given(call))


async def _delete(call: Call, kind: Kind) -> Any:
    with reported():
        await manager_of(call.broker).delete(kind, call.parts[kind])
    return {"deleted": True}


async def set_password(call: Call) -> Any:
    """Set a user's password."""
    with reported():
        password = call.arguments["password"].encode()
        await manager_of(call.broker).set_password(call.parts["user"], password)
    return {"changed": True}


async def _add_rule(call: Call, kind: Kind) -> Any:
    given = _given(call)
    position = given.pop("position", None)
    with reported():
        try:
            found = manager_of(call.broker)
            return await found.add_rule(kind, call.parts[kind], given, position)
        except (
            AccountError
        ) as error:  # in this request, the fields of the rule are those of the body
            error.field = error.field.removeprefix("rule.")
            raise


async def _delete_rule(call: Call, kind: Kind) -> Any:
    text = call.parts["rule_id"]
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise ApiError(400, "expected the number of a rule", "rule_id")
    with reported():
        return await manager_of(call.broker).delete_rule(kind, call.parts[kind], int(text))


async def export(call: Call) -> Any:
    """Return all users and groups."""
    with reported():
        return await manager_of(call.broker).export(call.arguments["hashes"])


async def import_(call: Call) -> Any:
    """Create or change all users and groups in a document, or none of them."""
    given = _given(call)
    options = {name: bool(given.pop(name, False)) for name in ("replace", "check")}
    with reported():
        return await manager_of(call.broker).load(given, **options)


def _tag(call: Call, kind: Kind) -> str:
    """Return the entity tag for the user or group named in the path."""
    with reported():
        found = manager_of(call.broker).find(kind, call.parts[kind])
    return tag_of((repr(found["created_at"]), str(found["revision"])))


def _given(call: Call) -> dict[str, Any]:
    """Return the arguments that the request specifies."""
    return {name: value for name, value in call.arguments.items() if value is not None}


# fields --------------------------------------------------------------------------------------------------------------

# fmt: off
_ACTIONS: Final = Field("list", "actions", minimum=1, maximum=len(ACTIONS),
                        items=Field("string", "an action", choices=tuple(ACTIONS)))
RULE: Final[Fields] = {
    "allow": replace(_ACTIONS, help="the actions that the rule allows; a rule has either `allow` or `deny`"),
    "deny": replace(_ACTIONS, help="the actions that the rule denies"),
    "topic": Field("list", "topic filters; a level may be %u, %c or ${claim}", required=True, minimum=1, maximum=100,
                   items=Field("string", "a topic filter", minimum=1, maximum=1024)),
    "qos": Field("integer", "the highest QoS to which the rule applies", minimum=0, maximum=2),
    "retain": Field("boolean", "the RETAIN flag to which the rule applies"),
}
_NAME: Final = Field("string", "the name", required=True, minimum=1, maximum=MAX_NAME)
_NOTE: Final = Field("string", "a note for people", maximum=256)
_RULES: Final = Field("list", "the rules; the first that applies decides", maximum=1000,
                      items=Field("object", "a rule", fields={
                          **RULE, "id": Field("integer", "ignored: the broker numbers the rules")}))
_GROUP_NAMES: Final = Field("list", "the groups of the user; the rules of the first group come first", maximum=32,
                            items=Field("string", "the name of a group", minimum=1, maximum=MAX_NAME))
_ENABLED: Final = Field("boolean", "whether the user may connect")
_HASH: Final = Field("string", "the hash of the password", maximum=512, secret=True)
_PASSWORD: Final = Field("string", "the password", maximum=4096, secret=True)
GROUP: Final[Fields] = {"name": _NAME, "rules": _RULES, "note": _NOTE}
USER: Final[Fields] = {**GROUP, "enabled": _ENABLED, "groups": _GROUP_NAMES, "hash": _HASH}
_CHANGED_GROUP: Final[Fields] = {"rules": _RULES, "note": _NOTE}
_CHANGED_USER: Final[Fields] = {**_CHANGED_GROUP, "enabled": _ENABLED, "groups": _GROUP_NAMES}
_ADDED: Final[Fields] = {**RULE, "position": Field("integer", "insert it before this rule, counted from 0; by default, "
                                                   "add it at the end", minimum=0, maximum=1000)}
_CURSOR: Final = replace(PAGED["cursor"], maximum=MAX_NAME)
_LISTED: Final[Fields] = {**PAGED, "cursor": _CURSOR, "search": Field("string", "a part of the name", default="")}
_LISTED_USERS: Final[Fields] = {
    **_LISTED,
    "group": Field("string", "only users with this group", default=""),
    "enabled": Field("boolean", "only enabled users, or only disabled users"),
}
IMPORTED: Final[Fields] = {
    "version": Field("integer", "the version of the document", minimum=1, maximum=1),
    "groups": Field("list", "groups", maximum=MAX_IMPORTED, items=Field("object", "a group", fields=GROUP)),
    "users": Field("list", "users", maximum=MAX_IMPORTED, items=Field("object", "a user", fields=USER)),
    "replace": Field("boolean", "whether to delete all other users and groups", default=False),
    "check": Field("boolean", "whether to validate the document and change nothing", default=False),
}
_O, _A = Role.OPERATOR, Role.ADMIN


def _routes(kind: Kind, new: Fields, changed: Fields, listed_by: Fields) -> tuple[Route, ...]:
    title, schema = kind.title(), ref(kind.title())
    path = f"/{kind}s"
    one = f"{path}/{{{kind}}}"
    missing = (404, 409)
    tag = partial(_tag, kind=kind)
    return (
        Route("GET", path, f"list{title}s", _O, f"List and search {kind}s", partial(_list, kind=kind), paged(title),
              query=listed_by, errors=(409,)),
        Route("POST", path, f"create{title}", _A, f"Create a {kind}", partial(_create, kind=kind), schema, body=new,
              change=True, errors=(409, 503)),
        Route("GET", one, f"get{title}", _O, f"Get one {kind}", partial(_show, kind=kind), schema,
              errors=missing, tag=tag),
        Route("PATCH", one, f"change{title}", _A, f"Change the given fields of a {kind}", partial(_change, kind=kind),
              schema, body=changed, change=True, errors=missing, tag=tag),
        Route("DELETE", one, f"delete{title}", _A, f"Delete a {kind}", partial(_delete, kind=kind),
              record(deleted=FLAG), change=True, errors=missing, tag=tag),
        Route("POST", one + "/rules", f"add{title}Rule", _A, f"Add a rule to a {kind}", partial(_add_rule, kind=kind),
              schema, body=_ADDED, change=True, errors=missing, tag=tag),
        Route("DELETE", one + "/rules/{rule_id}", f"delete{title}Rule", _A, f"Delete a rule of a {kind}",
              partial(_delete_rule, kind=kind), schema, change=True, errors=missing, tag=tag),
    )


ROUTES: Final = (
    *_routes("user", {**USER, "password": _PASSWORD}, _CHANGED_USER, _LISTED_USERS),
    Route("PUT", "/users/{user}/password", "setPassword", _A, "Set the password of a user", set_password,
          record(changed=FLAG), body={"password": replace(_PASSWORD, required=True)}, change=True,
          errors=(404, 409, 503)),
    *_routes("group", GROUP, _CHANGED_GROUP, _LISTED),
    Route("GET", "/accounts", "exportAccounts", _A, "Get all users and groups as one document", export,
          ref("Accounts"), errors=(409,), change=True,
          query={"hashes": Field("boolean", "whether to include the hashes of passwords", default=False)}),
    Route("POST", "/accounts", "importAccounts", _A, "Create or change all users and groups of a document, or nothing",
          import_, record(created=WHOLE, changed=WHOLE, deleted=WHOLE), body=IMPORTED, change=True,
          hidden=("users", "groups"), errors=(409,)),
)
# fmt: on
