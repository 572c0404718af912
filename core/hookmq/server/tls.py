"""Load TLS contexts from files, send alerts for failed handshakes, and read verified client certificates."""

import contextlib
import hashlib
import socket
import ssl
from collections.abc import Iterable
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, cast

from hookmq.model.client import Certificate
from hookmq.model.errors import ConfigError
from hookmq.server.files import check_regular, shown_path
from hookmq.server.settings import TlsSettings

VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
MISMATCHES: Final = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")
"""OpenSSL's errors for a key that does not belong to the certificate. The last two are raised if the key has another
type."""
VERIFY: Final = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return a context for new handshakes, made from the files in `settings`. Blocks on file reads.

    Raises ConfigError naming any file that is missing, unreadable, not PEM, mismatched or too weak.
    """
    if not settings.certificate:
        raise ConfigError(
            "tls.certificate is missing", hint="set it to the PEM file with the chain"
        )
    context = _Context(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = VERSIONS[settings.minimum_version]
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    if settings.ciphers:
        try:
            context.set_ciphers(settings.ciphers)
        except ssl.SSLError as error:
            raise ConfigError(f"tls.ciphers {settings.ciphers!r}: unknown ciphers") from error
    _readable("tls.certificate", settings.certificate)
    if settings.key:
        _readable("tls.key", settings.key)
    try:
        # Always pass a password. Otherwise, OpenSSL asks for an encrypted key's password on the terminal.
        context.load_cert_chain(
            settings.certificate, settings.key or None, password=lambda: settings.key_password
        )
    except ssl.SSLError as error:
        raise ConfigError(_pair_problem(settings, error)) from error
    if settings.client_certificates != "none":
        _verify_clients(context, settings)
    return context


class Handshake:
    """The TLS handshake of one client on `sock`.

    If it fails, `error` contains the reason. `lingering` is then a non-blocking duplicate of the socket, on which the
    alert was sent. The owner must close it.
    """

    __slots__ = ("error", "lingering", "sock")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.error = ""
        self.lingering: socket.socket | None = None

    def fail(self, error: str, alert: bytes) -> None:
        """Send the `alert` that OpenSSL made. asyncio and uvloop would close the socket without sending it.

        RFC 5246 section 7.2.2 and RFC 8446 section 6.2 require the alert. Without it, the client cannot know whether its
        certificate expired, was revoked or is unknown.
        """
        self.error = error
        with contextlib.suppress(OSError):  # the client disconnected, or no file descriptor is free
            self.lingering = self.sock.dup()
            self.lingering.setblocking(False)
            self.lingering.send(alert)
            self.lingering.shutdown(socket.SHUT_WR)


HANDSHAKE: Final[ContextVar[Handshake]] = ContextVar("HANDSHAKE")
"""The handshake in progress, set in the context of the task that accepts the connection."""


class _Watched(ssl.SSLObject):
    """An SSLObject that reports a failure to its `Handshake`, since asyncio and uvloop do not report it."""

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
    """An SSLContext that links each connection to the current `HANDSHAKE`."""

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
            hint=f"client_certificates: {settings.client_certificates} needs the CA certificates to trust",
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
    """Raise ConfigError if a file cannot be read. OpenSSL would not name the file, and would block on a pipe."""
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
    # the error for a wrong password depends on OpenSSL's version and the key's format
    content = Path(key).read_bytes()
    if b"ENCRYPTED" in content:
        return f"tls.key {key} is encrypted and tls.key_password does not decrypt it"
    if b"PRIVATE KEY" not in content:
        name = "tls.key" if settings.key else "tls.certificate"
        return f"{name} {key}: contains no private key in PEM"
    if b"CERTIFICATE" not in Path(settings.certificate).read_bytes():
        return f"tls.certificate {settings.certificate}: contains no certificate in PEM"
    return f"tls.certificate {settings.certificate} with tls.key {key}: {_why(error)}"


def _why(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason).lower().replace("_", " ") if reason else "not PEM"


NAMES: Final = frozenset({"DNS", "URI", "email", "IP Address"})
"""The types of alternative names that are text. A directory name is a structure, and for all other types, Python
returns ``<unsupported>``."""


def names_of(alternatives: Iterable[tuple[str, Any]]) -> tuple[str, ...]:
    """Return a certificate's alternative names that can identify a client."""
    return tuple(
        value for kind, value in alternatives if kind in NAMES and isinstance(value, str) and value
    )


def certificate_of(secure: ssl.SSLObject | ssl.SSLSocket) -> Certificate | None:
    """Return the client's verified certificate, or None if there is none."""
    der = secure.getpeercert(binary_form=True)
    fields = cast("dict[str, Any]", secure.getpeercert())
    if not der or not fields:  # an unverified certificate has no fields
        return None
    names = [pair for group in fields.get("subject", ()) for pair in group]
    return Certificate(
        common_name=next((value for key, value in names if key == "commonName"), ""),
        subject=",".join(f"{key}={value}" for key, value in names),
        sans=names_of(fields.get("subjectAltName", ())),
        fingerprint=hashlib.sha256(der).hexdigest(),
    )
