"""Test how `hookmq sub` prints messages."""

import json
from types import SimpleNamespace

import pytest
from hookmq.cli.formats import FIELDS, ReceivedMessage, as_json, check, iso, render
from hookmq.model.errors import ConfigError

PROPERTIES = SimpleNamespace(
    ContentType="text", ResponseTopic="r", CorrelationData=b"\x00c", MessageExpiryInterval=9, PayloadFormatIndicator=1,
    SubscriptionIdentifier=[3, 4], UserProperty=[("a", "1"), ("a", "2")], TopicAlias=None,
)  # fmt: skip
MESSAGE = ReceivedMessage("a/b", b"21\xff", 1, True, 7, PROPERTIES)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("%t %p", b"a/b 21\xff"), ("%x %X", b"3231ff 3231FF"), ("%l %q %r %m %%", b"3 1 1 7 %"), ("%C %R", b"text r"),
        ("%D", b"\x00c"), ("%E %F %S %A.", b"9 1 3 4 ."), ("%P", b"a:1 a:2"), ("[%5t] [%-5t]", b"[  a/b] [a/b  ]"),
        ("%05l", b"00003"), ("%.1t", b"a"), ("\u00e4%q", b"\xc3\xa41"), ("%U", b"1000.500000"),
    ],
)  # fmt: skip
def test_fields(template: str, expected: bytes) -> None:
    assert render(MESSAGE, template, 1000.5) == expected


def test_every_field_renders_without_properties() -> None:
    bare = ReceivedMessage("t", b"x", 0, False)
    for name in FIELDS:
        assert isinstance(render(bare, f"%{name}", 0.0), bytes)


def test_escapes_and_unknown_fields() -> None:
    assert check(r"%t\t%p\n\\ \q") == "%t\t%p\n\\ \\q"
    with pytest.raises(ConfigError, match="unknown field '%z'"):
        check("%t %z")


def test_json() -> None:
    record = json.loads(as_json(MESSAGE, 0.0, parse=False))
    assert record["payload_hex"] == "3231ff"
    assert "payload" not in record
    assert (record["topic"], record["qos"], record["retain"], record["mid"]) == ("a/b", 1, 1, 7)
    assert record["properties"]["user-properties"] == [["a", "1"], ["a", "2"]]
    assert record["properties"]["correlation-data"] == "\x00c"
    assert record["properties"]["subscription-identifier"] == [3, 4]
    number = ReceivedMessage("t", b'{"a": 1}', 0, False)
    assert json.loads(as_json(number, 0.0, parse=False))["payload"] == '{"a": 1}'
    assert json.loads(as_json(number, 0.0, parse=True))["payload"] == {"a": 1}
    text = ReceivedMessage("t", b"no json", 0, False)
    assert json.loads(as_json(text, 0.0, parse=True))["payload"] == "no json"


def test_time_has_microseconds_and_an_offset() -> None:
    assert iso(1.25)[19:26] == ".250000"
    assert iso(1.25)[26] in "+-"


HOSTILE = ReceivedMessage("a\x1b\u202e\n", b"\x1b]0;x\x07\xc2\x9b\x9b\r\x7f\t\n\xc3\xa9", 0, False)


def test_nothing_in_a_field_drives_a_terminal() -> None:
    escaped = rb"\x1b]0;x\x07\x9b\x9b\x0d\x7f" + b"\t\n\xc3\xa9"
    assert render(HOSTILE, "%p", 0.0, terminal=True) == escaped
    assert render(HOSTILE, "%t", 0.0, terminal=True) == rb"a\x1b\u202e\x0a"
    assert render(HOSTILE, "\x1b[1m%q", 0.0, terminal=True) == b"\x1b[1m0"  # our own
    properties = SimpleNamespace(
        ContentType="\x1b", ResponseTopic="\x9b", CorrelationData=b"\x1b", UserProperty=[("\n", "\x07")]
    )  # fmt: skip
    every = render(
        ReceivedMessage("t", b"", 0, False, 0, properties), "%C %R %D %P", 0.0, terminal=True
    )
    assert every == rb"\x1b \x9b \x1b \x0a:\x07"


def test_a_file_gets_the_bytes_as_they_are() -> None:
    assert render(HOSTILE, "%p", 0.0) == HOSTILE.payload
    assert render(HOSTILE, "%t", 0.0) == HOSTILE.topic.encode()


@pytest.mark.parametrize("parse", [False, True])
def test_json_is_never_harmful(parse: bool) -> None:
    text = "\x1b\x7f\x9b\u202e\u2028"
    line = as_json(ReceivedMessage(text, f'"{text}"'.encode(), 0, False), 0.0, parse=parse)
    assert line.isprintable()
    assert json.loads(line)["topic"] == text
    assert text in json.loads(line)["payload"]
    if parse:
        lone = ReceivedMessage("t", rb'"\ud800"', 0, False)
        assert json.loads(as_json(lone, 0.0, parse=True))["payload"] == "\ud800"
