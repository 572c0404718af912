"""Test TLS settings: the authorities and certificates in the context, and unusable files."""

import os
import ssl
from pathlib import Path

import pytest
import trustme
from hookmq.plugin import ConfigError
from hookmq_toolkit.tls_client import TlsConfig, check_tls, client_context


@pytest.fixture
def files(tmp_path: Path) -> Path:
    authority = trustme.CA()
    client = authority.issue_cert("client.example")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    client.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    client.private_key_pem.write_to_path(tmp_path / "key.pem")
    client.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    (tmp_path / "empty.pem").touch()
    os.mkfifo(tmp_path / "pipe.pem")
    return tmp_path


def test_only_the_given_authorities_are_trusted(files: Path) -> None:
    context = client_context(TlsConfig(ca_file=files / "ca.pem"))
    assert len(context.get_ca_certs()) == 1
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


def test_the_systems_authorities_are_the_default() -> None:
    context = client_context(TlsConfig())
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


def test_a_client_certificate(files: Path) -> None:
    client_context(TlsConfig(cert_file=files / "cert.pem", key_file=files / "key.pem"))
    client_context(TlsConfig(cert_file=files / "both.pem"))


def test_a_key_without_a_certificate_is_refused() -> None:
    with pytest.raises(ConfigError, match="key_file: cert_file is required"):
        TlsConfig(key_file=Path("key.pem"))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"ca_file": "nowhere.pem"}, "nowhere.pem cannot be used: No such file"),
        ({"ca_file": "pipe.pem"}, "pipe.pem cannot be used"),
        ({"ca_file": "empty.pem"}, "empty.pem cannot be used"),
        ({"cert_file": "cert.pem"}, "cert.pem cannot be used"),
        ({"cert_file": "both.pem", "key_file": "nowhere.pem"}, "nowhere.pem cannot be used"),
    ],
)
def test_files_that_cannot_be_used(files: Path, settings: dict[str, str], says: str) -> None:
    tls = TlsConfig(**{name: files / value for name, value in settings.items()})
    with pytest.raises(ConfigError) as refused:
        check_tls(tls, ("service", "tls"))
    assert says in refused.value.message
    assert refused.value.path == ("service", "tls")
    assert isinstance(refused.value.__cause__, OSError)


def test_checked_settings_give_a_context(files: Path) -> None:
    assert check_tls(None) is None
    context = check_tls(TlsConfig(ca_file=files / "ca.pem"))
    assert context is not None
    assert len(context.get_ca_certs()) == 1
