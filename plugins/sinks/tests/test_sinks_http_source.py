"""Test the `http` source: each status, the limits, and messages in a broker with access rules."""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hookmq.config_api import bind_values
from hookmq.plugin import ConfigError, ReasonCode
from hookmq_sinks.source import Incoming, SourceContext, SourceUnavailable
from hookmq_sinks.sources.http import HttpSource
from hookmq_sinks.sources.http_request import status_of

TOKEN = "t" * 16
OTHER = "o" * 16


class Site:
    """An open source, and a program that sends requests. `codes` maps topics to the broker's reason codes."""

    def __init__(self, **given: Any) -> None:
        settings = {
            "bind": "127.0.0.1:0",
            "tokens": [
                {"token": TOKEN, "identity": "erp"},
                {"token": OTHER, "identity": "shop", "topics": ["shop/#"]},
            ],
            **given,
        }
        self.source = HttpSource(bind_values(HttpSource.Settings, settings), SourceContext("api"))
        self.codes: dict[str, int] = {}
        self.published: list[Incoming] = []
        self.session = aiohttp.ClientSession()

    async def open(self) -> None:
        await self.source.open()
        self.broker = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            messages = await self.source.read()
            self.published += messages
            await self.source.acknowledge(
                messages, [self.codes.get(one.topic, 0) for one in messages]
            )

    async def close(self) -> None:
        self.broker.cancel()
        await self.source.close()
        await self.session.close()

    async def post(
        self, body: Any, path: str = "/publish", token: str = TOKEN, **more: Any
    ) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {token}", **more.pop("headers", {})}
        url = f"http://127.0.0.1:{self.source.port}{path}"
        kind = {"data": body} if isinstance(body, bytes) else {"json": body}
        async with self.session.request(
            more.get("method", "POST"), url, headers=headers, **kind
        ) as found:
            self.headers = found.headers
            return found.status, await found.json()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    found = Site()
    await found.open()
    yield found
    await found.close()


async def test_a_message_has_all_its_properties(site: Site) -> None:
    properties = {
        "content_type": "a/b", "message_expiry_interval": 7, "response_topic": "r", "correlation_data": "c",
        "payload_format_indicator": 1, "user_properties": {"k": "v"},
    }  # fmt: skip
    body = {
        "topic": "a/b", "payload": b64encode(b"\xff").decode(), "payload_encoding": "base64", "qos": 2, "retain": True,
        "properties": properties,
    }  # fmt: skip
    assert await site.post(body) == (200, {"reason_code": 0, "message": "success"})
    (one,) = site.published
    assert (one.topic, one.payload, one.qos, one.retain, one.identity) == (
        "a/b",
        b"\xff",
        2,
        True,
        "erp",
    )
    found = one.properties
    assert (found.content_type, found.message_expiry_interval, found.response_topic) == (
        "a/b",
        7,
        "r",
    )
    assert (found.correlation_data, found.user_property) == (b"c", (("k", "v"),))
    assert one.answered


async def test_a_payload_can_be_json(site: Site) -> None:
    await site.post({"topic": "a", "payload": {"n": 1}})
    await site.post({"topic": "a"})
    assert [one.payload for one in site.published] == [b'{"n":1}', b""]


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ReasonCode.SUCCESS, 200),
        (ReasonCode.NO_MATCHING_SUBSCRIBERS, 202),
        (ReasonCode.NOT_AUTHORIZED, 403),
        (ReasonCode.PACKET_TOO_LARGE, 413),
        (ReasonCode.MESSAGE_RATE_TOO_HIGH, 429),
        (ReasonCode.QUOTA_EXCEEDED, 503),
        (ReasonCode.UNSPECIFIED_ERROR, 503),
        (ReasonCode.TOPIC_NAME_INVALID, 400),
    ],
)
async def test_a_reason_code_has_a_status(site: Site, code: ReasonCode, status: int) -> None:
    site.codes["a"] = code
    assert await site.post({"topic": "a"}) == (status, {"reason_code": code, "message": code.text})
    assert ("Retry-After" in site.headers) == (status in (429, 503))


def test_every_reason_code_has_a_status() -> None:
    assert all((status_of(code) < 300) == (code < 0x80) for code in ReasonCode)


async def test_a_batch_is_in_order_and_reports_each_message(site: Site) -> None:
    bulk = "/publish/bulk"
    status, found = await site.post([{"topic": "a", "payload": str(at)} for at in range(50)], bulk)
    assert (status, len(found)) == (200, 50)
    assert [one.payload for one in site.published] == [b"%d" % at for at in range(50)]
    site.codes = {"b": 0x87, "c": 0x10}
    status, found = await site.post([{"topic": one} for one in "abc"], bulk)
    assert (status, [one["reason_code"] for one in found]) == (207, [0, 0x87, 0x10])
    assert (await site.post([{"topic": "b"}] * 2, bulk))[0] == 403
    assert (await site.post([{"topic": "c"}] * 2, bulk))[0] == 202


@pytest.mark.parametrize(
    ("body", "field", "text"),
    [
        (b"{", "", "the body is not JSON"),
        (b"[" * 100_000, "", "the body is not JSON"),
        (b"NaN", "", "NaN is not JSON"),
        ([], "", "expected a JSON object"),
        ({}, "topic", "expected a topic"),
        ({"topic": "a/#"}, "topic", "wildcard"),
        ({"topic": "a\0"}, "topic", "U+0000"),
        ({"topic": "a", "qos": 3}, "qos", "expected 0, 1 or 2"),
        ({"topic": "a", "qos": True}, "qos", "expected 0, 1 or 2"),
        ({"topic": "a", "retain": 1}, "retain", "expected true or false"),
        ({"topic": "a", "payload": "é", "payload_encoding": "base64"}, "payload", "not base64"),
        ({"topic": "a", "payload": "\ud800"}, "payload", "not valid Unicode"),
        ({"topic": "a", "payload_encoding": "hex"}, "payload_encoding", "expected plain or base64"),
        ({"topic": "a", "nothing": 1}, "nothing", "unknown field"),
        ({"topic": "a", "properties": {"x": 1}}, "properties.x", "unknown property"),
        (
            {"topic": "a", "properties": {"message_expiry_interval": -1}},
            "properties.message_expiry_interval",
            "expected a whole number",
        ),
        (
            {"topic": "a", "properties": {"user_properties": {"k": 1}}},
            "properties.user_properties.k",
            "expected a text",
        ),
    ],
)
async def test_a_mistake_is_named(site: Site, body: Any, field: str, text: str) -> None:
    status, found = await site.post(body, headers={"Content-Type": "application/json"})
    assert (status, found.get("field", "")) == (400, field)
    assert text in found["message"]
    assert not site.published


async def test_nothing_of_a_batch_with_a_mistake_is_published(site: Site) -> None:
    status, found = await site.post([{"topic": "a"}, {"topic": "+"}], "/publish/bulk")
    assert (status, found["field"]) == (400, "1.topic")
    assert (await site.post([], "/publish/bulk"))[0] == 400
    assert not site.published


async def test_only_a_token_may_publish_and_only_on_its_topics(site: Site) -> None:
    for token in ("", "wrong", TOKEN + "x"):
        status, _ = await site.post({"topic": "a"}, token=token)
        assert (status, site.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert (await site.post({"topic": "a"}, headers={"Authorization": f"Basic {TOKEN}"}))[0] == 401
    assert (await site.post({"topic": "a"}, token=OTHER))[0] == 403
    assert (await site.post([{"topic": "shop/a"}, {"topic": "a"}], "/publish/bulk", OTHER))[
        0
    ] == 403
    assert not site.published
    assert (await site.post({"topic": "shop/a"}, token=OTHER))[0] == 200
    assert site.published[0].identity == "shop"
    assert site.source.metrics()["wrong_tokens"] == 4


async def test_other_requests_are_refused(site: Site) -> None:
    assert (await site.post({}, "/other"))[0] == 404
    assert (await site.post({}, method="GET"))[0] == 405
    assert site.headers["Allow"] == "POST"
    assert (await site.post(b"{}", headers={"Content-Type": "text/plain"}))[0] == 415


async def test_limits() -> None:
    limited = {"token": TOKEN, "identity": "erp", "rate": 2}
    site = Site(tokens=[limited], max_body=1024, max_batch=2, max_waiting=1)
    await site.open()
    assert (await site.post({"topic": "a", "payload": "x" * 2000}))[0] == 413
    assert (await site.post([{"topic": "a"}] * 3, "/publish/bulk"))[0] == 413
    assert (await site.post([{"topic": "a"}] * 2, "/publish/bulk"))[0] == 503
    status, _ = await site.post([{"topic": "a"}] * 2, "/publish/bulk")
    assert (status, site.headers["Retry-After"]) == (429, "1")
    assert not site.published
    await site.close()


async def test_a_broker_that_does_not_answer_is_a_timeout() -> None:
    site = Site(timeout="100ms")
    await site.source.open()
    site.broker = asyncio.create_task(asyncio.Event().wait())  # type: ignore[arg-type]
    assert (await site.post({"topic": "a"}))[0] == 504
    await site.close()


@pytest.mark.parametrize(("read", "status"), [(False, 503), (True, 504)])
async def test_requests_that_wait_are_answered_when_it_closes(read: bool, status: int) -> None:
    """If the engine has already read a message, the response says that the result is unknown."""
    site = Site()
    await site.source.open()
    site.broker = asyncio.create_task(asyncio.Event().wait())  # type: ignore[arg-type]
    waiting = asyncio.create_task(site.post({"topic": "a"}))
    if read:
        await site.source.read()
    else:
        await site.source._more.wait()
    await site.source.close()
    assert (await waiting)[0] == status
    await site.close()


async def test_a_port_that_is_in_use_is_named(site: Site) -> None:
    other = Site(bind=f"127.0.0.1:{site.source.port}")
    with pytest.raises(SourceUnavailable, match="in use"):
        await other.source.open()
    await other.source.close()
    await other.session.close()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tokens": []}, "tokens: empty"),
        ({"tokens": [{"token": "short", "identity": "a"}]}, "at least 16"),
        ({"tokens": [{"token": TOKEN, "identity": ""}]}, "identity: empty"),
        ({"tokens": [{"token": TOKEN, "identity": "a"}] * 2}, "listed twice"),
        (
            {"tokens": [{"token": TOKEN, "identity": "a", "topics": ["a#"]}]},
            "is not a topic filter",
        ),
        ({"bind": "8090"}, "expected HOST:PORT"),
        ({"bind": "0.0.0.0:8090"}, "not a loopback address"),
        ({"bind": "[::]:8090"}, "not a loopback address"),
        ({"no_such": 1}, "no_such"),
    ],
)
def test_mistakes_are_reported(given: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        bind_values(HttpSource.Settings, {"tokens": [{"token": TOKEN, "identity": "a"}], **given})
    assert message in str(caught.value)
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("bind", ["[::1]:1", "localhost:1", "127.0.0.2:1"])
def test_loopback_needs_no_tls(bind: str) -> None:
    bind_values(HttpSource.Settings, {"tokens": [{"token": TOKEN, "identity": "a"}], "bind": bind})


async def test_a_missing_certificate_is_named(tmp_path: Path) -> None:
    site = Site(tls={"cert_file": str(tmp_path / "cert"), "key_file": str(tmp_path / "key")})
    with pytest.raises(SourceUnavailable, match="cert") as caught:
        await site.source.open()
    assert caught.value.permanent
    await site.source.close()
    await site.session.close()
