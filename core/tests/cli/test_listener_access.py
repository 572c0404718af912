"""Test the report on which clients can connect to each listener."""

import pathlib

import pytest
import trustme
from door import write
from hookmq.cli import main

Captured = pytest.CaptureFixture[str]


def test_a_certificate_required_by_a_proxy_excludes_anonymous_clients(
    tmp_path: pathlib.Path, capsys: Captured
) -> None:
    path = tmp_path / "hookmq.yaml"
    path.write_text(
        "version: 1\nlisteners:\n"
        "  - {name: tcp, bind: '*:1883', proxy_protocol: v2, trusted_proxies: [10.0.0.1], identity: common_name}\n"
        "auth: {default: allow}\nauthz: {default: allow}\n"
    )
    assert main(["check", "-c", str(path)]) == 0
    out = capsys.readouterr().out
    assert "connect  tcp      everybody with a certificate: no plugin authenticates" in out
    assert "anonymous" not in out
    assert "may connect" not in out


def test_a_required_certificate_excludes_anonymous_clients(
    tmp_path: pathlib.Path, capsys: Captured
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(
        tmp_path / "server.pem"
    )
    text = (
        "version: 1\nlisteners:\n  - name: tls\n    type: tls\n    bind: '*:8883'\n    tls:\n"
        f"      certificate: {tmp_path}/server.pem\n      client_ca: {tmp_path}/ca.pem\n"
        "      client_certificates: %s\nauth: {default: allow}\n"
    )
    path = tmp_path / "hookmq.yaml"
    path.write_text(text % "required")
    assert main(["check", "-c", str(path)]) == 0
    out = capsys.readouterr().out
    assert "connect  tls      everybody with a certificate: no plugin authenticates" in out
    assert "may connect" not in out
    assert "anonymous" not in out
    path.write_text(text % "optional")
    assert main(["check", "-c", str(path)]) == 0
    out = capsys.readouterr().out
    assert "connect  tls      everybody: no plugin authenticates" in out
    assert "anyone who can reach tls (*:8883) may connect" in out


def test_a_broker_for_nobody_is_pointed_out(tmp_path: pathlib.Path, capsys: Captured) -> None:
    assert main(["check", "-c", write(tmp_path, "")]) == 0
    assert "no client can connect" in capsys.readouterr().out


def test_plugins_decide(door: None, tmp_path: pathlib.Path, capsys: Captured) -> None:
    path = write(tmp_path, "plugins: [{use: door}, {use: door, id: x, enabled: false}]\n")
    assert main(["check", "-c", path]) == 0
    out = capsys.readouterr().out
    assert "connect  tcp      clients that door accepts, else nobody" in out
    assert "plugin   door (hookmq-door 1.2)" in out
    assert "off      x" in out
    assert main(["check", "-q", "-c", path]) == 0
    assert capsys.readouterr().out == ""
