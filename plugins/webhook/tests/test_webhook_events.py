"""Test that a real broker with real clients sends every event listed in the manual.

Each event matches its schema, and no field is always empty.
"""

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from aiohttp import web
from hookmq_testing import AsyncioClient, will
from hookmq_webhook.catalog import CATALOG, PAYLOAD
from hookmq_webhook.reference import schema
from hookmq_webhook_receiver import Ledger, Received, new_secret, read, verify
from serving import Served, serving

WAIT = 60.0
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
RICH = {
    "content_type": "application/json", "payload_format_indicator": 1, "response_topic": "answers",
    "correlation_data": b"\x01\xff", "message_expiry_interval": 3600,
    "user_property": (("a", "b"), ("traceparent", TRACE)),
}  # fmt: skip
PLAIN = {"message_expiry_interval": 3600}
HEAVY = {"user_property": (("large", "x" * 5000),)}
MESSAGES: tuple[tuple[str, bytes, dict[str, Any]], ...] = (
    ("rich", b'{"a": 1}', RICH),
    ("binary", b"\xff" * 60, PLAIN),
    ("large", b"x", HEAVY),
)


class Service:
    """A service that authenticates clients (``/auth``) and receives events (``/hook``)."""

    def __init__(self) -> None:
        self.url = ""
        self.secret = new_secret()
        self.events: list[Received] = []
        self.ledger = Ledger()
        self.changed = asyncio.Condition()

    async def auth(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        if asked["password"] != "right":
            return web.json_response({"result": "deny", "code": 0x86, "reason": "wrong password"})
        permissions = {"deny": ["denied/#"], "publish": ["#"], "subscribe": ["#"]}
        return web.json_response(
            {"result": "allow", "identity": asked["username"].upper(), "permissions": permissions}
        )

    async def hook(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        verify(request.headers, body, self.secret)
        async with self.changed:
            self.events += [one for one in read(request.headers, body) if self.ledger.take(one)]
            self.changed.notify_all()
        return web.Response(status=204)

    async def until(self, type: str, **fields: Any) -> Received:
        """Wait for the first event of a type with these values and return it."""
        found: list[Received] = []

        def there() -> bool:
            found[:] = [
                one for one in self.events
                if one.type == f"hookmq.{type}" and fields.items() <= one.data.items()
            ]  # fmt: skip
            return bool(found)

        async with asyncio.timeout(WAIT), self.changed:
            await self.changed.wait_for(there)
        return found[0]


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    made = Service()
    application = web.Application(client_max_size=16 << 20)
    application.router.add_post("/auth", made.auth)
    application.router.add_post("/hook", made.hook)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


async def join(port: int, name: str, password: bytes = b"right", **options: Any) -> AsyncioClient:
    """Connect a client. `options` are those of `AsyncioClient`; `expect` is the expected code of CONNACK."""
    expect = options.pop("expect", 0)
    client = AsyncioClient(
        name, username=f"user-{name}", password=password, keep_alive=60, **options
    )
    return await client.connect(port, expect=expect)


async def leave(client: AsyncioClient) -> None:
    client.disconnect()
    await client.wait_closed()


def config(tmp_path: Path, service: Service, **broker: Any) -> Path:
    path = tmp_path / "hookmq.yaml"
    limit = {
        "what": "publishes",
        "per": "client",
        "rate": "1/h",
        "filters": ["flood/#"],
        "mode": "reject",
    }
    entries = [
        {"use": "ratelimit", "config": {"limits": [limit], "ban": {"after": "1/h", "duration": "1h"}}},
        {"use": "auth_http", "config": {"authenticate": {"url": f"{service.url}/auth"}}},
        {
            "use": "webhook",
            "config": {
                "url": f"{service.url}/hook",
                "sign": {"secret": service.secret},
                "outbox": {"path": str(tmp_path / "outbox")},
                "max_event": 4096,
            },
        },
    ]  # fmt: skip
    listeners = [{"name": "tcp", "bind": "127.0.0.1:0"}]
    path.write_text(
        json.dumps({"version": 1, "listeners": listeners, "plugins": entries, "broker": broker})
    )
    return path


async def everything(served: Served, service: Service, tmp_path: Path) -> None:
    """Trigger every type of event."""
    port = served.ports["tcp"]
    sub = await join(port, "sub", session_expiry_interval=600)
    await sub.subscribe("m/#", 2, identifier=7)
    await sub.subscribe("$share/g/s/#", 1, identifier=8)
    small = await join(port, "small", maximum_packet_size=64)
    await small.subscribe("m/#", 1)
    pub = await join(port, "pub")
    for name, payload, properties in MESSAGES:
        for qos in (0, 1, 2):
            await pub.publish(f"m/{name}/{qos}", payload, qos, True, **properties)
            await service.until("message.published", topic=f"m/{name}/{qos}")
        await service.until("message.acked", topic=f"m/{name}/2")
    await pub.publish("m/rich/0", b"", 1, True)
    await service.until("message.cleared")
    await pub.publish("denied/x", b"", 1)
    await service.until("client.denied", topic="denied/x")
    for name, payload, properties in MESSAGES:
        last = will(f"w/{name}", payload, 1, **properties)
        willing = await join(port, f"will-{name}", will=last)
        willing.drop()
        await service.until("will.published", topic=f"w/{name}")
    again = await join(port, "sub", clean_start=False, session_expiry_interval=1)
    await service.until("session.taken_over")
    await again.unsubscribe("m/#")
    await again.unsubscribe("$share/g/s/#")
    await leave(again)
    await service.until("session.expired", client_id="sub")
    small.raw(b"\x00\x00")  # no packet has type 0
    await small.expect_disconnect(0x81)
    await service.until("session.ended", client_id="small")
    await join(port, "wrong", b"wrong", expect=0x86)
    await service.until("client.auth_failed")
    flood = await join(port, "flood")
    with contextlib.suppress(ConnectionError):  # the broker closes the connection
        for _ in range(5):
            await flood.publish("flood/x", b"", 1)
    await service.until("ratelimit.banned")
    await sub.wait_closed()
    flood.drop()
    config(tmp_path, service, max_qos=1)
    served.signal(signal.SIGHUP)
    await service.until("broker.reloaded")
    await leave(pub)
    await service.until("client.disconnected", client_id="pub")


@pytest.mark.slow
async def test_every_event(service: Service, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        served = await asyncio.to_thread(
            stack.enter_context, serving("-c", str(config(tmp_path, service)))
        )
        await everything(served, service, tmp_path)
        assert await asyncio.to_thread(served.stop) == 0
    told: dict[str, list[Received]] = {}
    for event in service.events:
        told.setdefault(event.type.removeprefix("hookmq."), []).append(event)
    # The broker reports these to `on_event`: the action of a plugin, and the wrong packet of `small`.
    del told["broker.disconnected"], told["broker.protocol_error"]
    assert CATALOG.keys() == told.keys()
    for name, kind in CATALOG.items():
        validator = jsonschema.Draft202012Validator(schema(kind))
        fields = {field.name for field in (*kind.fields, *(PAYLOAD if kind.payload else ()))}
        seen: set[str] = set()
        for event in told[name]:
            validator.validate(event.data)
            assert set(event.data) <= fields, name
            seen |= {key for key, value in event.data.items() if not empty(value)}
        assert seen == fields, f"{name}: always empty: {sorted(fields - seen)}"
    assert not service.ledger.missing()
    assert {event.epoch for event in service.events} == {service.events[0].epoch}
    rich = [one for one in told["message.published"] if one.data["topic"].startswith("m/rich")]
    assert {one.traceparent for one in rich} == {TRACE, None}  # the one that cleared has none
    # Sort by number, because events of different clients may overtake each other.
    order = [event.type for event in sorted(service.events, key=lambda event: event.sequence)]
    assert order[0] == "hookmq.broker.started"
    assert order[-1] == "hookmq.broker.stopping"


def empty(value: object) -> bool:
    """Return whether a value is empty. 0 and false do not count as empty."""
    return value is None or (isinstance(value, str | list | dict) and not value)
