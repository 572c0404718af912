"""Test the request bodies that an operator defines."""

import json
from typing import Any

import pytest
from hookmq.plugin import ConfigError
from hookmq_webhook.bodies import Body
from hookmq_webhook.envelope import Envelope, encode
from hookmq_webhook.filters import keep_fields
from hookmq_webhook.queues import Numbered
from hookmq_webhook.samples import sample
from hypothesis import given
from hypothesis import strategies as st


def made(template: Any, name: str = "message.published", **settings: Any) -> Any:
    envelope = Envelope("urn:x", "e", "plain", body=Body(json.dumps(template)), **settings)
    headers, body = encode(envelope, [Numbered(7, sample(name), 0)])
    assert headers["Content-Type"] == "application/json"
    return json.loads(body)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("${topic}", "plant/pump-7/state"),
        ({"text": "${client_id} sent ${payload} to ${topic}"},
         {"text": 'pump-7 sent {"pressure": 4.2} to plant/pump-7/state'}),
        ({"a": ["${payload}", "${qos}", "${retain}", "q${qos}"], "b": {"c": "${sequence}"}},
         {"a": [{"pressure": 4.2}, 1, True, "q1"], "b": {"c": 7}}),
        ({"p": "${payload.pressure}", "text": "${payload.pressure} bar", "none": "${payload.pressure.x}"},
         {"p": 4.2, "text": "4.2 bar", "none": None}),
        ({"none": "${reason}", "text": "[${reason}]"}, {"none": None, "text": "[]"}),
        ({"id": "${id}", "n": 1, "x": None, "y": "$ {topic}"}, {"id": "e-7", "n": 1, "x": None, "y": "$ {topic}"}),
    ],
)  # fmt: skip
def test_a_body_is_filled_with_the_values_of_the_event(template: Any, expected: Any) -> None:
    assert made(template) == expected


def test_filters_hold_for_it_too() -> None:
    keep = keep_fields(["topic"])
    assert made(["${topic}", "${payload}"], keep=keep) == ["plant/pump-7/state", None]
    assert made(["${payload_base64}"], payload="base64") == ["eyJwcmVzc3VyZSI6IDQuMn0="]
    assert made("${client_id}", "broker.started") is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "nothing",
        '"${payload.}"',
        '"${payload..a}"',
        '"${payloads.a}"',
        '{"a": "${nothing}"}',
        '"${}"',
        "[" * 100_000,
    ],
)
def test_invalid_templates_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^body: "):
        Body(text)


@given(st.text(), st.text(), st.none() | st.integers() | st.text() | st.lists(st.text()))
def test_no_value_changes_the_shape(topic: str, client: str, payload: Any) -> None:
    body = Body('{"a": "<${topic}>", "b": ["${client_id}", "${payload}"]}')
    found = json.loads(
        body.render({"topic": topic, "client_id": client, "payload": payload}, lambda: payload)
    )
    assert list(found) == ["a", "b"]

    def clean(value: str) -> str:
        return value.encode("utf-8", "replace").decode()

    assert found["a"] == f"<{clean(topic)}>"
    assert found["b"][0] == clean(client)
