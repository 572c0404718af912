"""TLS between nodes: both sides prove with a certificate that they belong to the cluster."""

import ssl
from typing import NamedTuple

from hookmq.plugin import ConfigError
from hookmq_toolkit.tls_client import TlsConfig, check_tls


class RelayContexts(NamedTuple):
    """The contexts of a node. `server` requires a certificate of the same authority from clients."""

    client: ssl.SSLContext
    server: ssl.SSLContext


def relay_contexts(config: TlsConfig | None) -> RelayContexts | None:
    """Return the contexts for `config`, or None if it is None. This call blocks. Raises ConfigError if the files cannot
    be used.
    """
    client = check_tls(config, ("relay_tls",))
    if config is None or client is None:
        return None
    if config.cert_file is None or config.ca_file is None:
        raise ConfigError("relay_tls: ca_file and cert_file are required")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.minimum_version = ssl.TLSVersion.TLSv1_2
    server.verify_mode = ssl.CERT_REQUIRED
    load_files(server, config)
    return RelayContexts(client, server)


def load_files(context: ssl.SSLContext, config: TlsConfig) -> None:
    """Let `context` use the files of `config`, also for a listener that is open. This call blocks. The files must have
    been checked; see `relay_contexts`.
    """
    assert config.cert_file is not None
    context.load_verify_locations(config.ca_file)
    context.load_cert_chain(config.cert_file, config.key_file, password=lambda: "")
