"""The API's OpenAPI 3.1 document, generated from the table of routes.

python -m hookmq_admin.openapi > plugins/admin/openapi.json
"""

import json
import re
import sys
from http import HTTPStatus
from typing import Any, Final

from hookmq_admin import (
    access,
    accounts,
    backups,
    clients,
    cluster,
    decisions,
    diagnosis,
    draining,
    logs,
    messages,
    queues,
    sinks,
    streams,
    system,
    tracing,
)
from hookmq_admin.fields import schema_of
from hookmq_admin.schemas import COMPONENTS, ref
from hookmq_admin.services import Call, Route
from hookmq_admin.tokens import Role

VERSION: Final = "1.0"
"""Version of the API. Additions increase the minor part."""
JSON: Final = "application/json"
PROBLEM: Final = "application/problem+json"
ALWAYS: Final = (400, 401, 403, 429)
_PART: Final = re.compile(r"\{(\w+)\}")


async def document_route(call: Call) -> Any:
    """Return the OpenAPI document."""
    return document()


OPENAPI: Final = Route(
    "GET", "/openapi.json", "getOpenapi", Role.VIEWER, "Get this document", document_route, {"type": "object"}
)  # fmt: skip
ROUTES: Final = (
    *system.ROUTES, *logs.ROUTES, *draining.ROUTES, *backups.ROUTES, *clients.ROUTES, *messages.ROUTES,
    *streams.ROUTES, *queues.ROUTES, *sinks.ROUTES, *cluster.ROUTES, *diagnosis.ROUTES, *tracing.ROUTES, *access.ROUTES,
    *accounts.ROUTES, *decisions.ROUTES, OPENAPI,
)  # fmt: skip
"""All routes of the API."""


def document() -> dict[str, Any]:
    """Return the OpenAPI document. The server's path assumes that the plugin id is ``admin``."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "HookMQ admin API",
            "version": VERSION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "description": "Inspect and change a running broker. Times are in epoch seconds, sizes in bytes.",
        },
        "servers": [{"url": "/plugins/admin/api/v1"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": COMPONENTS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in _PART.findall(route.path)
    ]
    for name, field in route.query.items():
        schema = field.schema()
        text = schema.pop("description")
        required = {"required": True} if field.required else {}
        parameters.append(
            {"name": name, "in": "query", **required, "description": text, "schema": schema}
        )
    if route.tag is not None and route.change:
        text = "the entity tag of the state that the change was made for; 412 if it is another now"
        schema = {"type": "string"}
        parameters.append(
            {"name": "If-Match", "in": "header", "description": text, "schema": schema}
        )
    kind = "text/event-stream" if route.streams else JSON
    found: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "description": f"Needs the role {route.role.label}.",
        "responses": {
            "200": {
                "description": "Done",
                "content": {kind: {"schema": route.answer}},
                **_headers(route),
            },
            **{str(status): _problem(status) for status in _statuses(route)},
        },
    }
    if parameters:
        found["parameters"] = parameters
    if route.body is not None:
        schema = schema_of(route.body)
        found["requestBody"] = {
            "required": "required" in schema,
            "content": {JSON: {"schema": schema}},
        }
    return found


def _headers(route: Route) -> dict[str, Any]:
    if route.tag is None or route.change:
        return {}
    text = "the entity tag of the state, for If-Match"
    return {"headers": {"ETag": {"description": text, "schema": {"type": "string"}}}}


def _statuses(route: Route) -> list[int]:
    more = (413, 415) if route.body is not None else ()
    conflict = (412,) if route.tag is not None and route.change else ()
    return sorted({*ALWAYS, *route.errors, *more, *conflict})


def _problem(status: int) -> dict[str, Any]:
    content = {PROBLEM: {"schema": ref("Problem")}}
    if status == 413:  # the listener refuses the body, before the plugin is called
        content = {"text/plain": {"schema": {"type": "string"}}}
    return {"description": HTTPStatus(status).phrase, "content": content}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(document(), indent=1) + "\n")
