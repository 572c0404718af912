"""Resolve the broker's address once, before any client is created. This module also defines the errors that
end a run.
"""

import contextlib
import socket
import ssl
from dataclasses import dataclass

from hookmq.cli_api import ConnectTarget
from hookmq.plugin import ConfigError, HookMQError


class BenchError(HookMQError):
    """The load test cannot continue. The text gives the reason."""


class Refused(BenchError):
    """The broker refused a connection. The text contains only the broker's reason."""


@dataclass(frozen=True, slots=True)
class Address:
    """A broker's resolved address. For TLS and WebSocket, it also holds a TLS context, the certificate's name and a
    URL.
    """

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    name: str | None = None
    websocket: str | None = None


def address_of(target: ConnectTarget) -> Address:
    """Resolve the broker's address and connect to it once. This call blocks. Raises BenchError, or ConfigError if a TLS
    file is bad.
    """
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise BenchError(f"{target.host}: {error.strerror}") from None
    why = ""
    for family, _, _, _, place in found:
        host, port = str(place[0]), int(place[1])
        with contextlib.closing(socket.socket(family, socket.SOCK_STREAM)) as attempt:
            attempt.settimeout(10)
            try:
                attempt.connect(place)
            except OSError as error:
                why = why or str(error.strerror or error)
                continue
        break
    else:
        raise BenchError(f"cannot connect to {target.address}: {why}")
    tls = _context(target) if target.tls else None
    websocket = None
    if target.websocket:
        websocket = f"{'wss' if target.tls else 'ws'}://{target.address}{target.path}"
    return Address(host, port, tls, target.host if target.tls else None, websocket)


def _context(target: ConnectTarget) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=target.ca, capath=target.ca_folder)
        if target.tls_version == "tlsv1.3":  # the default is 1.2
            context.minimum_version = ssl.TLSVersion.TLSv1_3
        if target.ciphers:
            context.set_ciphers(target.ciphers)
        if target.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if target.certificate is not None:
            context.load_cert_chain(target.certificate, target.key)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"TLS: {error}") from None
    return context
