"""Complete receivers as WSGI and ASGI applications. They run in any server, or inside a Flask, Django, FastAPI or
Starlette application.

A receiver responds to a POST request with 204 once `handle` has returned for each new event. It responds with 401 to a
wrong signature, with 400 to a body that does not contain events, and with 413 to a body that is too large. If `handle`
raises an exception, the receiver logs it and responds with 500. The plugin then resends the events.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http import HTTPStatus
from typing import Any

from hookmq_webhook_receiver.events import Received
from hookmq_webhook_receiver.receiver import Busy, Receiver, status_of
from hookmq_webhook_receiver.signature import VerificationError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Start = Callable[[str, list[tuple[str, str]]], object]
_log = logging.getLogger(__name__)


def wsgi_app(
    receiver: Receiver, handle: Callable[[Received], object]
) -> Callable[[dict[str, Any], Start], Iterable[bytes]]:
    """Return a WSGI application. Several threads may call `handle` at the same time, with different events."""

    def application(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        status, text = answer(environ)
        words = f"{status} {HTTPStatus(status).phrase}"
        start(words, [("Content-Type", "text/plain; charset=utf-8")] if text else [])
        return [text.encode("utf-8", "replace")]

    def answer(environ: dict[str, Any]) -> tuple[int, str]:
        if environ["REQUEST_METHOD"] != "POST":
            return 405, "POST only\n"
        length = environ.get("CONTENT_LENGTH") or ""
        if not length.isascii() or not length.isdigit():
            return 411, "no Content-Length\n"
        if int(length) > receiver.max_body:
            return 413, f"more than {receiver.max_body} bytes\n"
        body = environ["wsgi.input"].read(int(length))
        if len(body) < int(length):
            return 400, "the body is incomplete\n"
        headers = {
            key.removeprefix("HTTP_").replace("_", "-"): value
            for key, value in environ.items()
            if key.startswith("HTTP_") or key == "CONTENT_TYPE"
        }
        try:
            events = receiver.read(headers, body)
        except (VerificationError, ValueError) as error:
            return _refused(error)
        try:
            for event in events:
                with receiver.once(event) as new:
                    if new:
                        handle(event)
        except Exception as error:
            return _failed(error)
        return 204, ""

    return application


def asgi_app(
    receiver: Receiver, handle: Callable[[Received], Awaitable[object]]
) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """Return an ASGI application. It handles requests concurrently, but the events of each request in order."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            while True:
                message = await receive()
                await send({"type": f"{message['type']}.complete"})
                if message["type"] == "lifespan.shutdown":
                    return
        if scope["type"] != "http":
            raise ValueError(f"cannot serve {scope['type']}")
        status, text = await answer(scope, receive)
        headers = [(b"content-type", b"text/plain; charset=utf-8")] if text else []
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": text.encode("utf-8", "replace")})

    async def answer(scope: Scope, receive: Receive) -> tuple[int, str]:
        if scope["method"] != "POST":
            return 405, "POST only\n"
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return 400, "the body is incomplete\n"
            body += message.get("body", b"")
            if len(body) > receiver.max_body:
                return 413, f"more than {receiver.max_body} bytes\n"
            if not message.get("more_body", False):
                break
        headers: dict[str, str] = {}
        for key, value in scope["headers"]:
            name = key.decode("latin-1").lower()
            if name in headers and name.startswith("webhook-"):
                return 401, f"{name}: repeated\n"
            headers[name] = value.decode("latin-1")
        try:
            events = receiver.read(headers, bytes(body))
        except (VerificationError, ValueError) as error:
            return _refused(error)
        try:
            for event in events:
                with receiver.once(event) as new:
                    if new:
                        await handle(event)
        except Exception as error:
            return _failed(error)
        return 204, ""

    return application


def _refused(error: Exception) -> tuple[int, str]:
    return status_of(error) or 400, f"{error}\n"


def _failed(error: Exception) -> tuple[int, str]:
    if isinstance(error, Busy):
        return 503, "the event is being handled\n"
    _log.error("an event cannot be handled", exc_info=error)
    return 500, "the event cannot be handled\n"
