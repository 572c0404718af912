"""Routes for tokens and for the audit log."""

from typing import Any, Final

from hookmq_admin import shown
from hookmq_admin.errors import ApiError
from hookmq_admin.fields import Field
from hookmq_admin.preconditions import tag_of
from hookmq_admin.schemas import FLAG, listed, paged, record, ref
from hookmq_admin.services import Call, Route
from hookmq_admin.tokens import MAX_TOKENS, ROLES, Role

YEAR: Final = 31_622_400


def _check_name(text: str) -> None:
    if not text.isprintable():
        raise ValueError("expected printable characters")


def _check_cursor(text: str) -> None:
    if text and not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise ValueError("this is not a cursor")


async def me(call: Call) -> Any:
    """Return the token that the request was made with."""
    return shown.token(call.token)


def tag(call: Call) -> str:
    """Return the entity tag for the list of tokens."""
    return tag_of(token.id for token in call.services.tokens)


async def tokens(call: Call) -> Any:
    """Return all tokens."""
    return {"items": [shown.token(one) for one in call.services.tokens]}


async def create(call: Call) -> Any:
    """Create a token. Return it together with its secret text."""
    given, found = call.arguments, call.services.tokens
    if found.named(given["name"]):
        raise ApiError(409, "a token has this name", "name")
    if len(found) >= MAX_TOKENS:
        raise ApiError(409, f"there are {MAX_TOKENS} tokens, which is the limit")
    now = call.broker.time()
    seconds = given["expires_in"]
    expires_at = None if seconds is None else now + seconds
    token, text = found.draw(
        given["name"], given["role"], now, call.token.name, expires_at, given["identity"]
    )
    await found.add(token)
    return {**shown.token(token), "token": text}


async def revoke(call: Call) -> Any:
    """Revoke a token."""
    found = call.services.tokens
    token = found.get(call.parts["token_id"])
    if token is None:
        raise ApiError(404, "no token has this id", "token_id")
    admins = found.admins(call.broker.time())
    lasting = [one for one in admins if one.expires_at is None and one.id != token.id]
    if token in admins and not lasting:
        raise ApiError(
            409, "this is the last admin token that does not expire: create another first"
        )
    await found.revoke(token.id)
    return {"revoked": True}


async def audit(call: Call) -> Any:
    """Return a page of the audit log, newest first."""
    cursor, limit = call.paging()
    entries, before = call.services.audit.entries(int(cursor) if cursor else None, limit)
    return {"items": entries, "cursor": "" if before is None else str(before)}


_V, _A = Role.VIEWER, Role.ADMIN
# fmt: off
ROUTES: Final = (
    Route("GET", "/me", "getMe", _V, "Get the token of this request", me, ref("Token")),
    Route("GET", "/tokens", "listTokens", _A, "List the tokens", tokens, record(items=listed(ref("Token"))),
          tag=tag),
    Route("POST", "/tokens", "createToken", _A, "Create a token", create, ref("NewToken"), change=True, tag=tag,
          errors=(409,),
          body={"name": Field("string", "a name for people", required=True, minimum=1, maximum=64, check=_check_name),
                "role": Field("string", "what it may do", required=True, choices=ROLES),
                "expires_in": Field("number", "seconds; by default it never expires", minimum=1, maximum=10 * YEAR),
                "identity": Field("string", "publish under this name; `admin:NAME` by default", default="",
                                  maximum=256, check=_check_name)}),
    Route("DELETE", "/tokens/{token_id}", "revokeToken", _A, "Revoke a token", revoke, record(revoked=FLAG),
          change=True, errors=(404, 409), tag=tag),
    Route("GET", "/audit", "listAudit", _A, "List changes, the newest first", audit, paged("AuditEntry"),
          query={"cursor": Field("string", "the cursor of the previous page", default="", check=_check_cursor),
                 "limit": Field("integer", "most entries", default=100, minimum=1, maximum=500)}),
)
# fmt: on
