"""TLS contexts made of files, and what a verified client certificate says."""

import contextlib
import hashlib
import socket
import ssl
from collections.abc import Iterable
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, cast

from hookmq.errors import ConfigError
from hookmq.files import check_regular, shown_path
from hookmq.server.settings import TlsSettings
from hookmq.types import Certificate

VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
MISMATCHES: Final = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")
"""OpenSSL's words for a key that is another certificate's; the last two are for a key of another kind."""
VERIFY: Final = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """A context for new handshakes, read from the files `settings` names.

    Raises ConfigError that names the file which is missing, unreadable, no PEM, not matching or too weak.
    """
    if not settings.certificate:
        raise ConfigError("tls.certificate is missing", hint="name the PEM file with the chain")
    context = _Context(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = VERSIONS[settings.minimum_version]
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    if settings.ciphers:
        try:
            context.set_ciphers(settings.ciphers)
        except ssl.SSLError as error:
            raise ConfigError(f"tls.ciphers {settings.ciphers!r}: no such cipher") from error
    _readable("tls.certificate", settings.certificate)
    if settings.key:
        _readable("tls.key", settings.key)
    try:
        # A password is always given: without one OpenSSL would ask at the terminal for that of an encrypted key.
        context.load_cert_chain(
            settings.certificate, settings.key or None, password=lambda: settings.key_password
        )
    except ssl.SSLError as error:
        raise ConfigError(_pair_problem(settings, error)) from error
    if settings.client_certificates != "none":
        _verify_clients(context, settings)
    return context


class Handshake:
    """One client's TLS handshake on `sock`. `error` says why it failed, '' otherwise; `lingering` is then a duplicate
    of the socket, non-blocking, on which the alert was sent and which the owner closes."""

    __slots__ = ("error", "lingering", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.error = ""
        self.lingering: socket.socket | None = None

    def fail(self, error: str, alert: bytes) -> None:
        """Send `alert`, what OpenSSL has for the client: asyncio and uvloop close without it.

        RFC 5246 section 7.2.2 and RFC 8446 section 6.2 demand it: only the alert says whether a certificate expired, was
        revoked or is unknown."""
        self.error = error
        with contextlib.suppress(OSError):  # the client left, or no descriptor is free
            self.lingering = self.sock.dup()
            self.lingering.setblocking(False)
            self.lingering.send(alert)
            self.lingering.shutdown(socket.SHUT_WR)


HANDSHAKE: Final[ContextVar[Handshake]] = ContextVar("HANDSHAKE")
"""The handshake of the task that accepts a connection."""


class _Watched(ssl.SSLObject):
    """Tells its `Handshake` of a failure, which asyncio and uvloop keep to themselves."""

    handshake: Handshake | None = None
    outgoing: ssl.MemoryBIO

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            if self.handshake is not None:
                detail = getattr(error, "verify_message", "")
                why = f"{_why(error)}: {detail}" if detail else _why(error)
                self.handshake.fail(why, self.outgoing.read())
            raise


class _Context(ssl.SSLContext):
    """A context whose connections know the `HANDSHAKE` that they belong to."""

    sslobject_class = _Watched

    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **options: Any
    ) -> ssl.SSLObject:
        made = super().wrap_bio(incoming, outgoing, *args, **options)
        assert isinstance(made, _Watched)
        made.handshake = HANDSHAKE.get(None)
        made.outgoing = outgoing
        return made


def _verify_clients(context: ssl.SSLContext, settings: TlsSettings) -> None:
    if not settings.client_ca:
        raise ConfigError(
            "tls.client_ca is missing",
            hint=f"client_certificates: {settings.client_certificates} needs the authorities to trust",
        )
    _load_authorities(context, "tls.client_ca", settings.client_ca)
    if settings.crl:
        _load_authorities(context, "tls.crl", settings.crl)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    context.verify_mode = VERIFY[settings.client_certificates]


def _load_authorities(context: ssl.SSLContext, key: str, path: str) -> None:
    _readable(key, path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise ConfigError(f"{key} {path}: {_why(error)}", hint="expected PEM") from error


def _readable(key: str, path: str) -> None:
    """Raises ConfigError. OpenSSL does not name the file, and would wait at a pipe."""
    try:
        check_regular(Path(path))
    except OSError as error:
        raise ConfigError(
            f"{key} {shown_path(path)}: {(error.strerror or str(error)).lower()}"
        ) from error


def _pair_problem(settings: TlsSettings, error: Exception) -> str:
    reason = getattr(error, "reason", None)
    key = settings.key or settings.certificate
    if reason in MISMATCHES:
        return f"tls.key {key} does not belong to tls.certificate {settings.certificate}"
    # OpenSSL's word for a wrong password depends on its version and the key's form.
    if b"ENCRYPTED" in Path(key).read_bytes():
        return f"tls.key {key} is encrypted and tls.key_password does not open it"
    if b"PRIVATE KEY" not in Path(key).read_bytes():
        return (
            f"{'tls.key' if settings.key else 'tls.certificate'} {key}: holds no private key in PEM"
        )
    if b"CERTIFICATE" not in Path(settings.certificate).read_bytes():
        return f"tls.certificate {settings.certificate}: holds no certificate in PEM"
    return f"tls.certificate {settings.certificate} with tls.key {key}: {_why(error)}"


def _why(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason).lower().replace("_", " ") if reason else "not PEM"


NAMES: Final = frozenset({"DNS", "URI", "email", "IP Address"})
"""Kinds of alternative names that are text. A directory name is a structure; another kind that Python cannot show is
``<unsupported>``, the same for all."""


def names_of(alternatives: Iterable[tuple[str, Any]]) -> tuple[str, ...]:
    """Return the alternative names of a certificate that may name somebody."""
    return tuple(
        value for kind, value in alternatives if kind in NAMES and isinstance(value, str) and value
    )


def certificate_of(secure: ssl.SSLObject | ssl.SSLSocket) -> Certificate | None:
    """The client's certificate, None where none was asked for, given or verified."""
    der = secure.getpeercert(binary_form=True)
    fields = cast("dict[str, Any]", secure.getpeercert())
    if not der or not fields:  # not verified, no fields
        return None
    names = [pair for group in fields.get("subject", ()) for pair in group]
    return Certificate(
        common_name=next((value for key, value in names if key == "commonName"), ""),
        subject=",".join(f"{key}={value}" for key, value in names),
        sans=names_of(fields.get("subjectAltName", ())),
        fingerprint=hashlib.sha256(der).hexdigest(),
    )
