"""Test requests to a real service: their contents, the meaning of responses, and forbidden addresses."""

import asyncio
import base64
import gzip
import ipaddress
import json
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from hookmq.plugin import ConfigError
from hookmq_toolkit.templates import Template, fill_url
from hookmq_toolkit.tls_client import TlsConfig
from hookmq_webhook.auth import Credentials, Unauthorized
from hookmq_webhook.config import (
    AuthConfig,
    BatchConfig,
    DestinationConfig,
    OAuth2Config,
    ProxyConfig,
    RetryConfig,
    SignConfig,
    WebhookConfig,
)
from hookmq_webhook.destinations import CheckedResolver, Destinations, Refused
from hookmq_webhook.dispatch import Answer, Verdict
from hookmq_webhook.events import Event
from hookmq_webhook.placeholders import Unsendable, filled_url, values_of
from hookmq_webhook.queues import Numbered
from hookmq_webhook.requests import request_maker
from hookmq_webhook.sender import Sender, retry_after
from hookmq_webhook_receiver import (
    VerificationError,
    new_private_key,
    new_secret,
    public_key,
    verify,
)
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

Make = Callable[..., Sender]
SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()


def event(number: int = 0, topic: str = "t/1", **more: Any) -> Numbered:
    return Numbered(number, Event("message.published", 1.0, "c", topic, **more), 1, f"q-{number}")


@pytest.fixture
async def sender(receiver: Any) -> AsyncIterator[Make]:
    made: list[Sender] = []

    def make(path: str = "/in", **config: Any) -> Sender:
        settings = WebhookConfig(url=config.pop("url", receiver.url + path), **config)
        one = Sender(settings, request_maker(settings, "webhook", None), time.monotonic)
        made.append(one)
        return one

    yield make
    for one in made:
        await one.close()


async def test_a_request(receiver: Any, sender: Make) -> None:
    one = sender(headers={"X-Topic": "${topic}"}, sign=SignConfig(SECRET))
    assert await one.send([event(7)]) == Answer(Verdict.ARRIVED)
    [(method, path, headers, body)] = receiver.requests
    assert (method, path) == ("POST", "/in")
    assert headers["x-topic"] == "t/1"
    assert headers["user-agent"] == "hookmq-webhook"
    assert headers["webhook-id"] == "q-7"
    assert headers["webhook-signature"].startswith("v1,")
    assert json.loads(body)["id"] == "q-7"


@pytest.mark.parametrize("method", ["put", "patch"])
async def test_other_methods(receiver: Any, sender: Make, method: Any) -> None:
    await sender(method=method).send([event()])
    assert receiver.requests[0][0] == method.upper()


async def test_the_connection_is_kept(receiver: Any, sender: Make) -> None:
    ports: set[Any] = set()

    async def note(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        ports.add(request.transport.get_extra_info("peername"))
        return web.Response(text="thanks")

    receiver.answer(note)
    one = sender()
    for number in range(5):
        assert (await one.send([event(number)])).verdict is Verdict.ARRIVED
    assert len(ports) == 1


async def test_statuses(receiver: Any, sender: Make) -> None:
    one = sender()
    for status in (200, 201, 202, 204, 299):
        receiver.answer(status)
        assert (await one.send([event()])).verdict is Verdict.ARRIVED
    for status in (301, 307, 401, 403, 404, 408, 409, 429, 500, 502, 503, 504):
        receiver.answer(status)
        assert await one.send([event()]) == Answer(Verdict.AGAIN, f"status {status}")
    for status in (400, 413, 414, 415, 422, 431):
        receiver.answer(status)
        assert await one.send([event()]) == Answer(Verdict.REFUSED, f"status {status}")
    receiver.answer(410)
    assert await one.send([event()]) == Answer(Verdict.GONE, "status 410")
    assert (
        await sender(retry=RetryConfig(refused=(410,))).send([event()])
    ).verdict is Verdict.REFUSED
    receiver.answer(409)
    one = sender(retry=RetryConfig(refused=(409,)))
    assert (await one.send([event()])).verdict is Verdict.REFUSED
    assert one.statuses == {409: 1}


async def test_a_proxy_gets_all_requests(receiver: Any, sender: Make) -> None:
    proxy = ProxyConfig(receiver.url, "me", "sec/@ret")
    oauth2 = OAuth2Config("http://tokens.invalid/token", "id", "s3cret")

    async def token(request: web.Request) -> web.Response:
        return web.json_response({"access_token": "abc", "token_type": "Bearer"})

    receiver.answer(token, 204)
    one = sender(url="http://service.invalid/in", proxy=proxy, auth=AuthConfig(oauth2=oauth2))
    assert await one.send([event()]) == Answer(Verdict.ARRIVED)
    asked, sent = [headers for _, _, headers, _ in receiver.requests]
    assert (asked["host"], sent["host"]) == ("tokens.invalid", "service.invalid")
    for headers in (asked, sent):
        assert (
            headers["proxy-authorization"] == f"Basic {base64.b64encode(b'me:sec/@ret').decode()}"
        )
    assert sent["authorization"] == "Bearer abc"


async def test_the_host_is_checked_before_a_proxy_is_asked(receiver: Any, sender: Make) -> None:
    denied = DestinationConfig(deny_hosts=("*.invalid",))
    one = sender(url="http://a.invalid/", proxy=ProxyConfig(receiver.url), destinations=denied)
    assert await one.send([event()]) == Answer(
        Verdict.AGAIN, "destination: the host a.invalid is not allowed"
    )
    one = sender(url="http://169.254.169.254/", proxy=ProxyConfig(receiver.url))
    assert (
        await one.send([event()])
    ).reason == "destination: the address 169.254.169.254 is not allowed"
    assert receiver.requests == []


async def test_retry_after(receiver: Any, sender: Make) -> None:
    def saying(text: str, status: int = 429) -> Any:
        async def answer(request: web.Request) -> web.StreamResponse:
            return web.Response(status=status, headers={"Retry-After": text})

        return answer

    one = sender()
    receiver.answer(saying("7"), saying("soon"), saying("7", 503), saying("7", 500))
    assert (await one.send([event()])).after == 7.0
    assert (await one.send([event()])).after is None
    assert (await one.send([event()])).after == 7.0
    assert (await one.send([event()])).after is None
    assert retry_after("Sun, 06 Nov 1994 08:49:37 GMT", 784111770.0) == 7.0
    assert retry_after("Sun, 06 Nov 1994 08:49:37 GMT", 784111790.0) == 0.0
    assert retry_after(None, 0.0) is None
    assert retry_after("-5", 0.0) is None
    assert retry_after("9" * 30, 0.0) is None


@given(st.text())
def test_no_retry_after_breaks_anything(text: str) -> None:
    found = retry_after(text, 0.0)
    assert found is None or found >= 0


async def test_faults_of_services_have_a_verdict(receiver: Any, sender: Make) -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b"half")
        assert request.transport is not None
        request.transport.abort()
        return response

    async def gone(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def garbage(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.write(b"\x00\xff what is HTTP?\r\n\r\n")
        request.transport.close()
        return web.Response()

    receiver.answer(cut, gone, garbage, 200)
    one = sender()
    for reason in (
        "connection closed: the answer is incomplete", "connection closed: before the answer",
        "malformed answer",
    ):  # fmt: skip
        assert await one.send([event()]) == Answer(Verdict.AGAIN, reason)
    assert (await one.send([event()])).verdict is Verdict.ARRIVED


async def test_a_service_that_never_answers(receiver: Any, sender: Make) -> None:
    receiver.answer(receiver.never)
    one = sender(timeout=0.5)
    assert await one.send([event()]) == Answer(Verdict.AGAIN, "timeout: no answer within 0.5 s")
    task = asyncio.create_task(sender().send([event()]))
    await receiver.wait(lambda: len(receiver.requests) == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_nobody_listens(sender: Make) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        answer = await sender(url=f"http://127.0.0.1:{port}/").send([event()])
    assert (answer.verdict, answer.reason) == (Verdict.AGAIN, "connection refused")


async def test_long_answers_are_not_read_and_never_told(receiver: Any, sender: Make) -> None:
    written = [0]

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=500)
        await response.prepare(request)
        try:
            while True:
                await response.write(b"the-whole-story" * 1000)
                written[0] += 15_000
        except ConnectionError:
            return response

    receiver.answer(endless)
    answer = await sender(max_answer=1000).send([event()])
    assert answer == Answer(Verdict.AGAIN, "status 500")
    assert "story" not in answer.reason


async def test_gzip(receiver: Any, sender: Make) -> None:
    one = sender(gzip=600, sign=SignConfig(SECRET))
    await one.send([event(payload=b"x" * 1000)])
    await one.send([event()])
    (_, _, first, body), (_, _, second, _) = receiver.requests
    assert first["content-encoding"] == "gzip"
    assert int(first["content-length"]) < 500
    assert len(body) > 1000  # aiohttp decompressed it; that is what is signed

    verify(first, body, SECRET)
    verify(
        first, gzip.compress(body, 5, mtime=0), SECRET
    )  # the compressed body, for frameworks that do not decompress it
    with pytest.raises(VerificationError):
        verify(first, gzip.compress(body + b" ", 5, mtime=0), SECRET)
    assert len(second["webhook-signature"].split(" ")) == 1
    assert "content-encoding" not in second
    assert gzip.compress(b"x", 5, mtime=0) == gzip.compress(b"x", 5, mtime=0)


async def test_batches(receiver: Any, sender: Make) -> None:
    one = sender(envelope="batch", batch=BatchConfig(10), sign=SignConfig(SECRET))
    await one.send([event(1), event(2)])
    assert [found["id"] for found in receiver.events] == ["q-1", "q-2"]
    assert receiver.requests[0][2]["webhook-id"].startswith("q-1-")


# templates --------------------------------------------------------------------------------------------------------------


async def test_templates(receiver: Any, sender: Make) -> None:
    one = sender("/${client}/${topic}?t=${type}&l=${listener}&i=${id}")
    await one.send([event(topic="a/../b&x=1#f")])
    path = "/c/a%2F..%2Fb%26x%3D1%23f?t=message.published&l=&i=q-0"
    assert receiver.requests[0][1] == path
    answer = await sender(headers={"X-T": "${topic}"}).send([event(topic="a\r\nX-Evil: 1")])
    assert answer.verdict is Verdict.REFUSED
    assert len(receiver.requests) == 1


@given(st.text(), st.text())
def test_no_value_changes_where_a_request_goes(client: str, topic: str) -> None:
    values = {"client": client, "topic": topic}
    try:
        template = Template("http://h:1/base/${client}/x?t=${topic}")
        text = fill_url(template, values.__getitem__)
    except UnicodeEncodeError:
        return  # a lone surrogate, which topics and client ids cannot contain
    url = URL(text, encoded=True)
    assert (url.host, url.port) == ("h", 1)
    parts = url.raw_path.split("/")
    assert (parts[1], parts[3:], len(parts)) == ("base", ["x"], 4)
    assert "." not in (parts[2], parts[2][:1]) or parts[2].strip(".")
    assert url.query_string.startswith("t=") or not url.fragment
    assert url.raw_fragment == ""


def reading(value: Any, **more: Any) -> Numbered:
    payload = value if isinstance(value, bytes) else json.dumps(value).encode()
    return event(payload=payload, **more)


async def test_fields_of_the_payload(receiver: Any, sender: Make) -> None:
    published = ("message.published",)
    one = sender(
        "/devices/${payload.device.id}/${payload.n}?all=${payload}",
        events=published,
        headers={"X-State": "state ${payload.list.0}"},
    )
    value = {"device": {"id": "../a b/\u00fc?x=1&y#z"}, "n": 4.50, "list": [True]}
    assert (await one.send([reading(value)])).verdict is Verdict.ARRIVED
    [(_, path, headers, _)] = receiver.requests
    assert path.startswith("/devices/..%2Fa%20b%2F%C3%BC%3Fx%3D1%26y%23z/4.5?all=%7B%22device")
    assert headers["x-state"] == "state true"
    one = sender("/${payload}", events=published)
    assert (await one.send([reading(31.5)])).verdict is Verdict.ARRIVED
    assert (await one.send([reading(b"on, off")])).verdict is Verdict.ARRIVED
    assert (await one.send([reading(b"..")])).verdict is Verdict.ARRIVED
    assert [path for _, path, _, _ in receiver.requests[1:]] == ["/31.5", "/on%2C%20off", "/%2E%2E"]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"x": 1}, "no value for ${payload.id}"),
        ({"id": None}, "no value for ${payload.id}"),
        ("text", "no value for ${payload.id}"),
        (b"{", "no value for ${payload.id}"),
        (b"\xff", "no value for ${payload.id}"),
        (b'{"id": "\\ud800"}', "no value for ${payload.id}"),
        ({"id": "x" * 8000}, "the URL is longer than 8000 characters"),
    ],
)
async def test_an_event_without_the_value_is_given_up(
    receiver: Any, sender: Make, value: Any, reason: str
) -> None:
    one = sender("/${payload.id}", events=("message.published",))
    assert await one.send([reading(value)]) == Answer(Verdict.REFUSED, f"cannot be sent: {reason}")
    assert receiver.requests == []


@pytest.mark.parametrize("text", ["a\r\nX-Evil: 1", "a\nb", "a\x00", "\x7f", "x" * 8001])
async def test_no_payload_adds_a_header(receiver: Any, sender: Make, text: str) -> None:
    one = sender(headers={"X-P": "${payload.p}"}, events=("message.published",))
    answer = await one.send([reading({"p": text})])
    assert answer.verdict is Verdict.REFUSED
    assert "header X-P" in answer.reason
    assert receiver.requests == []


@given(
    st.text()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.lists(st.text())
)
def test_no_payload_changes_where_a_request_goes(value: Any) -> None:
    template = Template("http://h:1/base/${payload.v}/x?t=${payload.v}")
    try:
        text = filled_url(template, values_of(reading({"v": value})))
    except Unsendable:
        return
    url = URL(text, encoded=True)
    assert (url.host, url.port, url.raw_fragment) == ("h", 1, "")
    parts = url.raw_path.split("/")
    assert (parts[1], parts[3:], len(parts)) == ("base", ["x"], 4)
    assert list(url.query) == ["t"]


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"url": "http://${payload.host}/"}, "not in the host"),
        ({"url": "http://h:${payload.port}/"}, "valid URL|not in the host"),
        ({"url": "${payload.scheme}://h/"}, "http://"),
        ({"url": "http://h/${payload.}"}, "unknown placeholder"),
        ({"url": "http://h/${payload..a}"}, "unknown placeholder"),
        ({"url": "http://h/${payloads}"}, "unknown placeholder"),
        ({"url": "http://h/${payload.a}"}, r"broker.reloaded has no payload for \$\{payload.a\}"),
        ({"url": "http://h/", "headers": {"X": "${payload}"}, "events": ("client.connected",)}, "headers.X: client"),
        ({"url": "http://h/${payload.a}", "events": ("message.published",), "envelope": "batch",
          "batch": BatchConfig(5)}, "batch.count"),
    ],
)  # fmt: skip
def test_placeholders_that_are_refused(config: Any, says: str) -> None:
    def make() -> None:
        request_maker(WebhookConfig(**config), "w", None)

    with pytest.raises(ConfigError, match=says):
        make()


# identification -------------------------------------------------------------------------------------------------------


async def test_bearer_and_basic(receiver: Any, sender: Make) -> None:
    await sender(auth=AuthConfig(bearer_token="tok")).send([event()])
    await sender(auth=AuthConfig(username="ann", password="pä:x")).send([event()])
    shown = [headers["authorization"] for _, _, headers, _ in receiver.requests]
    assert shown[0] == "Bearer tok"
    assert base64.b64decode(shown[1].removeprefix("Basic ")).decode() == "ann:pä:x"


async def test_oauth2(receiver: Any, sender: Make) -> None:
    tokens = iter(["one", "two", "three"])
    asked: list[tuple[dict[str, str], str]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.path == "/token":
            form = {key: str(value) for key, value in (await request.post()).items()}
            asked.append((form, request.headers.get("Authorization", "")))
            await asyncio.sleep(0)
            return web.json_response(
                {"access_token": next(tokens), "token_type": "bearer", "expires_in": 3600}
            )
        good = request.headers["Authorization"] != "Bearer two"
        return web.Response(status=200 if good else 401)

    receiver.answer(answer)
    oauth2 = OAuth2Config(receiver.url + "/token", "me", "s3cret:%", "a b", "aud")
    one = sender(auth=AuthConfig(oauth2=oauth2))
    found = await asyncio.gather(*(one.send([event(n)]) for n in range(5)))
    assert all(answer.verdict is Verdict.ARRIVED for answer in found)
    assert len(asked) == 1  # all five waited for one token
    assert asked[0][0] == {"grant_type": "client_credentials", "scope": "a b", "audience": "aud"}
    assert base64.b64decode(asked[0][1].removeprefix("Basic ")) == b"me:s3cret%3A%25"
    assert one._credentials is not None
    one._credentials.refused("Bearer one")
    assert (await one.send([event()])).reason == "status 401"  # the service does not accept "two"
    assert (await one.send([event()])).verdict is Verdict.ARRIVED  # "three"
    assert len(asked) == 3
    form = OAuth2Config(receiver.url + "/token", "me", "s3cret", style="form")
    tokens = iter(["four"])
    await sender(auth=AuthConfig(oauth2=form)).send([event()])
    assert asked[-1] == (
        {"grant_type": "client_credentials", "client_id": "me", "client_secret": "s3cret"},
        "",
    )


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, b"{}"),
        (400, b'{"error": "invalid_client"}'),
        (200, b"not json"),
        (200, b"[]"),
        (200, b"{}"),
        (200, b'{"access_token": 5}'),
        (200, b'{"access_token": "a\\nb"}'),
        (200, b'{"access_token": "a", "token_type": "mac"}'),
        (200, b'{"access_token": "a", "expires_in": "soon"}'),
        (200, b'{"access_token": "a", "expires_in": [1]}'),
    ],
)
async def test_tokens_that_are_none(status: int, body: bytes) -> None:
    async def fetch(url: str, headers: Any, data: bytes) -> tuple[int, bytes]:
        return status, body

    config = AuthConfig(oauth2=OAuth2Config("http://t/", "me", "s3cret-word"))
    credentials = Credentials(config, fetch, lambda: 0.0)
    with pytest.raises(Unauthorized) as raised:
        await credentials.header()
    assert "s3cret" not in str(raised.value)


async def test_tokens_are_renewed_before_they_end() -> None:
    now = [0.0]
    given = [0]

    async def fetch(url: str, headers: Any, data: bytes) -> tuple[int, bytes]:
        given[0] += 1
        return 200, json.dumps({"access_token": f"t{given[0]}", "expires_in": 100}).encode()

    config = AuthConfig(oauth2=OAuth2Config("http://t/", "me", "s3cret"))
    credentials = Credentials(config, fetch, lambda: now[0])
    assert await credentials.header() == "Bearer t1"
    now[0] = 69
    assert await credentials.header() == "Bearer t1"
    now[0] = 70
    assert await credentials.header() == "Bearer t2"


# TLS --------------------------------------------------------------------------------------------------------------------


async def test_tls_and_our_certificate(receiver: Any, tmp_path: Path) -> None:
    authority = trustme.CA()
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    ours = authority.issue_cert("hookmq.example")
    ours.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "ours.pem"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    service = type(receiver)()
    await service.start(ssl_context=context)
    found: list[Verdict] = []
    for tls in (TlsConfig(ca, tmp_path / "ours.pem"), TlsConfig(ca), None):
        settings = WebhookConfig(url=service.url, tls=tls, timeout=60)
        one = Sender(settings, request_maker(settings, "w", None), time.monotonic)
        found.append((await one.send([event()])).verdict)
        await one.close()
    assert found == [Verdict.ARRIVED, Verdict.AGAIN, Verdict.AGAIN]
    assert len(service.requests) == 1
    await service.stop()
    settings = WebhookConfig(url=service.url, tls=TlsConfig(tmp_path / "none.pem"))
    maker = request_maker(settings, "w", None)
    with pytest.raises(OSError, match=r"No such file.*/none\.pem"):
        Sender(settings, maker, time.monotonic)
    os.mkfifo(tmp_path / "none.pem")
    with pytest.raises(OSError, match=r"not a regular file.*/none\.pem"):
        Sender(settings, maker, time.monotonic)


# where requests go ------------------------------------------------------------------------------------------------------


async def test_redirects(receiver: Any, sender: Make) -> None:
    def moved(status: int, to: str) -> Any:
        async def answer(request: web.Request) -> web.StreamResponse:
            return web.Response(status=status, headers={"Location": to})

        return answer

    token = AuthConfig(bearer_token="tok")
    receiver.answer(moved(307, "/there"), 200)
    assert (await sender(auth=token).send([event()])).reason == "status 307"
    receiver.answer(moved(307, "/there"), 200)
    assert (await sender(auth=token, redirects=1).send([event()])).verdict is Verdict.ARRIVED
    method, path, headers, body = receiver.requests[-1]
    assert (method, path, headers["authorization"]) == ("POST", "/there", "Bearer tok")
    assert body
    receiver.answer(moved(308, "/round"))
    assert (await sender(redirects=3).send([event()])).reason == "too many redirects: more than 3"
    receiver.answer(moved(302, "/there"))
    assert (await sender(redirects=3).send([event()])).reason == "status 302"
    receiver.answer(moved(307, "http://169.254.169.254/latest/meta-data"))
    answer = await sender(redirects=3).send([event()])
    assert answer.reason == "destination: the address 169.254.169.254 is not allowed"
    other = type(receiver)()
    await other.start()
    receiver.answer(moved(307, other.url + "/elsewhere"))
    mine = {"X-Api-Key": "key"}
    one = sender(auth=token, redirects=1, headers=mine)
    assert (await one.send([event()])).verdict is Verdict.ARRIVED
    assert receiver.requests[-1][2]["x-api-key"] == "key"
    assert "authorization" not in other.requests[0][2]
    assert "x-api-key" not in other.requests[0][2]
    await other.stop()
    for wrong in (
        "file:///etc/passwd", "http://[", "http://a:99999/",
        receiver.url.replace("//", "//user:pass@"), "http://a..b/", "http://" + "x" * 70 + "/",
    ):  # fmt: skip
        receiver.answer(moved(307, wrong))
        assert (await sender(auth=token, redirects=1).send([event()])).reason == "status 307"


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254", "[fd00:ec2::254]", "[fe80::1]", "[::ffff:169.254.169.254]", "0.0.0.0",
        "100.100.100.200", "[64:ff9b::a9fe:a9fe]", "[::]", "224.0.0.1", "[2002:a9fe:a9fe::1]",
        # the same service in other forms: translated, compatible, NAT64 of one network, Teredo
        "[::ffff:0:a9fe:a9fe]", "[::a9fe:a9fe]", "[64:ff9b:1::a9fe:a9fe]", "[2001:0:1:1:0:0:5601:5601]",
        "[fd20:ce::254]",  # GCP
        "[fd00:c1::a9fe:a9fe]", "192.0.0.192", "[::ffff:192.0.0.192]",  # Oracle
        "169.254.42.42", "[fd00:42::42]",  # Scaleway
        "[fd00:a9fe:a9fe::1]",  # Linode
        "[fd00:100::100:200]", "[::ffff:100.100.100.200]",  # Alibaba
        "168.63.129.16", "[::ffff:168.63.129.16]",  # Azure
        "169.254.170.2", "[fd00:ec2::23]",  # AWS, containers
        "metadata.google.internal", "METADATA.google.internal.", "metadata", "metadata.goog",
        "instance-data", "metadata.azure.internal", "metadata.digitalocean.com",
    ],
)  # fmt: skip
async def test_addresses_that_are_never_asked(receiver: Any, sender: Make, host: str) -> None:
    async def moved(request: web.Request) -> web.StreamResponse:
        return web.Response(status=307, headers={"Location": f"http://{host}/latest"})

    receiver.answer(moved)
    for one in (sender(url=f"http://{host}/latest"), sender(redirects=2)):
        answer = await one.send([event()])
        assert answer.verdict is Verdict.AGAIN
        assert answer.reason.startswith("destination: ")
        assert answer.reason.endswith("not allowed")
    assert len(receiver.requests) == 1


@pytest.mark.parametrize(
    "host", ["2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.16689662"]
)
async def test_addresses_written_otherwise(sender: Make, host: str) -> None:
    """An address is checked after it is resolved, so its spelling does not matter. aiohttp itself
    refuses most of these spellings.
    """
    answer = await sender(url=f"http://{host}/latest", timeout=60).send([event()])
    assert answer.verdict is Verdict.AGAIN
    assert answer.reason == "other: InvalidUrlClientError" or "is allowed" in answer.reason


class Names(AbstractResolver):
    """A resolver that returns a different address each time."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host, host=one, port=port, family=socket.AF_INET, proto=0, flags=0
            )
            for one in self.answers.pop(0)
        ]

    async def close(self) -> None:
        pass


async def test_a_name_is_looked_at_each_time_it_is_resolved() -> None:
    names = Names(["127.0.0.1"], ["169.254.169.254"], ["10.0.0.1", "169.254.169.254"], ["what"])
    resolver = CheckedResolver(Destinations(DestinationConfig()), names)
    assert [one["host"] for one in await resolver.resolve("h")] == ["127.0.0.1"]
    with pytest.raises(Refused, match="no address of h is allowed"):
        await resolver.resolve("h")
    assert [one["host"] for one in await resolver.resolve("h")] == ["10.0.0.1"]
    with pytest.raises(Refused):
        await resolver.resolve("h")


@pytest.mark.parametrize("address", ["192.0.0.192", "100.100.100.200", "168.63.129.16"])
async def test_a_name_that_leads_to_a_metadata_service_is_refused(address: str) -> None:
    resolver = CheckedResolver(Destinations(DestinationConfig()), Names([address]))
    with pytest.raises(Refused):
        await resolver.resolve("harmless.example")


async def test_a_metadata_service_is_allowed_by_its_very_name_only() -> None:
    name = "metadata.google.internal"
    for allowed in ((), ("*",), ("*.internal",)):
        with pytest.raises(Refused, match="is a metadata service"):
            Destinations(DestinationConfig(allow_hosts=allowed)).check_host(name)
    Destinations(DestinationConfig(allow_hosts=(name,))).check_host(name)


def test_ordinary_addresses_are_allowed() -> None:
    allows = Destinations(DestinationConfig()).allows
    for text in (
        "::1",
        "127.0.0.1",
        "10.0.0.1",
        "fd12::1",
        "::ffff:10.0.0.1",
        "64:ff9b::808:808",
        "2001:db8::1",
    ):
        assert allows(ipaddress.ip_address(text)), text


async def test_hosts_and_networks(receiver: Any, sender: Make) -> None:
    async def asked(**destinations: Any) -> str:
        one = sender(destinations=DestinationConfig(**destinations))
        return (await one.send([event()])).reason

    assert await asked() == ""
    assert await asked(allow_hosts=("127.0.0.*",)) == ""
    assert (
        await asked(allow_hosts=("*.example",)) == "destination: the host 127.0.0.1 is not allowed"
    )
    assert await asked(deny_hosts=("127.*",)) == "destination: the host 127.0.0.1 is not allowed"
    assert (
        await asked(deny_networks=("127.0.0.0/8",))
        == "destination: the address 127.0.0.1 is not allowed"
    )
    assert (
        await asked(allow_networks=("10.0.0.0/8",))
        == "destination: the address 127.0.0.1 is not allowed"
    )
    assert await asked(allow_networks=("127.0.0.1/32",)) == ""
    assert (
        await asked(allow_networks=("127.0.0.0/8",), deny_networks=("127.0.0.1/32",))
        == "destination: the address 127.0.0.1 is not allowed"
    )
    assert len(receiver.requests) == 3
    with pytest.raises(ConfigError, match=r"destinations\.deny_networks"):
        DestinationConfig(deny_networks=("10.0.0.0/99",))
    lifted = Destinations(DestinationConfig(allow_networks=("169.254.0.0/16",)))
    assert lifted.allows(ipaddress.ip_address("169.254.1.1"))
    assert not lifted.allows(ipaddress.ip_address("10.0.0.1"))
    assert Destinations(DestinationConfig()).allows(ipaddress.ip_address("10.0.0.1"))


async def test_tokens_come_from_nowhere_that_is_not_allowed(receiver: Any, sender: Make) -> None:
    oauth2 = OAuth2Config("http://169.254.169.254/token", "me", "s3cret")
    answer = await sender(auth=AuthConfig(oauth2=oauth2)).send([event()])
    assert answer.reason == "destination: the address 169.254.169.254 is not allowed"
    assert receiver.requests == []


# secrets ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["tok\n", "t\u00f6k", "", "a b", "a\x7f"])
def test_a_token_that_no_header_takes_is_a_mistake_of_the_configuration(token: str) -> None:
    """A token that no header can contain is a configuration error. Otherwise, every event would
    fail and be abandoned.
    """
    with pytest.raises(ConfigError, match=r"auth\.bearer_token") as raised:
        AuthConfig(bearer_token=token)
    assert "tok" not in str(raised.value).replace("token", "")


@pytest.mark.parametrize(
    "name", ["content-type", "Content-Length", "HOST", "content-encoding", "Webhook-Signature"]
)
def test_headers_that_are_ours_to_set(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be configured"):
        WebhookConfig(url="http://x", headers={name: "1"})


@pytest.mark.parametrize(
    "host", ["a..b", "x" * 64 + ".example", "h\u00e4.example", "a\\b", "\u00e4..b", "a b"]
)
def test_hosts_that_no_request_reaches(host: str) -> None:
    """A host that no request can reach is an error at startup, not each time an event is sent."""
    with pytest.raises(ConfigError, match="url"):
        WebhookConfig(url=f"http://{host}/in")
    for good in ("h", "xn--h-0fa.example", "h.example.", "127.0.0.1", "[::1]:80", "a_b.example"):
        WebhookConfig(url=f"http://{good}/in")


async def test_an_error_of_the_client_library_is_tried_again(
    sender: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = sender(url="http://some.example/in")

    async def wrong(*args: Any, **more: Any) -> Any:
        raise UnicodeError("label too long")

    monkeypatch.setattr(CheckedResolver, "resolve", wrong)
    answer = await one.send([event()])
    assert answer == Answer(Verdict.AGAIN, "other: UnicodeError")


async def test_a_request_is_signed_with_all_secrets_and_keys(receiver: Any, sender: Make) -> None:
    old_secret, key, old_key = new_secret(), new_private_key(), new_private_key()
    sign = SignConfig(SECRET, old_secret, key, old_key)
    assert (await sender(sign=sign, gzip=1).send([event()])).verdict is Verdict.ARRIVED
    [(_, _, headers, body)] = receiver.requests
    kinds = [one.partition(",")[0] for one in headers["webhook-signature"].split(" ")]
    assert kinds == ["v1", "v1", "v1a", "v1a"] * 2
    for one in (SECRET, old_secret, public_key(key), public_key(old_key)):
        verify(headers, body, one)
        verify(headers, gzip.compress(body, 5, mtime=0), one)
    assert (
        await sender(sign=SignConfig(private_key=key)).send([event()])
    ).verdict is Verdict.ARRIVED
    headers = receiver.requests[-1][2]
    verify(headers, receiver.requests[-1][3], public_key(key))
    with pytest.raises(VerificationError):
        verify(headers, receiver.requests[-1][3], SECRET)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({}, "expected secret, private_key, or both"),
        ({"previous_secret": SECRET}, "expected secret, private_key, or both"),
        (
            {"secret": SECRET, "previous_private_key": "x"},
            "previous_private_key: requires private_key",
        ),
        ({"private_key": "x", "previous_secret": SECRET}, "previous_secret: requires secret"),
    ],
)
def test_signatures_that_cannot_be_made(config: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        SignConfig(**config)


async def test_secrets_are_not_shown(receiver: Any, sender: Make) -> None:
    old = "whsec_" + base64.b64encode(b"o" * 32).decode()
    oauth2 = OAuth2Config(receiver.url, "me", "s3cret-word")
    for auth in (
        AuthConfig(bearer_token="bearer-word"),
        AuthConfig(username="ann", password="pass-word"),
        AuthConfig(oauth2=oauth2),
    ):
        key, old_key = new_private_key(), new_private_key()
        sign = SignConfig(SECRET, old, key, old_key)
        config = WebhookConfig(url=receiver.url, auth=auth, sign=sign)
        text = repr(config) + str(config)
        for word in ("bearer-word", "pass-word", "s3cret-word", SECRET, old, key, old_key):
            assert word not in text
    with pytest.raises(ConfigError) as raised:
        request_maker(WebhookConfig(url="http://x", sign=SignConfig("short-word")), "w", None)
    assert "short-word" not in str(raised.value)
    sign = SignConfig(private_key="short-word")
    with pytest.raises(ConfigError, match=r"sign\.private_key: ") as raised:
        request_maker(WebhookConfig(url="http://x", sign=sign), "w", None)
    assert "short-word" not in str(raised.value)
