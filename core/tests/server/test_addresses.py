"""Test addresses as written in the configuration, and trusted proxies."""

from typing import Any

import pytest
from hookmq.server.addresses import (
    format_address,
    forwarded_for,
    is_loopback,
    parse_bind,
    parse_networks,
    within,
)
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:1883", ("::1", 1883)),
        ("*:1883", ("*", 1883)),
        (":1883", ("*", 1883)),
        ("broker.example:8883", ("broker.example", 8883)),
    ],
)
def test_bind(text: str, expected: tuple[str, int]) -> None:
    assert parse_bind(text) == expected


@given(st.ip_addresses(), st.integers(0, 65535))
def test_addresses_are_written_as_they_are_read(address: Any, port: int) -> None:
    assert parse_bind(format_address((str(address), port, 0, 0))) == (str(address), port)


@given(st.text())
def test_any_text_is_an_address_or_refused(text: str) -> None:
    try:
        host, port = parse_bind(text)
    except ValueError:
        return
    assert host
    assert 0 <= port <= 65535


def test_networks() -> None:
    networks = parse_networks(("10.0.0.0/8", "2001:db8::/32", "192.0.2.1"))
    for host in ("10.1.2.3", "::ffff:10.1.2.3", "2001:db8::1", "192.0.2.1"):
        assert within(host, networks)
    for host in ("11.0.0.1", "2001:db9::1", "192.0.2.2", "unix", ""):
        assert not within(host, networks)


def test_loopback() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.1.2.3", "::1", "[::1]")))
    assert not any(map(is_loopback, ("*", "0.0.0.0", "::", "example.org", "")))


@given(st.lists(st.text(max_size=20), max_size=5))
def test_any_forwarding_header_gives_an_address(headers: list[str]) -> None:
    trusted = parse_networks(("127.0.0.0/8",))
    assert forwarded_for("127.0.0.1", headers, trusted)
    assert forwarded_for("192.0.2.1", headers, trusted) == "192.0.2.1"
