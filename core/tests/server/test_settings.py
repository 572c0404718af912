"""Test the settings of listeners: defaults and errors."""

from typing import Any

import pytest
from hookmq.model.client import Scope
from hookmq.model.errors import ConfigError
from hookmq.server.settings import ListenerSettings, TlsSettings, WebSocketSettings

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
def test_valid_listener_settings_are_accepted(options: dict[str, Any]) -> None:
    assert ListenerSettings(**options).scope().name == "default"
