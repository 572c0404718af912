"""Test the WSGI and ASGI applications, alone and inside Flask and FastAPI."""

import asyncio
import io
import json
import logging
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server
from wsgiref.validate import validator

import fastapi
import httpx
import pytest
from flask import Flask
from hookmq_webhook_receiver import Received, Receiver, asgi_app, sign, wsgi_app
from hookmq_webhook_receiver.keys import key_of, new_secret
from werkzeug.middleware.dispatcher import DispatcherMiddleware

SECRET = new_secret()
GOOD = {
    "id": "e-1", "source": "urn:x", "type": "t", "epoch": "e", "sequence": 1, "time": "2026-01-01T00:00:00Z",
}  # fmt: skip
Post = Callable[..., Awaitable[httpx.Response]]


def signed(body: bytes) -> dict[str, str]:
    import time

    return sign("e-1", int(time.time()), body, [key_of(SECRET)])


class Handler:
    """Records events, and raises the exception that a test chooses."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.error: Exception | None = None

    def __call__(self, event: Received) -> None:
        if self.error is not None:
            raise self.error
        self.ids.append(event.id)

    async def later(self, event: Received) -> None:
        self(event)


@pytest.fixture
def handler() -> Handler:
    return Handler()


@pytest.fixture(params=["wsgi", "asgi", "flask", "fastapi"])
def client(request: pytest.FixtureRequest, handler: Handler) -> httpx.AsyncClient:
    receiver = Receiver(SECRET, max_body=10_000)
    transport: httpx.AsyncBaseTransport
    if request.param in ("wsgi", "flask"):
        app: Any = wsgi_app(receiver, handler)
        if request.param == "flask":
            flask = Flask("test")
            app = DispatcherMiddleware(flask.wsgi_app, {"/hook": app})
        transport = Threaded(httpx.WSGITransport(validator(app)))
    else:
        app = asgi_app(receiver, handler.later)
        if request.param == "fastapi":
            inner, app = app, fastapi.FastAPI()
            app.mount("/hook", inner)
        transport = httpx.ASGITransport(app)
    return httpx.AsyncClient(transport=transport, base_url="http://x")


class Threaded(httpx.AsyncBaseTransport):
    """Calls a WSGI application in a thread."""

    def __init__(self, inner: httpx.WSGITransport) -> None:
        self.inner = inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        plain = httpx.Request(request.method, request.url, headers=request.headers, content=body)

        def call() -> httpx.Response:
            response = self.inner.handle_request(plain)
            return httpx.Response(
                response.status_code, headers=response.headers, content=response.read()
            )

        return await asyncio.to_thread(call)


async def test_answers(
    client: httpx.AsyncClient, handler: Handler, caplog: pytest.LogCaptureFixture
) -> None:
    async def post(body: bytes, headers: dict[str, str] | None = None) -> int:
        found = signed(body) if headers is None else headers
        return (await client.post("/hook/", content=body, headers=found)).status_code

    body = json.dumps(GOOD).encode()
    handler.error = ValueError("a secret of the database")  # the request did not cause it
    with caplog.at_level(logging.ERROR):
        answer = await client.post("/hook/", content=body, headers=signed(body))
    assert answer.status_code == 500
    assert "database" not in answer.text
    assert "a secret of the database" in caplog.text
    handler.error = None
    assert [await post(body), await post(body)] == [204, 204]
    assert handler.ids == ["e-1"]
    batch = json.dumps([GOOD, {**GOOD, "id": "e-2"}, {**GOOD, "id": "e-3"}]).encode()
    assert await post(batch) == 204
    assert handler.ids == ["e-1", "e-2", "e-3"]
    assert await post(body, {}) == 401
    assert await post(b"{}") == 400
    assert await post(b"x" * 10_001) == 413
    assert (await client.get("/hook/")).status_code == 405
    assert handler.ids == ["e-1", "e-2", "e-3"]
    await client.aclose()


def test_a_wsgi_body_without_its_length_or_its_end_is_refused(handler: Handler) -> None:
    application = wsgi_app(Receiver(SECRET), handler)
    said: list[str] = []
    for length, body in (("", b""), ("x", b"x"), ("-1", b"x"), ("\u0662", b"x"), ("5", b"{}")):
        environ = {
            "REQUEST_METHOD": "POST",
            "CONTENT_LENGTH": length,
            "wsgi.input": io.BytesIO(body),
        }
        list(application(environ, lambda status, headers: said.append(status)))
    assert said == ["411 Length Required"] * 4 + ["400 Bad Request"]


class Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


async def test_wsgi_over_a_socket(handler: Handler) -> None:
    with make_server(
        "127.0.0.1", 0, wsgi_app(Receiver(SECRET), handler), handler_class=Quiet
    ) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        body = json.dumps(GOOD).encode()
        async with httpx.AsyncClient() as http:
            answer = await http.post(
                f"http://127.0.0.1:{server.server_port}/", content=body, headers=signed(body)
            )
        server.shutdown()
        thread.join()
    assert answer.status_code == 204
    assert handler.ids == ["e-1"]


async def test_an_asgi_request_that_ends_early_or_repeats_a_header_is_refused(
    handler: Handler,
) -> None:
    application = asgi_app(Receiver(SECRET), handler.later)

    async def ask(headers: list[tuple[bytes, bytes]], *messages: dict[str, Any]) -> int:
        left = list(messages)
        sent: list[MutableMapping[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return left.pop(0)

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        await application({"type": "http", "method": "POST", "headers": headers}, receive, send)
        status: int = sent[0]["status"]
        return status

    body = json.dumps(GOOD).encode()
    headers = [(key.encode(), value.encode()) for key, value in signed(body).items()]
    first = {"type": "http.request", "body": body[:5], "more_body": True}
    rest = {"type": "http.request", "body": body[5:]}
    assert await ask(headers, first, {"type": "http.disconnect"}) == 400
    assert await ask([*headers, (b"Webhook-Id", b"other")], first, rest) == 401
    assert handler.ids == []
    assert await ask(headers, first, rest) == 204
    assert handler.ids == ["e-1"]


async def test_asgi_lifespan(handler: Handler) -> None:
    said: list[str] = []
    asked = ["lifespan.startup", "lifespan.shutdown"]

    async def receive() -> dict[str, Any]:
        return {"type": asked.pop(0)}

    async def send(message: MutableMapping[str, Any]) -> None:
        said.append(message["type"])

    application = asgi_app(Receiver(SECRET), handler.later)
    await application({"type": "lifespan"}, receive, send)
    assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    with pytest.raises(ValueError, match="cannot serve websocket"):
        await application({"type": "websocket"}, receive, send)
