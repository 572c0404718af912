"""The client protocol of NATS: any split of the bytes, and anything that is not NATS."""

import pytest
from hookmq_cluster.engine_errors import EngineError
from hookmq_cluster.nats_protocol import (
    MAX_LINE,
    Parser,
    header_field,
    information,
    publish,
    publish_with_header,
    status,
)
from hypothesis import given
from hypothesis import strategies as st

Message = tuple[int, str, str, bytes, bytes]

STREAM = (
    b'INFO {"server_id":"x"}\r\nPING\r\n+OK\r\n'
    b"MSG a.b 1 5\r\nhello\r\n"
    b"MSG a.b 22 inbox.1 0\r\n\r\n"
    b"HMSG a.b 3 12 17\r\nNATS/1.0\r\n\r\nhello\r\n"
    b"HMSG a.b 4 inbox.2 27 27\r\nNATS/1.0 503\r\nName: v  \r\n\r\n\r\n"
    b"MSG a.b 1 4\r\n\r\n\r\n\r\n"
    b"-ERR 'Authorization Violation'\r\nPONG\r\n"
)
MESSAGES: list[Message] = [
    (1, "a.b", "", b"", b"hello"),
    (22, "a.b", "inbox.1", b"", b""),
    (3, "a.b", "", b"NATS/1.0\r\n\r\n", b"hello"),
    (4, "a.b", "inbox.2", b"NATS/1.0 503\r\nName: v  \r\n\r\n", b""),
    (1, "a.b", "", b"", b"\r\n\r\n"),
]
CONTROLS = [
    ("INFO", '{"server_id":"x"}'),
    ("PING", ""),
    ("+OK", ""),
    ("-ERR", "'Authorization Violation'"),
    ("PONG", ""),
]


def parse(*parts: bytes) -> tuple[list[Message], list[tuple[str, str]]]:
    messages: list[Message] = []
    controls: list[tuple[str, str]] = []
    parser = Parser(lambda *args: messages.append(args), lambda *args: controls.append(args))
    for part in parts:
        parser.feed(part)
    return messages, controls


def test_all_at_once() -> None:
    assert parse(STREAM) == (MESSAGES, CONTROLS)


def test_split_at_every_byte() -> None:
    for at in range(1, len(STREAM)):
        assert parse(STREAM[:at], STREAM[at:]) == (MESSAGES, CONTROLS), at


def test_byte_by_byte() -> None:
    assert parse(*(STREAM[at : at + 1] for at in range(len(STREAM)))) == (MESSAGES, CONTROLS)


@pytest.mark.parametrize(
    "line",
    [
        b"MSG\r\n",
        b"MSG a\r\n",
        b"MSG a 1\r\n",
        b"MSG a x 1\r\n",
        b"MSG a 1 -1\r\n",
        b"MSG a 1 b c 1\r\n",
        b"MSG a 1 999999999999\r\n",
        b"MSGX a 1 1\r\n",
        b"HMSG a 1 5 4\r\nabcd\r\n",
        b"HMSG a 1 5\r\n",
        b"HMSG a 1 -2 4\r\nabcd\r\n",
        b"MSG a 1 \xc2\xb2\r\n",
    ],
)
def test_malformed_messages(line: bytes) -> None:
    with pytest.raises(EngineError, match="malformed line"):
        parse(line)


def test_a_line_without_an_end() -> None:
    parse(b"INFO " + b"x" * 1000)
    with pytest.raises(EngineError, match="too long"):
        parse(b"INFO ", b"x" * (MAX_LINE + 1))


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_other_bytes_raise_nothing_else(parts: list[bytes]) -> None:
    try:
        parse(*parts)
    except EngineError:
        pass


@given(
    st.lists(
        st.sampled_from([b"MSG ", b"HMSG ", b"a ", b"1 ", b"9", b"\r\n", b"NATS/1.0"]), max_size=12
    )
)
def test_parts_of_the_protocol_raise_nothing_else(parts: list[bytes]) -> None:
    try:
        parse(*parts)
    except EngineError:
        pass


def test_information() -> None:
    assert information('{"version":"2.15.1"}') == {"version": "2.15.1"}
    for text in ("", "[]", "{", "1"):
        with pytest.raises(EngineError, match="malformed INFO"):
            information(text)


def test_published_messages() -> None:
    assert publish("a.b", b"x") == b"PUB a.b 1\r\nx\r\n"
    assert publish("a.b", b"", "i.1") == b"PUB a.b i.1 0\r\n\r\n"
    header = b"NATS/1.0\r\nA: 1\r\n\r\n"
    assert publish_with_header(b"a.b", header, b"xy", b"i.1 ") == (
        b"HPUB a.b i.1 18 20\r\n" + header + b"xy\r\n"
    )


def test_headers() -> None:
    header = b"NATS/1.0 404 No Messages\r\nNats-Sequence: 12\r\nNats-Sequence-Two:  3 \r\n\r\n"
    assert status(header) == 404
    assert header_field(header, b"\r\nNats-Sequence:") == b"12"
    assert header_field(header, b"\r\nNats-Sequence-Two:") == b"3"
    assert header_field(header, b"\r\nMissing:") == b""
    assert status(b"") == status(b"NATS/1.0\r\nA: 1\r\n\r\n") == 0
    assert status(b"NATS/1.0 503\r\n\r\n") == 503
