"""Test `webhook_filter`: a service's valid responses, and what happens to messages if it fails."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiomqtt
import pytest
from aiohttp import web
from hookmq.mqtt_api import Connack, Packet
from hookmq.plugin import ConfigError, Deny, Drop, Message, PluginError, Properties
from hookmq_testing import AsyncioClient, load_plugins, will
from hookmq_webhook.filter_answers import Unusable, read_answer
from hookmq_webhook.filter_plugin import WebhookFilterPlugin
from hookmq_webhook_receiver import new_secret, verify
from hypothesis import given, settings
from hypothesis import strategies as st
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties
from serving import Served, serving

MESSAGE = Message(
    "a/b", b"old", 1, True,
    Properties(payload_format_indicator=1, content_type="text/plain", user_property=(("k", "v"),)),
    "c", received_at=5.0,
)  # fmt: skip
Respond = Callable[[web.Request], Awaitable[web.StreamResponse]]


def answered(**found: Any) -> Any:
    return read_answer(200, json.dumps(found).encode(), MESSAGE)


def test_allow_and_drop() -> None:
    assert read_answer(204, b"", MESSAGE) is None
    assert answered(result="allow") is None
    assert answered(result="drop") == Drop()


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ({}, Deny()),
        ({"code": 0x97, "reason": "too much"}, Deny(0x97, "too much")),  # type: ignore[arg-type]
        ({"disconnect": True, "code": 128}, Deny(128, None, True)),  # type: ignore[arg-type]
    ],
)
def test_deny(found: dict[str, Any], verdict: Deny) -> None:
    assert answered(result="deny", **found) == verdict


@pytest.mark.parametrize(
    ("found", "changed"),
    [
        ({"topic": "x/y"}, {"topic": "x/y"}),
        ({"payload": "new"}, {"payload": b"new"}),
        ({"payload": ""}, {"payload": b""}),
        ({"payload": None}, {"payload": b"null"}),
        ({"payload": {"a": [1, "\u00e4"]}}, {"payload": '{"a":[1,"\u00e4"]}'.encode()}),
        ({"qos": 0}, {"qos": 0}),
        ({"retain": False}, {"retain": False}),
        ({"retain": False, "qos": 1, "topic": "z"}, {"retain": False, "qos": 1, "topic": "z"}),
    ],
)
def test_replace(found: dict[str, Any], changed: dict[str, Any]) -> None:
    made = answered(result="replace", **found, **{f"{name}_set": True for name in found})
    assert isinstance(made, Message)
    for name in ("topic", "payload", "qos", "retain", "properties", "sender", "received_at"):
        assert getattr(made, name) == changed.get(name, getattr(MESSAGE, name)), name


def test_replace_by_bytes() -> None:
    made = answered(result="replace", payload_set=True, payload_base64="/w==")
    assert made.payload == b"\xff"
    assert made.properties.payload_format_indicator is None  # the payload is no longer UTF-8
    made = answered(result="replace", payload_set=True, payload_base64="YQ==")
    assert made.properties.payload_format_indicator == 1
    said = {"payload_format_indicator": 0}
    made = answered(
        result="replace", payload_set=True, payload_base64="/w==", properties_set=True, properties=said
    )  # fmt: skip
    assert made.properties.payload_format_indicator == 0
    assert made.properties.content_type == "text/plain"


def test_replace_properties() -> None:
    given: dict[str, Any] = {
        "content_type": "a/b", "response_topic": "r", "correlation_data": "/w==",
        "user_properties": [["a", "b"], ["a", "c"]], "payload_format_indicator": None,
    }  # fmt: skip
    made = answered(result="replace", properties_set=True, properties=given)
    assert made.properties == Properties(
        content_type="a/b", response_topic="r", correlation_data=b"\xff", user_property=(("a", "b"), ("a", "c"))
    )  # fmt: skip
    made = answered(result="replace", properties_set=True, properties={"content_type": None})
    assert made.properties == MESSAGE.properties.replace(content_type=None)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b"{}", b'{"result": 1}', b'{"result": "yes"}', b'{"result": ["allow"]}',
        b'{"result": "allow", "result": "deny"}', b'{"result": "allow", "topic": "x"}', b"[" * 100_000,
        b'{"result": "drop", "code": 1}', b'{"result": "deny", "code": 1}', b'{"result": "deny", "code": true}',
        b'{"result": "deny", "code": "128"}', b'{"result": "deny", "code": 200.0}', b'{"result": "deny", "code": 77777}',
        b'{"result": "deny", "reason": 1}', b'{"result": "deny", "reason": "\\u0000"}',
        b'{"result": "deny", "disconnect": 1}', b'{"result": "deny", "reason": "\\ud800"}',
        b'{"result": "replace"}', b'{"result": "replace", "topic_set": false}',
        b'{"result": "replace", "topic": "x"}', b'{"result": "replace", "topic_set": true}',
        b'{"result": "replace", "topic_set": 1, "topic": "x"}',
        b'{"result": "replace", "topic_set": true, "topic": "a/#"}',
        b'{"result": "replace", "topic_set": true, "topic": ""}',
        b'{"result": "replace", "topic_set": true, "topic": "\\ud800"}',
        b'{"result": "replace", "topic_set": true, "topic": 3}',
        b'{"result": "replace", "topics_set": true, "topics": "x"}',
        b'{"result": "replace", "qos_set": true, "qos": 2}', b'{"result": "replace", "qos_set": true, "qos": true}',
        b'{"result": "replace", "retain_set": true, "retain": 1}',
        b'{"result": "replace", "payload_set": true, "payload": NaN}',
        b'{"result": "replace", "payload_set": true, "payload": "\\ud800"}',
        b'{"result": "replace", "payload_set": true, "payload_base64": "?"}',
        b'{"result": "replace", "payload_set": true, "payload_base64": 1}',
        b'{"result": "replace", "payload_set": true, "payload": "", "payload_base64": ""}',
        b'{"result": "replace", "properties_set": true, "properties": []}',
        b'{"result": "replace", "properties_set": true, "properties": {"topic_alias": 1}}',
        b'{"result": "replace", "properties_set": true, "properties": {"content_type": 1}}',
        b'{"result": "replace", "properties_set": true, "properties": {"response_topic": "#"}}',
        b'{"result": "replace", "properties_set": true, "properties": {"correlation_data": "?"}}',
        b'{"result": "replace", "properties_set": true, "properties": {"user_properties": {"a": "b"}}}',
        b'{"result": "replace", "properties_set": true, "properties": {"user_properties": [["a"]]}}',
        b'{"result": "replace", "properties_set": true, "properties": {"payload_format_indicator": true}}',
        b'{"result": "replace", "payload_set": true, "payload": "", "properties_set": true, "properties": 3}',
    ],
    ids=range(48),
)  # fmt: skip
def test_invalid_answers_are_unusable(body: bytes) -> None:
    with pytest.raises(Unusable):
        read_answer(200, body, MESSAGE)


TOPIC: dict[str, Any] = {"result": "replace", "topic_set": True, "topic": "x"}


@pytest.mark.parametrize("value", [0, 1])
def test_bounds_that_hold(value: int) -> None:
    said = {"payload_format_indicator": value, "content_type": "x" * 65535}
    made = answered(result="replace", properties_set=True, properties=said)
    assert made.properties.payload_format_indicator == value
    assert len(made.properties.content_type) == 65535
    assert answered(result="deny", reason="x" * 1024) == Deny(reason="x" * 1024)


@pytest.mark.parametrize(
    "found",
    [
        {**TOPIC, "more": 1},
        {**TOPIC, "properties_set": True, "properties": {"content_type": "x" * 65536}},
        {**TOPIC, "properties_set": True, "properties": {"user_properties": ["ab"]}},
        {**TOPIC, "properties_set": True, "properties": {"user_properties": 3}},
        {"result": "deny", "reason": "x" * 1025},
        {"result": "deny", "code": None},
    ],
    ids=range(6),
)
def test_bounds_that_are_broken(found: dict[str, Any]) -> None:
    assert answered(**TOPIC).topic == "x"
    with pytest.raises(Unusable):
        answered(**found)


@pytest.mark.parametrize("status", [201, 202, 301, 400, 401, 403, 404, 500])
def test_a_status_that_says_nothing(status: int) -> None:
    with pytest.raises(Unusable, match=f"status {status}"):
        read_answer(status, b'{"result": "allow"}', MESSAGE)


names = st.sampled_from(["result", "topic", "topic_set", "payload", "payload_set", "qos", "qos_set", "retain",
                         "retain_set", "properties", "properties_set", "payload_base64", "code", "reason"])  # fmt: skip
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-300, 300)
    | st.text()
    | st.sampled_from(["replace", "deny"])
)
jsons = st.recursive(
    scalars, lambda some: st.lists(some) | st.dictionaries(names | st.text(), some)
)


@given(st.binary() | jsons.map(lambda v: json.dumps(v).encode())
       | st.dictionaries(names, jsons).map(lambda v: json.dumps({**v, "result": "replace"}).encode()))  # fmt: skip
@settings(max_examples=25)
def test_an_answer_is_understood_or_is_none(body: bytes) -> None:
    with contextlib.suppress(Unusable):
        made = read_answer(200, body, MESSAGE)
        assert made is None or isinstance(made, Message | Drop | Deny)
        if isinstance(made, Message):
            assert made.qos <= MESSAGE.qos
            assert (made.sender, made.received_at) == ("c", 5.0)


# with a service --------------------------------------------------------------------------------------------------------


class Filter:
    """A service that answers as configured and records the requests."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.respond: Respond | None = None
        self.there = asyncio.Event()
        self.released = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        self.asked.append(json.loads(body))
        self.there.set()
        if self.respond is None:
            return web.Response(status=204)
        return await self.respond(request)

    def answer(self, **found: Any) -> None:
        async def respond(request: web.Request) -> web.StreamResponse:
            return web.json_response(found)

        self.respond = respond

    async def never(self, request: web.Request) -> web.StreamResponse:
        await self.released.wait()
        return web.Response(status=204)


@pytest.fixture
async def service() -> AsyncIterator[Filter]:
    made = Filter()
    application = web.Application()
    application.router.add_post("/filter", made.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/filter"
    yield made
    made.released.set()
    await runner.cleanup()


def config(tmp_path: Path, entry: dict[str, Any], **settings: Any) -> Path:
    path = tmp_path / "hookmq.yaml"
    made = {
        "version": 1,
        "listeners": [{"name": "tcp", "bind": "127.0.0.1:0"}],
        "auth": {"default": "allow"},
        "authz": {"default": "allow"},
        "plugins": [{"use": "webhook_filter", **entry, "config": settings}],
    }
    path.write_text(json.dumps(made))
    return path


class Running:
    """An asynchronous context manager that runs `serving` in a thread. If `fails` is true, the broker must log an
    error.
    """

    def __init__(self, path: Path, fails: bool = False) -> None:
        self._stack = contextlib.ExitStack()
        self._path = path
        self._fails = fails

    async def __aenter__(self) -> Served:
        enter = self._stack.enter_context
        self.served = await asyncio.to_thread(enter, serving("-c", str(self._path)))
        return self.served

    async def __aexit__(self, *error: Any) -> None:
        if self._fails:
            with pytest.raises(AssertionError, match=r"plugin\.failed|hook"):
                await asyncio.to_thread(self._stack.__exit__, None, None, None)
        else:
            await asyncio.to_thread(self._stack.__exit__, *error)


V5: dict[str, Any] = {"protocol": aiomqtt.ProtocolVersion.V5}


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def published(client: aiomqtt.Client, topic: str, payload: bytes, trace: str = "") -> int:
    """Publish and return the reason code of PUBACK."""
    properties: Any = PahoProperties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    if trace:
        properties.UserProperty = ("traceparent", trace)
    codes: list[int] = []
    paho = client._client
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def told(_: Any, __: Any, mid: int, code: Any, ___: Any) -> None:
        codes.append(code.value)
        loop.call_soon_threadsafe(done.set)

    before, paho.on_publish = paho.on_publish, told
    try:
        paho.publish(topic, payload, 1, properties=properties)
        async with asyncio.timeout(60):
            await done.wait()
    finally:
        paho.on_publish = before
    return codes[0]


async def test_a_broker_asks(service: Filter, tmp_path: Path) -> None:
    secret = new_secret()
    signed = {"secret": secret, "previous_secret": new_secret()}
    path = config(tmp_path, {}, url=service.url, sign=signed, headers={"X-From": "test"})
    async with Running(path) as served:
        port = served.ports["tcp"]
        async with aiomqtt.Client("127.0.0.1", port, identifier="s", **V5) as listener:
            await listener.subscribe("out/#", 1)

            async def got() -> tuple[str, bytes, int]:
                async with asyncio.timeout(60):
                    found = await anext(listener.messages)
                assert isinstance(found.payload, bytes)
                return str(found.topic), found.payload, found.qos

            async with aiomqtt.Client("127.0.0.1", port, identifier="p", **V5) as client:
                assert await published(client, "out/1", b'{"a": 1}', TRACE) == 0
                assert await got() == ("out/1", b'{"a": 1}', 1)
                service.answer(result="deny", code=0x97, reason="full")
                assert await published(client, "out/2", b"x") == 0x97
                service.answer(result="drop")
                assert await published(client, "out/3", b"x") == 0
                service.answer(
                    result="replace", topic_set=True, topic="out/other", payload_set=True, payload={"b": 2},
                    qos_set=True, qos=0, properties_set=True, properties={"content_type": "application/json"},
                )  # fmt: skip
                assert await published(client, "out/4", b"x") == 0
                assert await got() == ("out/other", b'{"b":2}', 0)
            service.answer(result="replace", payload_set=True, payload="ended")
            willing = AsyncioClient("w", will=will("out/will", b"gone", 1))
            (await willing.connect(port)).drop()
            assert await got() == ("out/will", b"ended", 1)
    first = service.asked[0]
    assert (first["client_id"], first["topic"], first["payload"]) == ("p", "out/1", {"a": 1})
    assert (first["qos"], first["listener"], first["payload_format"]) == (1, "tcp", "json")
    assert [one["origin"] for one in service.asked] == ["client"] * 4 + ["will"]
    for headers, body in zip(service.headers, service.bodies, strict=True):
        verify(headers, body, secret)
        assert headers["X-From"] == "test"
    assert [one.get("traceparent") for one in service.headers] == [TRACE, None, None, None, None]
    assert len({headers["webhook-id"] for headers in service.headers}) == len(service.headers)
    assert secret not in json.dumps(served.log)


@pytest.mark.parametrize(
    ("wrong", "mode"), [("down", "deny"), ("garbage", "pass"), ("slow", "deny"), ("large", "deny")]
)
async def test_a_service_that_does_not_answer(
    service: Filter, tmp_path: Path, wrong: str, mode: str
) -> None:
    async def respond(request: web.Request) -> web.StreamResponse:
        if wrong == "slow":
            return await service.never(request)
        return web.Response(text="<html>")

    service.respond = respond
    url = "http://127.0.0.1:1/filter" if wrong == "down" else service.url
    timeout = "50ms" if wrong == "slow" else "5s"
    limit = 0 if wrong == "large" else 1000
    entry = {"hooks": {"on_publish": {"on_error": mode}}}
    path = config(tmp_path, entry, url=url, timeout=timeout, max_payload=limit)
    async with (
        Running(path, fails=True) as served,
        aiomqtt.Client("127.0.0.1", served.ports["tcp"], **V5) as client,
    ):
        await client.subscribe("a", 1)
        code = await published(client, "a", b"secret-word")
        assert code == (0x83 if mode == "deny" else 0)
        if mode == "pass":
            async with asyncio.timeout(60):
                assert (await anext(client.messages)).payload == b"secret-word"
    assert "secret-word" not in json.dumps(served.log)


async def test_without_an_answer_a_client_of_3_1_1_is_not_acknowledged(tmp_path: Path) -> None:
    path = config(tmp_path, {}, url="http://127.0.0.1:1/filter")
    async with Running(path, fails=True) as served:
        seen: list[Packet] = []
        client = AsyncioClient("c", 4, on_packet=seen.append)
        await client.connect(served.ports["tcp"])
        client.send_publish("a", b"x", 1)
        await client.wait_closed()
        assert seen == [Connack(0)]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[WebhookFilterPlugin]]]:
    plugins: list[WebhookFilterPlugin] = []

    async def make(**settings: Any) -> WebhookFilterPlugin:
        plugin = load_plugins(Path(config(tmp_path, {}, **settings)))[0].plugin
        assert isinstance(plugin, WebhookFilterPlugin)
        await plugin.on_startup(Handle())  # type: ignore[arg-type]
        plugins.append(plugin)
        return plugin

    yield make
    for plugin in plugins:
        await plugin.on_shutdown()


class Handle:
    """A stand-in for the broker handle, with only the attributes that the plugin uses."""

    runtime: Any = None
    clock = 100.0

    def now(self) -> float:
        return self.clock

    def time(self) -> float:
        return self.clock


async def ask(plugin: WebhookFilterPlugin) -> Any:
    return await plugin.on_publish(None, MESSAGE, Handle())  # type: ignore[arg-type]


async def undecided(plugin: WebhookFilterPlugin, why: str) -> None:
    with pytest.raises(Exception, match=why) as raised:
        await ask(plugin)
    assert type(raised.value).__name__ == "Undecided"


async def test_a_service_that_fails_is_left_alone(service: Filter, start: Any) -> None:
    async def respond(request: web.Request) -> web.StreamResponse:
        return web.Response(status=503)

    service.respond = respond
    plugin = await start(url=service.url, breaker_failures=2)
    for _ in range(2):
        await undecided(plugin, "status 503")
    await undecided(plugin, "not asked for a while")
    assert len(service.asked) == 2
    assert plugin.verdicts == {"undecided": 3}
    service.respond = None
    plugin._service.breaker._now = lambda: 200.0  # the pause is over
    assert await ask(plugin) is None
    assert plugin._service.breaker.state == "closed"


async def test_waiting_requests_are_bounded(service: Filter, start: Any) -> None:
    service.respond = service.never
    plugin = await start(url=service.url, max_parallel=1, max_waiting=1, timeout="20s")
    first = asyncio.create_task(ask(plugin))
    await service.there.wait()
    second = asyncio.create_task(ask(plugin))
    await asyncio.sleep(0)  # now it waits for its turn
    assert plugin._service.counts.waiting == 1
    await undecided(plugin, "1 requests are waiting already")
    service.released.set()
    assert [await first, await second] == [None, None]
    assert len(service.asked) == 2


async def test_a_cancelled_request_is_not_a_failure_of_the_service(
    service: Filter, start: Any
) -> None:
    service.respond = service.never
    plugin = await start(url=service.url, breaker_failures=1, timeout="20s")
    asked = asyncio.create_task(ask(plugin))
    await service.there.wait()
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    counts = plugin._service.counts
    assert (counts.running, counts.waiting, counts.failures) == (0, 0, 0)
    assert plugin._service.breaker.state == "closed"


async def test_a_connection_that_was_kept_and_ended(service: Filter, start: Any) -> None:
    plugin = await start(url=service.url)
    assert await ask(plugin) is None
    seen: list[bool] = []

    async def respond(request: web.Request) -> web.StreamResponse:
        if not seen:
            seen.append(True)
            assert request.transport is not None
            request.transport.abort()
        return web.Response(status=204)

    service.respond = respond
    assert await ask(plugin) is None
    assert len(service.asked) == 3
    assert plugin._service.breaker.state == "closed"


async def test_redirects_are_not_followed_and_metadata_not_asked(
    service: Filter, start: Any
) -> None:
    async def respond(request: web.Request) -> web.StreamResponse:
        raise web.HTTPTemporaryRedirect(service.url)

    service.respond = respond
    await undecided(await start(url=service.url), "status 307")
    assert len(service.asked) == 1
    await undecided(await start(url="http://169.254.169.254/x"), "Refused")
    service.answer(result="allow", more="x" * 200)
    await undecided(await start(url=service.url, max_answer=100), "more than 100 bytes")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"url": "ftp://x"}, "url"),
        ({"url": "http://u:p@x"}, "url"),
        ({"url": "http://x/${topic}"}, "url"),
        ({"url": "http://x", "headers": {"Authorization": "x"}}, "headers.Authorization"),
        ({"url": "http://x", "headers": {"content-type": "x"}}, "headers.content-type"),
        ({"url": "http://x", "headers": {"a": "b\r\nc"}}, "headers.a"),
        ({"url": "http://x", "sign": {"secret": "short"}}, "sign.secret"),
        ({"url": "http://x", "tls": {"key_file": "/x"}}, "tls.key_file"),
        ({"url": "http://x", "tls": {"ca_file": "/nowhere.pem"}}, "tls"),
        ({"url": "http://x", "timeout": 0}, "timeout"),
        ({"url": "http://x", "ulr": "x"}, "ulr"),
    ],
)
def test_invalid_settings_are_refused_with_the_reason(
    tmp_path: Path, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises((ConfigError, PluginError, ExceptionGroup), match=r".") as raised:
        load_plugins(Path(config(tmp_path, {}, **settings)))
    assert says in str(raised.value)
