"""TLS settings for connections that a plugin opens: trusted authorities and a client certificate."""

import ssl
from dataclasses import dataclass
from pathlib import Path

from hookmq.plugin import ConfigError, setting

from hookmq_toolkit.files import check_regular, shown_path


@dataclass(frozen=True)
class TlsConfig:
    """The files used for TLS connections to a service. Server certificates and host names are always verified."""

    ca_file: Path | None = setting(
        None, "PEM file of the authorities to trust; default: those of the system"
    )
    cert_file: Path | None = setting(
        None, "PEM file of the client certificate, for services that require one"
    )
    key_file: Path | None = setting(
        None, "PEM file of its private key; default: the key is in cert_file"
    )

    def __post_init__(self) -> None:
        if self.key_file is not None and self.cert_file is None:
            raise ConfigError("key_file: cert_file is required with it")


def client_context(tls: TlsConfig) -> ssl.SSLContext:
    """Read the files of `tls` and return a context that verifies servers. This call blocks. Raises OSError with the name
    of any file that cannot be read, and ssl.SSLError (an OSError) if its contents are unusable.
    """
    for path in filter(None, (tls.ca_file, tls.cert_file, tls.key_file)):
        # OpenSSL does not name a missing file and blocks on a pipe.
        try:
            check_regular(path)
        except OSError as error:
            raise OSError(error.errno, error.strerror, shown_path(path)) from None
    context = ssl.create_default_context(cafile=str(tls.ca_file) if tls.ca_file else None)
    if tls.cert_file is not None:
        # Without a password, OpenSSL would ask for that of an encrypted key on the terminal.
        context.load_cert_chain(tls.cert_file, tls.key_file, password=lambda: "")
    return context


def check_tls(
    tls: TlsConfig | None, path: tuple[str | int, ...] = ("tls",)
) -> ssl.SSLContext | None:
    """Return the context for `tls`, or None if `tls` is None. This call blocks.

    Raises ConfigError if the files cannot be used; `path` is the path of the setting. Plugins call this in their
    constructor, so that `hookmq check` reports the mistake.
    """
    if tls is None:
        return None
    try:
        return client_context(tls)
    except ssl.SSLError as error:
        files = [shown_path(one) for one in (tls.ca_file, tls.cert_file, tls.key_file) if one]
        reason = error.reason or "expected PEM files, and a private key that is not encrypted"
        raise ConfigError(f"{', '.join(files)} cannot be used: {reason}", path=path) from error
    except OSError as error:
        message = f"{error.filename} cannot be used: {error.strerror}"
        raise ConfigError(message, path=path) from error
