"""Test the TLS options of the load test's connections."""

import ssl
from pathlib import Path
from typing import Any

import pytest
from hookmq.cli_api import ConnectTarget
from hookmq.plugin import ConfigError
from hookmq_bench.address import _context


def target(**options: Any) -> ConnectTarget:
    return ConnectTarget("localhost", 8883, 4, 60, True, tls=True, **options)


@pytest.mark.parametrize(
    ("given", "lowest"),
    [
        (None, ssl.TLSVersion.TLSv1_2),
        ("tlsv1.2", ssl.TLSVersion.TLSv1_2),
        ("tlsv1.3", ssl.TLSVersion.TLSv1_3),
    ],
)
def test_the_lowest_version_of_tls(given: str | None, lowest: ssl.TLSVersion) -> None:
    assert _context(target(tls_version=given)).minimum_version == lowest


def test_ciphers() -> None:
    name = "ECDHE-RSA-AES128-GCM-SHA256"
    found = _context(target(ciphers=name)).get_ciphers()
    assert [one["name"] for one in found if one["protocol"] != "TLSv1.3"] == [name]
    with pytest.raises(ConfigError, match="TLS: "):
        _context(target(ciphers="NONE-SUCH"))


def test_a_folder_of_authorities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []
    real = ssl.create_default_context

    def noted(**options: Any) -> ssl.SSLContext:
        given.append(options)
        return real(**options)

    monkeypatch.setattr(ssl, "create_default_context", noted)
    assert _context(target(ca_folder=str(tmp_path))).get_ca_certs() == []
    assert given == [{"cafile": None, "capath": str(tmp_path)}]
