"""Test TLS: which clients are accepted, what the broker knows about them, and how certificates are replaced without a
restart.
"""

import asyncio
import hashlib
import os
import ssl
from typing import Any

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hookmq.model.errors import ConfigError
from hookmq.server.settings import TlsSettings
from hookmq.server.tls import names_of, server_context


def tls(files: Any, ask: str = "none", **changes: Any) -> TlsSettings:
    trust = {"client_ca": files.client_ca(), "client_certificates": ask} if ask != "none" else {}
    options: dict[str, Any] = {**files.server(), **trust, **changes}
    return TlsSettings(**options)


async def greet(dial: Any, listener: Any, context: ssl.SSLContext) -> ssl.SSLObject:
    """Connect and exchange a byte. Only then does a TLS 1.3 client know whether it was accepted."""
    reader, writer = await dial(listener, ssl=context, server_hostname="localhost")
    writer.write(b"?")
    assert await reader.readexactly(1) == b"?"
    found = writer.get_extra_info("ssl_object")
    assert isinstance(found, ssl.SSLObject)
    return found


def echo(connection: Any) -> None:
    connection.echo = True


@pytest.mark.parametrize("ask", ["none", "optional", "required"])
@pytest.mark.parametrize("shown", ["nothing", "good", "foreign"])
async def test_client_certificates(
    listen: Any, dial: Any, broker: Any, log: Any, files: Any, ask: str, shown: str
) -> None:
    broker.on_accept = echo
    listener = await listen(type="tls", tls=tls(files, ask))
    context = {
        "nothing": lambda: files.client(),
        "good": lambda: files.client("device-7", "device-7.example"),
        "foreign": lambda: files.client("device-7", issuer=trustme.CA()),
    }[shown]()
    refused = (ask == "required" and shown != "good") or (ask == "optional" and shown == "foreign")
    if refused:
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await greet(dial, listener, context)
        assert broker.connections == []
        why = (
            "peer did not return a certificate"
            if shown == "nothing"
            else "certificate verify failed"
        )
        [fields] = [fields for _, event, fields in log.records if "handshake_failed" in event]
        assert fields["listener"] == "default"
        assert why in fields["error"]
        return
    await greet(dial, listener, context)
    assert "listener.handshake_failed" not in log.events()
    connection = await broker.next()
    assert connection.peer.transport == "tls"
    certificate = connection.peer.certificate
    if ask == "none" or shown == "nothing":
        assert certificate is None
    else:
        assert certificate.common_name == "device-7"
        assert certificate.sans == ("device-7", "device-7.example")
        assert "commonName=device-7" in certificate.subject
        assert len(certificate.fingerprint) == 64


async def test_fingerprint_is_that_of_the_der_form(
    listen: Any, dial: Any, broker: Any, files: Any, authority: trustme.CA
) -> None:
    broker.on_accept = echo
    listener = await listen(type="tls", tls=tls(files, "required"))
    issued = authority.issue_cert("fingered")
    context = files.client()
    issued.configure_cert(context)
    await greet(dial, listener, context)
    pem = issued.cert_chain_pems[0].bytes()
    der = x509.load_pem_x509_certificate(pem).public_bytes(serialization.Encoding.DER)
    connection = await broker.next()
    assert connection.peer.certificate.fingerprint == hashlib.sha256(der).hexdigest()


async def test_minimum_version(listen: Any, dial: Any, broker: Any, files: Any) -> None:
    broker.on_accept = echo
    listener = await listen(type="tls", tls=tls(files, minimum_version="TLSv1.3"))
    old = files.client()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await greet(dial, listener, old)
    assert (await greet(dial, listener, files.client())).version() == "TLSv1.3"


async def test_ciphers(listen: Any, dial: Any, broker: Any, files: Any) -> None:
    broker.on_accept = echo
    options = tls(files, ciphers="ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384")
    listener = await listen(type="tls", tls=options)
    old = files.client()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    cipher = (await greet(dial, listener, old)).cipher()
    assert cipher is not None
    assert cipher[0].endswith("AES256-GCM-SHA384")


async def test_a_tls_connection_has_no_descriptor(
    listen: Any, dial: Any, broker: Any, files: Any
) -> None:
    listener = await listen(type="tls", tls=tls(files))
    _, writer = await dial(listener, ssl=files.client(), server_hostname="localhost")
    connection = await broker.next()
    assert connection.wire.descriptor is None
    writer.close()
    await connection.until_ended()


async def test_close_flushes_over_tls(listen: Any, dial: Any, broker: Any, files: Any) -> None:
    reader, _ = await dial(
        await listen(type="tls", tls=tls(files)), ssl=files.client(), server_hostname="localhost"
    )
    connection = await broker.next()
    connection.wire.write(b"y" * 3_000_000)
    connection.wire.close()
    assert await reader.readexactly(3_000_000) == b"y" * 3_000_000
    assert await reader.read() == b""
    await connection.until_ended()


async def test_large_transfer_over_tls(listen: Any, dial: Any, broker: Any, files: Any) -> None:
    broker.on_accept = echo
    reader, writer = await dial(
        await listen(type="tls", tls=tls(files)), ssl=files.client(), server_hostname="localhost"
    )
    data = bytes(range(256)) * 4096
    writer.write(data)
    assert await reader.readexactly(len(data)) == data


async def test_bytes_before_the_end_of_a_tls_connection_are_read(
    listen: Any, dial: Any, broker: Any, files: Any
) -> None:
    """Bytes that arrive over TLS before the connection ends are read, even if reading was paused."""
    listener = await listen(type="tls", tls=tls(files))
    _, writer = await dial(listener, ssl=files.client(), server_hostname="localhost")
    connection = await broker.next()
    connection.wire.pause_reading()
    connection.wire.pause_reading()
    writer.write(b"x" * 1000)
    await writer.drain()
    writer.transport.abort()
    other, more = await dial(listener, ssl=files.client(), server_hostname="localhost")
    echo = await broker.next()
    echo.echo = True
    more.write(b"?")
    await other.readexactly(1)
    connection.wire.resume_reading()
    await connection.until_ended()
    assert connection.received == b"x" * 1000
    more.close()


async def test_handshake_that_never_comes_ends(
    listen: Any, dial: Any, broker: Any, files: Any
) -> None:
    listener = await listen(type="tls", tls=tls(files, handshake_timeout=0.1))
    reader, _ = await dial(listener)
    async with asyncio.timeout(60):
        try:
            assert await reader.read() == b""
        except ConnectionError:
            pass
    assert broker.connections == []


async def test_plain_bytes_on_a_tls_port_end(
    listen: Any, dial: Any, broker: Any, files: Any
) -> None:
    reader, writer = await dial(await listen(type="tls", tls=tls(files)))
    writer.write(b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00")
    try:
        await reader.read()
    except ConnectionError:
        pass
    assert broker.connections == []


async def test_reload_serves_the_new_certificate_and_keeps_connections(
    listen: Any, dial: Any, broker: Any, files: Any, log: Any
) -> None:
    broker.on_accept = echo
    listener = await listen(type="tls", tls=tls(files, "optional"))
    reader, writer = await dial(listener, ssl=files.client(), server_hostname="localhost")
    before = (await greet(dial, listener, files.client())).getpeercert(binary_form=True)
    files.server()
    assert (await greet(dial, listener, files.client())).getpeercert(binary_form=True) == before
    await listener.reload_certificates()
    after = (await greet(dial, listener, files.client())).getpeercert(binary_form=True)
    assert after != before
    writer.write(b"still here")
    assert await reader.readexactly(10) == b"still here"
    assert "listener.certificates_reloaded" in log.events()


async def test_reload_changes_who_is_trusted_even_for_resumed_sessions(
    listen: Any, dial: Any, broker: Any, files: Any
) -> None:
    broker.on_accept = echo
    settings = tls(files, "required")
    listener = await listen(type="tls", tls=settings)
    context = files.client("device-7")
    assert not (await greet(dial, listener, context)).session_reused
    other = trustme.CA()
    other.cert_pem.write_to_path(settings.client_ca)
    await listener.reload_certificates()
    with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
        await greet(dial, listener, context)
    await greet(dial, listener, files.client("device-8", issuer=other))


async def test_reload_with_a_bad_certificate_keeps_the_old(
    listen: Any, dial: Any, broker: Any, files: Any
) -> None:
    broker.on_accept = echo
    settings = tls(files)
    listener = await listen(name="door", type="tls", tls=settings)
    files.spoil(settings.key)
    with pytest.raises(ConfigError, match=r"'door'.*server\.key"):
        await listener.reload_certificates()
    await greet(dial, listener, files.client())


async def test_reload_of_a_plain_listener_does_nothing(listen: Any, dial: Any, broker: Any) -> None:
    listener = await listen()
    await listener.reload_certificates()
    await dial(listener)
    await broker.next()


def revocations(authority: trustme.CA, serial: int) -> bytes:
    key = serialization.load_pem_private_key(authority.private_key_pem.bytes(), None)
    issuer = x509.load_pem_x509_certificate(authority.cert_pem.bytes())
    revoked = (
        x509.RevokedCertificateBuilder()
        .serial_number(serial)
        .revocation_date(issuer.not_valid_before_utc)
        .build()
    )
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(issuer.subject)
        .last_update(issuer.not_valid_before_utc)
        .next_update(issuer.not_valid_after_utc)
        .add_revoked_certificate(revoked)
    )
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)  # type: ignore[arg-type]


async def test_revoked_certificate_is_refused(
    listen: Any, dial: Any, broker: Any, files: Any, authority: trustme.CA, tmp_path: Any
) -> None:
    broker.on_accept = echo
    issued = authority.issue_cert("lost")
    serial = x509.load_pem_x509_certificate(issued.cert_chain_pems[0].bytes()).serial_number
    crl = tmp_path / "crl.pem"
    crl.write_bytes(revocations(authority, serial))
    listener = await listen(type="tls", tls=tls(files, "required", crl=str(crl)))
    lost = files.client()
    issued.configure_cert(lost)
    with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
        await greet(dial, listener, lost)
    await greet(dial, listener, files.client("kept"))


class TestContext:
    """Errors about unusable files contain the path and the reason."""

    def refusal(self, **options: Any) -> str:
        with pytest.raises(ConfigError) as caught:
            server_context(TlsSettings(**options))
        assert caught.value.exit_code == 2
        return str(caught.value)

    @pytest.mark.parametrize("missing", ["certificate", "key"])
    def test_missing_file(self, files: Any, missing: str) -> None:
        text = self.refusal(**files.server() | {missing: "/nonexistent/file.pem"})
        assert f"tls.{missing} /nonexistent/file.pem: no such file" in text

    @pytest.mark.parametrize("key", ["certificate", "key", "client_ca", "crl"])
    @pytest.mark.parametrize("pipe", [False, True])
    def test_a_relative_path_is_told_in_full(
        self, files: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, key: str, pipe: bool
    ) -> None:
        monkeypatch.chdir(tmp_path)
        if pipe:
            os.mkfifo("other.pem")
        trusted = {"client_ca": files.client_ca(), "client_certificates": "required"}
        text = self.refusal(**files.server() | trusted | {key: "other.pem"})
        why = "not a regular file" if pipe else "no such file or directory"
        assert text == f"tls.{key} {tmp_path}/other.pem: {why}"

    def test_not_pem(self, files: Any, tmp_path: Any) -> None:
        garbage = tmp_path / "garbage.pem"
        garbage.write_text("hello")
        assert "garbage.pem" in self.refusal(**files.server() | {"certificate": str(garbage)})

    def test_key_of_another_certificate(self, files: Any) -> None:
        mixed = files.server("one") | {"key": files.server("two")["key"]}
        assert "two.key does not belong to" in self.refusal(**mixed)

    def test_key_of_another_kind(self, files: Any) -> None:
        mixed = files.server()
        kind = serialization.NoEncryption()
        key = rsa.generate_private_key(65537, 2048).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, kind
        )
        with open(mixed["key"], "wb") as file:
            file.write(key)
        assert "does not belong to" in self.refusal(**mixed)

    def test_files_that_hold_something_else(self, files: Any) -> None:
        paths = files.server()
        assert "contains no private key" in self.refusal(certificate=paths["certificate"])
        swapped = {"certificate": paths["key"], "key": paths["key"]}
        assert "contains no certificate" in self.refusal(**swapped)

    def encrypted(self, files: Any) -> dict[str, Any]:
        paths: dict[str, Any] = files.server()
        with open(paths["key"], "rb") as file:
            key = serialization.load_pem_private_key(file.read(), None)
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
        with open(paths["key"], "wb") as file:
            file.write(pem)
        return paths

    @pytest.mark.parametrize("password", ["", "wrong"])
    def test_encrypted_key_with_a_wrong_password(self, files: Any, password: str) -> None:
        text = self.refusal(**self.encrypted(files), key_password=password)
        assert "key_password does not decrypt it" in text
        assert "secret" not in text

    def test_encrypted_key(self, files: Any) -> None:
        context = server_context(TlsSettings(**self.encrypted(files), key_password="secret"))
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2
        assert context.verify_mode == ssl.CERT_NONE

    def test_unknown_ciphers(self, files: Any) -> None:
        assert "'NOPE': unknown ciphers" in self.refusal(**files.server(), ciphers="NOPE")

    def test_bad_authorities(self, files: Any, tmp_path: Any) -> None:
        garbage = tmp_path / "garbage.pem"
        garbage.write_text("hello")
        options = {"client_certificates": "required", "client_ca": str(garbage)}
        assert "tls.client_ca" in self.refusal(**files.server(), **options)


@pytest.mark.parametrize(
    ("alternatives", "names"),
    [
        ((("DirName", ((("commonName", "root"),),)), ("DNS", "device-7")), ("device-7",)),
        ((("DirName", ((("commonName", "root"),),)),), ()),
        ((("othername", "<unsupported>"), ("URI", "urn:x")), ("urn:x",)),
        (
            (("Registered ID", "1.2.3"), ("email", "a@b"), ("IP Address", "192.0.2.1")),
            ("a@b", "192.0.2.1"),
        ),
        ((("DNS", ""),), ()),
    ],
)
def test_only_text_names_a_client(
    alternatives: tuple[tuple[str, Any], ...], names: tuple[str, ...]
) -> None:
    """Only text can name a client. In the compiled build, any other type would cause an internal error. In the pure
    build, a tuple could become a client's name.
    """
    assert names_of(alternatives) == names
