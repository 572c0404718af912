"""Settings of listeners: defaults, refusals, and addresses as they are written."""

from typing import Any

import pytest
from hookmq.errors import ConfigError
from hookmq.server.addresses import (
    format_address,
    forwarded_for,
    is_loopback,
    parse_bind,
    parse_networks,
    within,
)
from hookmq.server.settings import ListenerSettings, TlsSettings, WebSocketSettings
from hookmq.types import Scope
from hypothesis import given
from hypothesis import strategies as st

TLS = TlsSettings(certificate="c.pem")
MUTUAL = TlsSettings(certificate="c.pem", client_ca="ca.pem", client_certificates="required")


def test_defaults_are_those_of_the_core() -> None:
    settings = ListenerSettings()
    assert settings.scope() == Scope()
    assert settings.bind == "127.0.0.1:1883"
    assert not settings.secure


def test_scope() -> None:
    settings = ListenerSettings(
        name="in", type="tls", tls=MUTUAL, versions=("3.1", "5"), mount_point="t/", identity="san",
        connect_timeout=3, connect_bytes=100,
    )  # fmt: skip
    assert settings.scope() == Scope("in", "t/", frozenset({3, 5}), 3, 100, "san")
    assert settings.secure


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("bind", {"bind": "1883"}),
        ("bind", {"bind": "127.0.0.1"}),
        ("bind", {"bind": "127.0.0.1:mqtt"}),
        ("bind", {"bind": "127.0.0.1:65536"}),
        ("bind", {"bind": "::1:1883"}),
        ("bind", {"bind": "[localhost]:1883"}),
        ("bind", {"type": "unix", "bind": ""}),
        ("bind", {"type": "unix", "bind": "/" + "x" * 107}),
        ("type", {"type": "tls"}),
        ("type", {"type": "wss"}),
        ("tls", {"type": "tcp", "tls": TLS}),
        ("identity", {"identity": "common_name"}),
        ("identity", {"identity": "san", "type": "tls", "tls": TLS}),
        (
            "identity",
            {"identity": "san", "proxy_protocol": "v2", "trusted_proxies": ("10.0.0.1",)},
        ),
        (
            "identity",
            {"identity": "common_name", "proxy_protocol": "v1", "trusted_proxies": ("::1",)},
        ),
        ("trusted_proxies", {"trusted_proxies": ("10.0.0.1/8",)}),
        ("trusted_proxies", {"trusted_proxies": ("proxy.example",)}),
        ("proxy_protocol", {"proxy_protocol": "v2"}),
        ("versions", {"versions": ()}),
        ("mode", {"mode": "rw"}),
        ("mode", {"mode": "1777"}),
    ],
)
def test_refusals_name_the_key(key: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        ListenerSettings(**options)
    assert caught.value.message.startswith(f"{key}: ")


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("certificate", {}),
        ("client_certificates", {"certificate": "c", "client_certificates": "optional"}),
        ("crl", {"certificate": "c", "crl": "r"}),
    ],
)
def test_tls_refusals_name_the_key(key: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        TlsSettings(**options)
    assert caught.value.message.startswith(f"{key}: ")


def test_websocket_path() -> None:
    with pytest.raises(ConfigError, match="path: "):
        WebSocketSettings(path="mqtt")


@pytest.mark.parametrize(
    "options",
    [
        {"identity": "common_name", "proxy_protocol": "v2", "trusted_proxies": ("10.0.0.1",)},
        {"type": "unix", "bind": "/run/mqtt", "proxy_protocol": "any"},
        {"type": "wss", "tls": MUTUAL, "identity": "fingerprint"},
        {"mode": "600"},
    ],
)
def test_what_is_accepted(options: dict[str, Any]) -> None:
    assert ListenerSettings(**options).scope().name == "default"


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
