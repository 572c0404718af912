"""Test reading events from requests, and recognizing repeated events."""

import gzip
import json
import time
from typing import Any

import pytest
from hookmq_webhook_receiver import Ledger, Received, inflate, new_secret, read, verify
from hookmq_webhook_receiver.keys import key_of
from hookmq_webhook_receiver.signature import sign
from hypothesis import given
from hypothesis import strategies as st

GOOD = {
    "id": "e-1", "type": "t", "source": "s", "epoch": "e", "sequence": "1", "time": "2026-01-01T00:00:00Z",
}  # fmt: skip
JSON = {"Content-Type": "application/json"}


def event(sequence: int, epoch: str = "e") -> Received:
    return Received(f"{epoch}-{sequence}", "t", "s", epoch, sequence, "", None)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"3", b"[3]", b"{}", json.dumps({**GOOD, "sequence": "x"}).encode(),
     json.dumps({**GOOD, "data_base64": "!"}).encode(), b"\xff", b"[" * 100_000,
     json.dumps({**GOOD, "sequence": [1]}).encode(), json.dumps({**GOOD, "sequence": 1e999}).encode(),
     json.dumps({**GOOD, "data_base64": 1}).encode(), json.dumps({**GOOD, "source": ["s"]}).encode()],
)  # fmt: skip
def test_a_body_that_is_not_an_event_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read(JSON, body)


@pytest.mark.parametrize("name", ["id", "type", "source", "epoch", "sequence", "time"])
def test_an_event_without_a_required_field_is_refused(name: str) -> None:
    rest = {key: value for key, value in GOOD.items() if key != name}
    with pytest.raises(ValueError, match=name):
        read(JSON, json.dumps(rest).encode())


def test_an_empty_batch() -> None:
    assert read(JSON, b"[]") == []


def test_headers_are_read_in_any_case() -> None:
    headers = {f"CE-{key.title()}": value for key, value in GOOD.items()}
    [got] = read({**headers, "CONTENT-TYPE": "Text/Plain; charset=utf-8"}, b"hello")
    assert (got.id, got.sequence, got.data) == ("e-1", 1, "hello")


def test_data_in_the_body_is_what_its_content_type_says() -> None:
    headers = {f"ce-{key}": value for key, value in GOOD.items()}
    for kind, body, data in (
        ("application/json", b'{"a": 1}', {"a": 1}),
        ("application/senml+json; v=1", b"[1]", [1]),
        ("Application/JSON;charset=utf-8", b"1", 1),
        ("text/csv", b"a,b", "a,b"),
        ("text/plain", b"\xff", b"\xff"),
        ("text/plain", b"", ""),
        ("application/json", b"", None),
        ("image/png", b"{}", b"{}"),
        ("", b"{}", b"{}"),
    ):
        [got] = read({**headers, "Content-Type": kind}, body)
        assert got.data == data
    with pytest.raises(ValueError, match="Expecting value"):
        read({**headers, "Content-Type": "application/json"}, b"x")


def test_attributes_in_headers_of_a_signed_request_are_refused() -> None:
    """A signed request with attributes in headers is refused, because the signature does not cover
    headers. An attacker could reuse a signed body with another id, type and sequence.
    """
    secret = new_secret()
    body = json.dumps(GOOD).encode()
    signed = sign("e-1", int(time.time()), body, [key_of(secret)])
    verify(signed, body, secret)
    [genuine] = read({**JSON, **signed}, body)
    assert genuine.id == "e-1"
    forged = {f"Ce-{key.title()}": value for key, value in {**GOOD, "id": "e-2"}.items()}
    for headers in (forged, {"CE-Type": "x"}):
        everything = {**JSON, **signed, **headers}
        verify(everything, body, secret)
        with pytest.raises(ValueError, match="do not cover"):
            read(everything, body)


def test_a_body_that_is_still_gzip_is_read() -> None:
    body = gzip.compress(json.dumps(GOOD).encode())
    assert read({**JSON, "Content-Encoding": "gzip"}, body)[0].id == "e-1"
    with pytest.raises(ValueError, match=r"."):
        read(JSON, body)


def test_inflate() -> None:
    headers = {"content-encoding": "GZIP"}
    packed = gzip.compress(b"x" * 1000)
    assert inflate(headers, packed) == b"x" * 1000
    assert inflate({}, packed) == inflate({"content-encoding": "br"}, packed) == packed
    assert inflate(headers, gzip.compress(bytes(5 << 20))) == bytes(5 << 20)
    with pytest.raises(ValueError, match="more than"):
        inflate(headers, gzip.compress(bytes((16 << 20) + 1)))
    assert inflate(headers, packed, 1000) == b"x" * 1000
    for body, limit in ((packed, 999), (packed[:-1], 9999), (packed + b"x", 9999), (b"x", 9999)):
        with pytest.raises(ValueError, match=r"not (valid )?gzip"):
            inflate(headers, body, limit)
    with pytest.raises(ValueError, match="not gzip: "):
        inflate(headers, b"not at all")


def test_a_repeated_event_is_not_new() -> None:
    ledger = Ledger()
    assert [ledger.take(event(n)) for n in (5, 5, 6, 5, 6)] == [True, False, True, False, False]
    assert ledger.take(event(5, "other"))
    assert not ledger.missing()


def test_gaps_close() -> None:
    ledger = Ledger()
    for number in (0, 4, 2):
        assert ledger.take(event(number))
    assert ledger.missing() == [("s", "e", 1), ("s", "e", 3)]
    assert ledger.take(event(1))
    assert not ledger.take(event(1))
    assert ledger.missing() == [("s", "e", 3)]
    assert ledger.lost == 0


def test_the_ledger_of_missing_events_is_bounded() -> None:
    ledger = Ledger(window=3)
    ledger.take(event(0))
    ledger.take(event(1_000_000_000))
    assert [number for _, _, number in ledger.missing()] == [999_999_997, 999_999_998, 999_999_999]
    assert ledger.lost == 999_999_996
    ledger.take(event(1_000_000_002))
    assert [number for _, _, number in ledger.missing()] == [
        999_999_998,
        999_999_999,
        1_000_000_001,
    ]
    assert ledger.lost == 999_999_997
    assert ledger.take(event(5))  # unknown, so it counts as new: better twice than never
    assert not ledger.take(event(1_000_000_000))


def test_an_event_counted_as_lost_is_new_if_it_arrives() -> None:
    ledger = Ledger(window=2)
    for number in (0, 3, 6):
        assert ledger.take(event(number))
    assert [number for _, _, number in ledger.missing()] == [4, 5]
    assert ledger.lost == 2
    assert [ledger.take(event(number)) for number in (1, 2, 3, 6)] == [True, True, False, False]
    assert [ledger.take(event(number)) for number in (4, 4, 5)] == [True, False, True]
    assert not ledger.missing()


def test_sources_are_bounded() -> None:
    ledger = Ledger(sources=2)
    for epoch in ("a", "b", "a", "c"):
        ledger.take(event(0, epoch))
    assert not ledger.take(event(0, "a"))
    assert ledger.take(event(0, "b"))  # forgotten


@given(st.lists(st.integers(0, 40), max_size=80), st.integers(1, 50))
def test_nothing_new_is_taken_for_a_repetition(numbers: list[int], window: int) -> None:
    ledger = Ledger(window)
    seen: set[int] = set()
    for number in numbers:
        fresh = ledger.take(event(number))
        assert fresh or number in seen
        if window == 50 and (not seen or number > min(seen)) and number not in seen:
            assert fresh
        seen.add(number)
        missing: list[Any] = ledger.missing()
        assert len(missing) <= window
        if window > 40 and numbers[0] == min(numbers):
            assert {n for _, _, n in missing} == set(range(numbers[0], max(seen))) - seen
            assert ledger.lost == 0
