"""Test that the server refuses a TLS handshake by sending an alert with the reason (RFC 5246 section 7.2.2, RFC 8446
section 6.2).
"""

import asyncio
import datetime
import errno
import socket
import ssl
from typing import Any

import pytest
import trustme
from cryptography import x509

from core.tests.server.test_tls import revocations, tls

NOW = datetime.datetime.now(datetime.UTC)
ALERTS = {
    "expired": ("ALERT_CERTIFICATE_EXPIRED", "certificate has expired"),
    "revoked": ("ALERT_CERTIFICATE_REVOKED", "certificate revoked"),
    "foreign": ("ALERT_UNKNOWN_CA", "unable to get local issuer certificate"),
}


def issue(authority: trustme.CA, which: str) -> trustme.LeafCert:
    if which == "expired":
        return authority.issue_cert("c", not_after=NOW - datetime.timedelta(days=1))
    if which == "foreign":
        return trustme.CA(key_type=trustme.KeyType.ECDSA).issue_cert("c")
    return authority.issue_cert("c")


def talk(address: str, context: ssl.SSLContext) -> str:
    """Connect with a blocking client from the standard library, which sends data at once, as an MQTT client does.
    Return the error that it gets.
    """
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 20) as plain:
        try:
            with context.wrap_socket(plain, server_hostname="localhost") as secure:
                secure.sendall(b"\x10" * 20000)
                return f"read {secure.recv(10)!r}"
        except ssl.SSLError as error:
            return str(error.reason)
        except OSError as error:
            return errno.errorcode.get(error.errno or 0, repr(error))


@pytest.fixture
async def asking(listen: Any, files: Any, authority: trustme.CA, tmp_path: Any) -> Any:
    """Return a function that opens a listener which requires a certificate and checks it against a revocation list. The
    function also returns a TLS context and a certificate for a client.
    """

    async def open_one(which: str, version: str) -> tuple[Any, ssl.SSLContext, trustme.LeafCert]:
        issued = issue(authority, which)
        serial = x509.load_pem_x509_certificate(issued.cert_chain_pems[0].bytes()).serial_number
        crl = tmp_path / "crl.pem"
        crl.write_bytes(revocations(authority, serial if which == "revoked" else 1))
        listener = await listen(type="tls", tls=tls(files, "required", crl=str(crl)))
        context = files.client()
        if version == "1.2":
            context.maximum_version = ssl.TLSVersion.TLSv1_2
        return listener, context, issued

    return open_one


@pytest.mark.parametrize("version", ["1.2", "1.3"])
@pytest.mark.parametrize("which", ALERTS)
async def test_the_alert_names_the_reason(
    asking: Any, broker: Any, log: Any, which: str, version: str
) -> None:
    listener, context, issued = await asking(which, version)
    issued.configure_cert(context)
    said = await asyncio.to_thread(talk, listener.address, context)
    alert, words = ALERTS[which]
    assert said.endswith(alert)
    assert broker.connections == []
    [fields] = [fields for _, event, fields in log.records if event == "listener.handshake_failed"]
    assert words in fields["error"]
    assert fields["peer"].startswith("127.0.0.1:")
    assert fields["listener"] == "default"


@pytest.mark.parametrize(
    ("version", "alert"),
    [("1.2", "ALERT_HANDSHAKE_FAILURE"), ("1.3", "ALERT_CERTIFICATE_REQUIRED")],
)
async def test_no_certificate(asking: Any, version: str, alert: str) -> None:
    listener, context, _ = await asking("none", version)
    assert (await asyncio.to_thread(talk, listener.address, context)).endswith(alert)


async def test_a_version_that_is_off(listen: Any, files: Any) -> None:
    listener = await listen(type="tls", tls=tls(files, minimum_version="TLSv1.3"))
    context = files.client()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    said = await asyncio.to_thread(talk, listener.address, context)
    assert said.endswith("ALERT_PROTOCOL_VERSION")


@pytest.mark.parametrize("which", ALERTS)
async def test_openssl_is_told(asking: Any, tmp_path: Any, which: str) -> None:
    listener, _, issued = await asking(which, "1.3")
    pem, key = tmp_path / "shown.pem", tmp_path / "shown.key"
    issued.cert_chain_pems[0].write_to_path(pem)
    issued.private_key_pem.write_to_path(key)
    client = await asyncio.create_subprocess_exec(
        "openssl", "s_client", "-connect", listener.address, "-cert", pem, "-key", key,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    assert client.stdin is not None
    assert client.stdout is not None
    said = await client.stdout.read()
    await client.wait()
    assert (
        ALERTS[which][0].replace("ALERT_", "alert ").replace("_", " ").lower()
        in said.decode().lower()
    )


async def test_a_client_that_ignores_the_alert_is_closed(asking: Any, dial: Any) -> None:
    """A refused client that ignores the alert occupies its socket for at most `close_timeout`."""
    listener, _, _ = await asking("none", "1.3")
    reader, writer = await dial(listener)
    writer.write(b"\x16\x03\x01\x00\x05hello")
    alert = await reader.readexactly(7)
    assert alert[:1] == b"\x15"
    assert await reader.read() == b""
    writer.write(b"more")  # nothing resets the connection
    await writer.drain()


@pytest.mark.parametrize("proxied", [False, True])
async def test_the_log_names_the_client_behind_a_proxy(
    listen: Any, dial: Any, files: Any, log: Any, proxied: bool
) -> None:
    more = {"proxy_protocol": "v1", "trusted_proxies": ("127.0.0.1",)} if proxied else {}
    listener = await listen(type="tls", tls=tls(files), **more)
    reader, writer = await dial(listener)
    header = b"PROXY TCP4 192.0.2.7 192.0.2.1 4711 8883\r\n" if proxied else b""
    writer.write(header + b"this is no TLS at all")
    await reader.read()
    [fields] = [fields for _, event, fields in log.records if event == "listener.handshake_failed"]
    port = writer.get_extra_info("sockname")[1]
    assert fields["peer"] == ("192.0.2.7:4711" if proxied else f"127.0.0.1:{port}")
