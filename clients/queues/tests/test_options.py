"""Test parsing a broker's URL, and the backoff."""

import ssl
from typing import Any

import pytest
from hookmq_queues_client import Backoff, Client
from hookmq_queues_client.options import parse_options


def test_a_url_has_all_parts() -> None:
    found = parse_options("mqtt://me%40home:a%2Fb@broker.example.com:1234")
    assert (found.host, found.port) == ("broker.example.com", 1234)
    assert (found.username, found.password, found.tls) == ("me@home", "a/b", None)
    assert "a/b" not in repr(found)
    assert found.address == "broker.example.com:1234"


def test_ports_and_tls_follow_from_the_scheme() -> None:
    assert parse_options("mqtt://[::1]").address == "[::1]:1883"
    found = parse_options("mqtts://broker/")
    assert found.port == 8883
    assert found.tls is not None
    assert found.tls.verify_mode == ssl.CERT_REQUIRED
    assert found.tls.check_hostname


def test_arguments_have_precedence() -> None:
    found = parse_options("mqtt://a:b@broker", username="c", password="d")
    assert (found.username, found.password) == ("c", "d")
    assert parse_options("mqtt://broker", password="d").username == ""


@pytest.mark.parametrize(
    ("url", "options", "text"),
    [
        ("broker", {}, "the scheme is ''"),
        ("http://broker", {}, "the scheme is 'http'"),
        ("mqtt://", {}, "it has no host"),
        ("mqtt://broker:port", {}, "Port could not be cast"),
        ("mqtt://broker:70000", {}, "Port out of range"),
        ("mqtt://broker/topic", {}, "it continues after the port"),
        ("mqtt://broker?a=b", {}, "it continues after the port"),
        ("mqtt://broker", {"tls": ssl.create_default_context()}, "needs a URL that begins with mqtts"),
        ("mqtt://broker", {"keepalive": 0}, "keepalive must be from 1 to 65535 seconds, not 0"),
        ("mqtt://broker", {"timeout": 0}, "timeout must be above 0 seconds, not 0"),
    ],
)  # fmt: skip
async def test_a_wrong_argument_is_refused(url: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Client(url, **options)


def test_waits_grow_to_the_maximum() -> None:
    steady = Backoff(1, 3, 20, jitter=0)
    assert [steady.delay(attempt) for attempt in (1, 2, 3, 4, 5, 5000)] == [1, 3, 9, 20, 20, 20]
    waits = [Backoff(8, 1, 8, jitter=0.25).delay(1) for _ in range(200)]
    assert 6 <= min(waits) < max(waits) <= 8


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((-1, 2, 30), "initial must be from 0 to maximum"),
        ((31, 2, 30), "initial must be from 0 to maximum"),
        ((1, 0.5, 30), "multiplier must be at least 1"),
        ((1, 2, 30, 1.5), "jitter must be from 0 to 1"),
    ],
)
def test_a_wrong_backoff_is_refused(values: tuple[float, ...], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Backoff(*values)
