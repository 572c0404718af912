"""Test envelopes. Whatever a client sends, the request is valid and contains the message."""

import base64
import json
import re
from typing import Any

import jsonschema
import pytest
from hookmq.plugin import ClientInfo, ConfigError, Message, Peer, Properties, Scope
from hookmq_webhook.catalog import CATALOG, field_names
from hookmq_webhook.config import WebhookConfig
from hookmq_webhook.envelope import (
    MAX_HEADER,
    Envelope,
    encode,
    event_id,
    percent,
    request_id,
    rfc3339,
)
from hookmq_webhook.events import Event, pack, unpack
from hookmq_webhook.filters import keep_fields
from hookmq_webhook.hook_events import published, traceparent
from hookmq_webhook.payloads import DEPTH, PayloadAs, is_json, show
from hookmq_webhook.queues import Numbered
from hookmq_webhook.reference import FOLDER, PAGE, page, schema, schemas
from hookmq_webhook.requests import request_maker
from hookmq_webhook.samples import TIME, sample
from hookmq_webhook_receiver import read
from hypothesis import given
from hypothesis import strategies as st
from workspace import ROOT

MODES = ("structured", "binary", "batch", "plain")
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
HEADER = re.compile(r"[ -~]+")


def numbered(event: Event, number: int = 7) -> Numbered:
    return Numbered(number, event, 0)


def published_of(payload: bytes, **properties: Any) -> Event:
    message = Message("a/b", payload, 1, False, Properties(**properties), "c", received_at=TIME)
    return published(message, None)


def data_of(event: Event, **settings: Any) -> dict[str, Any]:
    headers, body = encode(Envelope("urn:x", "e", **settings), [numbered(event)])
    [got] = read(headers, body)
    assert isinstance(got.data, dict)
    return got.data


@pytest.mark.parametrize("name", CATALOG)
@pytest.mark.parametrize("mode", MODES)
def test_every_event_in_every_envelope(name: str, mode: Any) -> None:
    event = unpack(pack(sample(name)))
    headers, body = encode(Envelope("urn:x", "e", mode, several=False), [numbered(event)])
    [got] = read(headers, body)
    prefix = "" if mode == "plain" else "hookmq."
    assert (got.id, got.type, got.sequence, got.epoch) == ("e-7", prefix + name, 7, "e")
    assert got.time == "2026-01-01T00:00:00.000000Z"
    assert got.source == "urn:x"
    jsonschema.Draft202012Validator(schema(CATALOG[name])).validate(got.data)
    assert set(got.data) <= field_names(CATALOG[name])
    if event.payload is not None:
        assert (got.traceparent, headers.get("traceparent")) == (
            TRACE,
            None if mode == "batch" else TRACE,
        )
    if mode != "plain":
        assert got.subject == (event.topic or event.client)


@pytest.mark.parametrize("name", CATALOG)
def test_a_schema_is_one_and_refuses_what_lacks_a_field(name: str) -> None:
    text = (FOLDER / f"{name}.json").read_text()
    assert text == schemas()[f"{name}.json"]
    made = json.loads(text)
    jsonschema.Draft202012Validator.check_schema(made)
    data = data_of(sample(name))
    for field in made["required"]:
        rest = {key: value for key, value in data.items() if key != field}
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft202012Validator(made).validate(rest)


def test_there_are_no_other_schemas() -> None:
    assert {path.name for path in FOLDER.iterdir()} == schemas().keys()


def test_the_page_of_the_manual_is_the_tables() -> None:
    assert (ROOT / PAGE).read_text() == page(), "run python -m hookmq_webhook.reference"


def test_a_batch_is_what_its_events_are() -> None:
    events = [numbered(sample(name), number) for number, name in enumerate(CATALOG)]
    headers, body = encode(Envelope("urn:x", "e", "batch"), events)
    assert headers == {"Content-Type": "application/cloudevents-batch+json"}
    for made, one in zip(json.loads(body), events, strict=True):
        assert made == json.loads(encode(Envelope("urn:x", "e"), [one])[1])
    headers, body = encode(Envelope("urn:x", "e", "plain", several=True), events)
    assert headers == {"Content-Type": "application/json"}
    assert [one.sequence for one in read(headers, body)] == list(range(len(events)))
    for mode in ("structured", "binary", "plain"):
        with pytest.raises(ValueError, match="23 events in one request"):
            encode(Envelope("urn:x", "e", mode), events)


@pytest.mark.parametrize("name", CATALOG)
@pytest.mark.parametrize("content", ["event", "payload"])
def test_attributes_are_what_cloudevents_wants(name: str, content: Any) -> None:
    _, body = encode(Envelope("urn:x", "e", content=content), [numbered(sample(name))])
    made = json.loads(body)
    assert made["specversion"] == "1.0"
    assert not {"data", "data_base64"} <= made.keys()
    for attribute, value in made.items():
        if attribute not in ("data", "data_base64"):
            assert re.fullmatch("[a-z0-9]+", attribute)
            assert isinstance(value, str | bool | int)
            assert value != ""


def attributes(one: Numbered, **envelope: Any) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(encode(Envelope("urn:x", "e", **envelope), [one])[1])
    return made


def test_the_partition_key_is_the_scope_of_the_order() -> None:
    one = numbered(Event("message.published", 1.0, "pump-7", "a/b", payload=b"1"))
    assert attributes(one)["partitionkey"] == "pump-7"
    assert attributes(one, key="topic")["partitionkey"] == "a/b"
    assert attributes(one, key="all")["partitionkey"] == "urn:x"
    assert "partitionkey" not in attributes(one, key="none")
    started = numbered(sample("broker.started"))
    assert "partitionkey" not in attributes(started)
    headers, body = encode(Envelope("urn:x", "e", "binary", key="topic"), [one])
    assert headers["ce-partitionkey"] == "a/b"
    [got] = read(headers, body)
    assert got.partitionkey == "a/b"


def test_the_schema_is_named_if_the_data_fits_it() -> None:
    for name in CATALOG:
        made = attributes(numbered(sample(name)))
        assert made["dataschema"] == schema(CATALOG[name])["$id"]
        [got] = read({"Content-Type": "application/json"}, json.dumps(made).encode())
        assert got.dataschema == made["dataschema"]
        assert "dataschema" not in got.extra
    one = numbered(sample("message.published"))
    assert "dataschema" not in attributes(one, keep=lambda name: name != "qos")
    assert "dataschema" not in attributes(numbered(Event("other.event", 1.0)))
    # The schema of the event does not describe the payload.
    assert "dataschema" not in attributes(one, content="payload")
    mine = attributes(one, content="payload", dataschema="urn:example:reading")
    assert mine["dataschema"] == "urn:example:reading"
    started = attributes(numbered(sample("broker.started")), content="payload", dataschema="urn:x")
    assert started["dataschema"] == "urn:hookmq:event:broker.started"


@pytest.mark.parametrize(
    "dataschema", ["reading.json", "//x/y", "urn:", "urn:a b", "urn:\u00e4", "1:x"]
)
def test_a_schema_is_an_absolute_uri(dataschema: str) -> None:
    with pytest.raises(ConfigError, match="not an absolute URI"):
        WebhookConfig(url="http://h/", content="payload", dataschema=dataschema)
    with pytest.raises(ConfigError, match="requires content: payload"):
        WebhookConfig(url="http://h/", dataschema="urn:x")


def test_the_settings_reach_the_envelope() -> None:
    config = WebhookConfig(url="http://h/", content="payload", dataschema="urn:s", key="topic")
    _, body = request_maker(config, "w", None).encode([numbered(sample("message.published"))])
    made = json.loads(body)
    assert (made["dataschema"], made["partitionkey"]) == ("urn:s", "plant/pump-7/state")


def test_ids_stay() -> None:
    one, two, three = (numbered(sample("broker.started"), number) for number in (1, 2, 3))
    assert event_id("e", 1) == request_id("e", [one]) == "e-1"
    assert request_id("e", [one, three]) == request_id("e", [one, three])
    made = {request_id("e", some) for some in ([one, two], [one, three], [one, two, three], [one])}
    assert len(made) == 4
    assert all("." not in id for id in made)


PAYLOADS: tuple[tuple[PayloadAs, bytes, dict[str, Any], str], ...] = (
    ("auto", b'{"a": [1, 2.50]}', {}, "json"),
    ("auto", b" [1]\n", {}, "json"),
    ("auto", b"23.5", {}, "text"),
    ("auto", b"true", {}, "text"),
    ("auto", b"23.5", {"content_type": "application/json"}, "json"),
    ("auto", b"23.5", {"content_type": "application/senml+json; v=1"}, "json"),
    ("auto", b'{"a": 1}', {"content_type": "text/plain"}, "text"),
    ("auto", b"{broken", {"content_type": "application/json"}, "text"),
    ("auto", b"", {}, "text"),
    ("auto", b"\xff\x00", {}, "base64"),
    ("auto", b"\xff{}", {"payload_format_indicator": 1}, "base64"),
    ("auto", b"[NaN]", {}, "text"),
    ("auto", b"[Infinity]", {}, "text"),
    ("auto", b"[1e400]", {}, "text"),
    ("auto", b"[" + b"9" * 400 + b"]", {}, "text"),
    ("auto", b"[" + b"9" * 5000 + b"]", {}, "text"),
    ("auto", b'["\\ud800"]', {}, "text"),
    ("auto", b'{"\\udc00": 1}', {}, "text"),
    ("auto", b'["\\ud83d\\ude00"]', {}, "json"),
    ("auto", b'["\\\\ud800"]', {}, "json"),
    ("auto", b"[" * DEPTH + b"]" * DEPTH, {}, "json"),
    ("auto", b"[" * (DEPTH + 1) + b"]" * (DEPTH + 1), {}, "text"),
    ("auto", b"[" * 100_000, {}, "text"),
    ("auto", b'["' + b"[" * 1000 + b'"]', {}, "json"),
    ("auto", b"[" + b"[]," * 1000 + b"[]]", {}, "json"),
    ("auto", b"\xef\xbb\xbf{}", {}, "text"),
    ("auto", "{}".encode("utf-16"), {}, "base64"),
    ("json", b"23.5", {}, "json"),
    ("json", b"null", {}, "json"),
    ("json", b"hello", {}, "text"),
    ("json", b"\x80", {}, "base64"),
    ("text", b'{"a": 1}', {"content_type": "application/json"}, "text"),
    ("text", b"\x80", {}, "base64"),
    ("base64", b"{}", {}, "base64"),
    ("none", b"{}", {}, "omitted"),
)


@pytest.mark.parametrize(("wanted", "payload", "properties", "format"), PAYLOADS)
def test_payloads(
    wanted: PayloadAs, payload: bytes, properties: dict[str, Any], format: str
) -> None:
    data = data_of(published_of(payload, **properties), payload=wanted)
    assert data["payload_format"] == format
    assert data["payload_size"] == len(payload)
    assert "left_out" not in data
    if format == "omitted":
        assert not {"payload", "payload_base64"} & data.keys()
    else:
        assert returned(data) == (payload if format != "json" else json.loads(payload))


def returned(data: dict[str, Any]) -> Any:
    """Return the payload decoded from the event's data."""
    match data["payload_format"]:
        case "json":
            return data["payload"]
        case "text":
            return data["payload"].encode()
        case _:
            return base64.b64decode(data["payload_base64"], validate=True)


def test_a_payload_of_json_goes_in_as_it_is() -> None:
    # Parsing to Python floats would round the first number and lose one of the duplicate keys.
    payload = b'{"n": 0.1000000000000000055511151231257827, "t": 1, "t": 2}'
    _, body = encode(Envelope("urn:x", "e"), [numbered(published_of(payload))])
    assert payload in body


texts = st.text(st.characters(codec="utf-8"))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
)  # fmt: skip
payloads = st.binary() | texts.map(str.encode) | values.map(lambda v: json.dumps(v).encode())


@given(
    payload=payloads,
    topic=texts.filter(bool),
    client=texts,
    kind=st.none() | texts | st.just("application/json"),
    pairs=st.lists(st.tuples(texts, texts)),
    mode=st.sampled_from(MODES),
    wanted=st.sampled_from(["auto", "json", "text", "base64", "none"]),
    content=st.sampled_from(["event", "payload"]),
    bound=st.sampled_from([10, 300, 1 << 20]),
)
def test_nothing_that_a_client_sends_breaks_it(
    payload: bytes,
    topic: str,
    client: str,
    kind: str | None,
    pairs: list[tuple[str, str]],
    mode: Any,
    wanted: Any,
    content: Any,
    bound: int,
) -> None:
    properties = Properties(content_type=kind, user_property=tuple(pairs) or None)
    message = Message(topic, payload, 1, True, properties, client, received_at=TIME)
    info = ClientInfo(client, 5, client, Peer("::1"), Scope("tcp"), identity=topic)
    event = unpack(pack(published(message, info)))
    envelope = Envelope("urn:x", "e", mode, payload=wanted, content=content, max_event=bound)
    headers, body = encode(envelope, [numbered(event)])
    for name, value in headers.items():
        assert HEADER.fullmatch(name)
        assert HEADER.fullmatch(value)
        assert len(value) <= MAX_HEADER
    [got] = read(headers, body)
    assert (got.id, got.sequence) == ("e-7", 7)
    if mode in ("structured", "batch") or (mode == "binary" and len(percent(topic)) <= MAX_HEADER):
        assert got.subject == topic
    if mode != "plain" and content == "payload":
        if wanted == "none" or got.data is None:
            return
        plain = got.data.encode() if isinstance(got.data, str) else got.data
        assert plain == payload or json.loads(payload) == got.data
        return
    data = got.data
    assert (data["client_id"], data["topic"], data["username"]) == (client, topic, client)
    assert data["payload_size"] == len(payload)
    if "user_properties" in data:
        assert [tuple(pair) for pair in data["user_properties"]] == pairs
    else:
        assert not pairs or "user_properties" in data["left_out"]
    if data["payload_format"] == "omitted":
        assert wanted == "none" or "payload" in data["left_out"]
    else:
        found = returned(data)
        assert found == (json.loads(payload) if data["payload_format"] == "json" else payload)
    jsonschema.Draft202012Validator(schema(CATALOG["message.published"])).validate(data)


@given(texts | st.text())
def test_headers_of_the_http_binding(text: str) -> None:
    made = percent(text)
    assert re.fullmatch(r"[!#-$&-~]*(%[0-9A-F]{2}[!#-$&-~]*)*", made)
    from urllib.parse import unquote

    assert unquote(made) == text.encode("utf-8", "replace").decode()


def test_the_example_of_the_http_binding() -> None:
    assert percent("Euro \u20ac \U0001f600") == "Euro%20%E2%82%AC%20%F0%9F%98%80"
    assert percent('a"b%\r\n') == "a%22b%25%0D%0A"


def test_a_header_that_would_be_too_long_is_left_out() -> None:
    event = published_of(b"")._replace(topic="t" * 5000)
    headers, body = encode(Envelope("urn:x", "e", "binary"), [numbered(event)])
    assert "ce-subject" not in headers
    assert json.loads(body)["topic"] == "t" * 5000


def test_an_event_is_bounded() -> None:
    large = published_of(b"x" * 5000, user_property=(("a", "b"),))
    data = data_of(large, max_event=5000)
    assert (data["payload_format"], data["payload_size"]) == ("omitted", 5000)
    assert (data["left_out"], data["user_properties"]) == (["payload"], [["a", "b"]])
    heavy = published_of(b"x", user_property=(("a", "b" * 5000),))
    data = data_of(heavy, max_event=5000)
    assert data["left_out"] == ["payload", "user_properties"]
    assert "user_properties" not in data
    data = data_of(published_of(b"x" * 4000), max_event=5000)
    assert len(data["payload"]) == 4000


def test_a_payload_that_cannot_fit_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A payload that is too large to be shown is not parsed. Parsing 256 MB would block everything
    for seconds at every attempt.
    """
    read: list[int] = []

    def is_json(text: str) -> bool:
        read.append(len(text))
        return True

    monkeypatch.setattr("hookmq_webhook.payloads.is_json", is_json)
    large = published_of(b"[" + b"1," * 3000 + b"1]", content_type="application/json")
    assert data_of(large, max_event=5000)["left_out"] == ["payload"]
    for mode in ("structured", "binary"):
        encode(Envelope("urn:x", "e", mode, content="payload", max_event=5000), [numbered(large)])
    assert read == []
    data_of(large, max_event=7000)
    assert len(read) == 1


def test_fields_are_chosen() -> None:
    event = sample("message.published")
    assert data_of(event, keep=keep_fields(["topic", "payload"])) == {
        "topic": "plant/pump-7/state",
        "payload": {"pressure": 4.2},
    }
    assert data_of(event, keep=keep_fields(["topic"])) == {"topic": "plant/pump-7/state"}
    less = data_of(event, keep=keep_fields(["-payload", "-topic"]))
    assert not {"topic", "payload", "left_out"} & less.keys()
    assert less["payload_format"] == "omitted"
    raw = published_of(b"\xff")
    assert data_of(raw, keep=keep_fields(["payload"])) == {"payload_base64": "/w=="}


@pytest.mark.parametrize(
    ("payload", "kind", "says", "data"),
    [
        (b'{"a": 1}', "application/json", "application/json", {"a": 1}),
        (b'{"a": 1}', None, "application/json", {"a": 1}),
        (b"hello", None, "text/plain; charset=utf-8", "hello"),
        (b"hello", "text/csv", "text/csv", "hello"),
        (b"{broken", "application/json", "text/plain; charset=utf-8", "{broken"),
        (b"\xff", "image/png", "image/png", b"\xff"),
        (b"\xff", None, "application/octet-stream", b"\xff"),
        (b"\xff", "application/json", "application/octet-stream", b"\xff"),
        (b"\xff", "text/plain; charset=latin-1", "text/plain; charset=latin-1", b"\xff"),
        (b"1", "application/json", "application/json", 1),
        (b"\xff", "a\r\nb: c", "application/octet-stream", b"\xff"),
    ],
)
@pytest.mark.parametrize("mode", ["structured", "binary"])
def test_a_payload_that_is_the_data(
    mode: Any, payload: bytes, kind: str | None, says: str, data: Any
) -> None:
    event = published_of(payload, content_type=kind, user_property=(("traceparent", TRACE),))
    headers, body = encode(Envelope("urn:x", "e", mode, content="payload"), [numbered(event)])
    [got] = read(headers, body)
    assert got.data == data
    shown = {"clientid": "c", "topic": "a/b", "qos": 1, "retain": False, "origin": "client"}
    shown |= {"receivedat": "2026-01-01T00:00:00.000000Z", "payloadsize": len(payload)}
    if mode == "binary":
        assert body == payload
        assert headers["Content-Type"] == says
        assert got.extra == {
            k: str(v).lower() if k == "retain" else str(v) for k, v in shown.items()
        }
    else:
        assert json.loads(body)["datacontenttype"] == says
        assert got.extra == shown


@pytest.mark.parametrize(
    ("value", "good"),
    [
        (TRACE, True),
        ("ff" + TRACE[2:], False),
        ("00-" + "0" * 32 + TRACE[35:], False),
        (TRACE.upper(), False),
        (TRACE + "-x", False),
        (TRACE + "\r\nx: y", False),
        ("", False),
    ],
)
def test_traceparent(value: str, good: bool) -> None:
    properties = Properties(user_property=(("other", TRACE), ("traceparent", value)))
    assert traceparent(Message("a", b"", properties=properties)) == (value if good else None)


@pytest.mark.parametrize(
    ("time", "text"),
    [
        (0.0, "1970-01-01T00:00:00.000000Z"),
        (TIME + 0.25, "2026-01-01T00:00:00.250000Z"),
        (1e20, "9999-12-31T23:59:59.999999Z"),
    ],
)
def test_times(time: float, text: str) -> None:
    assert rfc3339(time) == text


@given(texts)
def test_json_payloads_are_shown_as_json(text: str) -> None:
    if is_json(text):
        json.loads(text)
    assert show(text.encode(), "json", {}).format in ("json", "text")
