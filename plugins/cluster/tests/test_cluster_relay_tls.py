"""TLS between nodes: each side needs a certificate of the cluster's authority."""

import asyncio
import ssl
from pathlib import Path

import pytest
import trustme
from hookmq.plugin import ConfigError
from hookmq_cluster.config import ClusterConfig
from hookmq_cluster.plugin import ClusterPlugin
from hookmq_cluster.relay_tls import RelayContexts, relay_contexts
from hookmq_testing import make_plugin
from hookmq_toolkit.tls_client import TlsConfig


def files(folder: Path, authority: trustme.CA, name: str) -> TlsConfig:
    """Write a node's files."""
    authority.cert_pem.write_to_path(folder / "ca.pem")
    authority.issue_cert(name).private_key_and_cert_chain_pem.write_to_path(folder / f"{name}.pem")
    return TlsConfig(ca_file=folder / "ca.pem", cert_file=folder / f"{name}.pem")


def handshake(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> None:
    """Complete a handshake in memory. Raises ssl.SSLError if one side refuses the other."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname=name)
    other = server.wrap_bio(to_server, to_client, server_side=True)
    done: set[int] = set()
    for _ in range(10):
        for side in (one, other):
            try:
                side.do_handshake()
                done.add(id(side))
            except ssl.SSLWantReadError:
                pass
    assert len(done) == 2
    other.write(b"x")
    assert one.read(1) == b"x"


def contexts(config: TlsConfig) -> RelayContexts:
    """Return the contexts of a node."""
    found = relay_contexts(config)
    assert found is not None
    return found


def test_without_files_there_is_no_tls() -> None:
    assert relay_contexts(None) is None


def test_two_nodes_trust_each_other(tmp_path: Path) -> None:
    authority = trustme.CA()
    a = contexts(files(tmp_path, authority, "a.example"))
    b = contexts(files(tmp_path, authority, "b.example"))
    handshake(a.client, b.server, "b.example")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(a.client, b.server, "other.example")


def test_a_stranger_is_refused(tmp_path: Path) -> None:
    node = contexts(files(tmp_path, trustme.CA(), "a.example"))
    (tmp_path / "other").mkdir()
    stranger = contexts(files(tmp_path / "other", trustme.CA(), "a.example"))
    with pytest.raises(ssl.SSLError):
        handshake(stranger.client, node.server, "a.example")
    with pytest.raises(ssl.SSLError):
        handshake(node.client, stranger.server, "a.example")


def test_a_client_without_a_certificate_is_refused(tmp_path: Path) -> None:
    node = contexts(files(tmp_path, trustme.CA(), "a.example"))
    client = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    with pytest.raises(ssl.SSLError):
        handshake(client, node.server, "a.example")


def test_renewed_files_are_used_after_a_reload(tmp_path: Path) -> None:
    config = files(tmp_path, trustme.CA(), "a.example")
    logged: list[str] = []
    made = make_plugin(
        ClusterPlugin, ClusterConfig(relay_tls=config), use="cluster",
        log=lambda _level, event, /, **fields: logged.append(f"{event} {fields}"),
    ).plugin  # fmt: skip
    assert isinstance(made, ClusterPlugin)
    server = made._tls.server if made._tls is not None else None
    assert server is not None
    (tmp_path / "a.example.pem").write_text("not a certificate")
    for _ in range(2):
        asyncio.run(made.on_reload())
        text = logged.pop()
        assert text.startswith("cluster.relay_tls_kept ")
        assert "a.example.pem cannot be used" in text
    (tmp_path / "a.example.pem").unlink()
    files(tmp_path, trustme.CA(), "a.example")
    renewed = contexts(config)
    with pytest.raises(ssl.SSLError):
        handshake(renewed.client, server, "a.example")
    asyncio.run(made.on_reload())
    handshake(renewed.client, server, "a.example")  # the listener keeps this context
    assert made._relays.tls is not None
    handshake(made._relays.tls, renewed.server, "a.example")


def test_incomplete_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="relay_tls: ca_file and cert_file are required"):
        ClusterConfig(relay_tls=TlsConfig(ca_file=tmp_path / "ca.pem"))
    with pytest.raises(ConfigError, match="cannot be used"):
        relay_contexts(TlsConfig(ca_file=tmp_path / "no", cert_file=tmp_path / "no"))
