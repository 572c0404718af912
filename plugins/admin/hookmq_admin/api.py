"""Serve the routes: authentication, validation, errors, headers and the audit log."""

import asyncio
import json
import re
from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Any, Final, NoReturn, Protocol

from aiohttp import web
from hookmq.plugin import HttpRouter, PluginError, StaleCursor, StoreError
from hookmq_toolkit.threads import in_thread

from hookmq_admin.audit import recorded
from hookmq_admin.encoding import send
from hookmq_admin.errors import ApiError
from hookmq_admin.fields import Fields, parse_body, parse_query
from hookmq_admin.preconditions import check
from hookmq_admin.services import Call, Route, Services
from hookmq_admin.tokens import Token

BASE: Final = "/api/v1"
HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""The headers of every response. They do not let web pages from other origins read it."""
CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="hookmq-admin"'}
PART: Final = re.compile(r"\{(\w+)\}")
"""A named part of a path. By default, aiohttp does not match parts that contain braces, and client ids may."""
AT_ONCE: Final = 16_384
"""Maximum length of a body that is parsed on the event loop. Longer ones are parsed in a thread."""
MAX_QUERY: Final = 300_000
"""Maximum length of a query string. A cursor may contain a topic."""


class Serving(Protocol):
    """The parts of the plugin that the routes use."""

    @property
    def services(self) -> Services: ...


def register(router: HttpRouter, plugin: Serving, routes: tuple[Route, ...]) -> None:
    """Add `routes` to the HTTP listeners. Requests must carry an API token instead of the listener's token."""
    for route in routes:
        served = _Served(plugin, route)
        router.add(
            route.method,
            BASE + PART.sub(r"{\1:[^/]+}", route.path),
            served.handle,
            authenticates=True,
            streams=route.streams,
        )


class _Served:
    """A route and its plugin."""

    def __init__(self, plugin: Serving, route: Route) -> None:
        self._plugin = plugin
        self._route = route

    async def handle(self, request: web.BaseRequest, **parts: str) -> web.StreamResponse:
        """Return the response to a request."""
        services = self._plugin.services
        try:
            response = await self._answer(services, request, parts)
        except ApiError as error:
            response = _problem(error)
        services.counts[f"requests:{self._route.name}:{response.status}"] += 1
        return response

    async def _answer(
        self, services: Services, request: web.BaseRequest, parts: Mapping[str, str]
    ) -> web.StreamResponse:
        route = self._route
        address = request.remote or ""
        token = authenticate(services, request, address)
        arguments: dict[str, Any] = {}
        begun = False

        async def begin() -> None:
            nonlocal begun
            begun = True
            await _committed(self._record(services, token, address, parts, arguments, None))

        def record(given: Mapping[str, Any], error: ApiError | None) -> Awaitable[None] | None:
            if begun:
                return None
            return self._record(services, token, address, parts, given, error)

        try:
            if token.rank < route.role:
                raise ApiError(403, f"this needs a token with the role {route.role.label}")
            arguments = await self._arguments(request, parts)
            call = Call(services, request, token, address, parts, arguments, begin)
            answer = await _answered(services, route, call)
        except ApiError as error:
            await _committed(record(arguments, error))
            raise
        except asyncio.CancelledError:
            record(arguments, ApiError(503, "the time limit passed, or the client disconnected"))
            raise
        except Exception:
            record(arguments, ApiError(500, "the plugin failed"))
            raise
        await _committed(record(arguments, None))
        if isinstance(answer, web.StreamResponse):
            return answer
        tagged = {} if route.tag is None or route.change else {"ETag": route.tag(call)}
        return await send(request, answer, {**HEADERS, **tagged})

    async def _arguments(
        self, request: web.BaseRequest, parts: Mapping[str, str]
    ) -> dict[str, Any]:
        route = self._route
        for name, text in parts.items():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise ApiError(400, "the path is not valid Unicode", name) from None
        if len(request.query_string) > MAX_QUERY:
            raise ApiError(400, "the query is too long")
        found = parse_query(route.query, list(request.query.items()))
        data = await request.read()
        if route.body is None:
            if data:
                raise ApiError(400, "expected a request without a body")
            return found
        if not data:
            return found | parse_body(route.body, {})
        if request.content_type != "application/json":
            raise ApiError(415, "expected Content-Type: application/json")
        parse = partial(_parsed, route.body, data)
        if len(data) <= AT_ONCE:
            return found | parse()
        return found | await in_thread(self._plugin.services.broker.runtime, parse)

    def _record(
        self,
        services: Services,
        token: Token,
        address: str,
        parts: Mapping[str, str],
        arguments: Mapping[str, Any],
        error: ApiError | None,
    ) -> Awaitable[None] | None:
        """Record a change in the audit log, log it, and emit an event. Return an awaitable that completes after the
        commit.
        """
        route = self._route
        if not route.change:
            return None
        status = 200 if error is None else error.status
        result = "ok" if error is None else error.detail
        shown: dict[str, Any] = dict(parts)
        fields = {**route.query, **(route.body or {})}
        for name, value in arguments.items():
            if value not in (None, ""):
                hidden = name in route.hidden or fields[name].secret
                shown[name] = recorded(value, hidden, fields[name].secret)
        services.log(
            "info", "admin.change", action=route.name, name=token.name, address=address,
            status=status, result=result,
        )  # fmt: skip
        services.broker.emit(
            "admin.change", action=route.name, name=token.name, address=address, status=status
        )
        return services.audit.add(
            {
                "time": services.broker.time(),
                "token": token.id,
                "name": token.name,
                "role": token.role,
                "address": address,
                "action": route.name,
                "arguments": shown,
                "status": status,
                "result": result,
            }
        )


async def _committed(entry: Awaitable[None] | None) -> None:
    if entry is not None:
        await entry


async def _answered(services: Services, route: Route, call: Call) -> Any:
    if route.tag is None or not route.change:
        return await _guarded(route, call)
    async with services.changing:
        check(call.request.headers.getall("If-Match", ()), route.tag(call))
        return await _guarded(route, call)


async def _guarded(route: Route, call: Call) -> Any:
    try:
        return await route.handler(call)
    except StaleCursor as error:
        raise ApiError(410, error.message, "cursor") from None
    except PluginError as error:
        raise ApiError(400, error.message) from None
    except StoreError as error:
        raise ApiError(503, str(error)) from None


def authenticate(services: Services, request: web.BaseRequest, address: str) -> Token:
    """Return the request's token. Raises ApiError 401, or 429 after too many wrong tokens."""
    if request.headers.get("Sec-Fetch-Site") == "cross-site":
        raise ApiError(403, "requests from pages of other sites are refused")
    wait = services.failures.wait(address)
    if wait:
        raise ApiError(429, "too many wrong tokens", headers={"Retry-After": str(wait)})
    scheme, _, text = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        token = services.tokens.find(text.strip(), services.broker.time())
        if token is not None:
            return token
    if text:
        services.failures.failed(address)
        services.log("warning", "admin.refused", address=address)
        services.broker.emit("admin.refused", address=address)
    raise ApiError(401, "a valid token is required", headers=CHALLENGE)


def _problem(error: ApiError) -> web.Response:
    headers = {**HEADERS, **error.headers, "Content-Type": "application/problem+json"}
    body = json.dumps(error.problem()).encode()
    return web.Response(status=error.status, body=body, headers=headers)


def _parsed(fields: Fields, data: bytes) -> dict[str, Any]:
    return parse_body(fields, _json(data))


def _json(data: bytes) -> Any:
    try:
        return json.loads(data, parse_constant=_no_constant, object_pairs_hook=_no_repeats)
    except (ValueError, RecursionError) as error:
        why = str(error) if isinstance(error, ValueError) else "it is nested too deeply"
        raise ApiError(400, f"the body is not valid JSON: {why}") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is repeated")
    return found
