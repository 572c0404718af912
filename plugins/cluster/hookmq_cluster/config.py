"""The settings of the plugin `cluster`."""

import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from hookmq.plugin import ConfigError, Seconds, setting
from hookmq_toolkit.tls_client import TlsConfig

from hookmq_cluster.transfer import AVAILABLE

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,63}")
_UNFIT: Final = re.compile(r"[^A-Za-z0-9_-]")


def default_node() -> str:
    """Return a node name made of the host's name."""
    return _UNFIT.sub("-", socket.gethostname())[:63] or "node"


def check_name(what: str, name: str) -> None:
    """Raise ConfigError, which names the setting `what`, for a name that no node or cluster can have."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{what}: {name!r} must have 1 to 63 letters, digits, hyphens or underscores"
        )


@dataclass(frozen=True)
class ClusterConfig:
    """The servers that store the cluster's state, and this node's place in the cluster."""

    servers: tuple[str, ...] = setting(
        (),
        "NATS servers with JetStream, tried in turn; default: nats://127.0.0.1:4222, or with `workers` a server that "
        "the broker starts",
    )
    node: str = setting(
        "",
        "name of this node; each node of the cluster needs another one; default: the host's name",
    )
    workers: int | Literal["auto", ""] = setting(
        "",
        "run this many worker processes on this machine, or auto: one for each CPU; each of them is a node, named w0, w1 "
        "and so on",
    )
    folder: Path | None = setting(
        None,
        "folder for the data of the nats-server that the workers share if `servers` is not set; default: cluster in the "
        "user's state folder",
    )
    name: str = setting("hookmq", "name of the cluster; all its nodes have the same one")
    replicas: int = setting(
        3,
        "how many NATS servers store each commit; the stream must have the same number",
        minimum=1,
        maximum=5,
    )
    allow_single_replica: bool = setting(
        False,
        "allow replicas: 1 also on NATS servers that are a cluster; the loss of one of them then loses everything",
    )
    sync: Literal["always", "lazy"] = setting(
        "always",
        "what the NATS servers do before they confirm a commit; always: write it to disk; lazy: nothing, so that a power "
        "cut of all machines loses up to two minutes",
    )
    monitoring: tuple[str, ...] = setting(
        (),
        "monitoring addresses of the NATS servers, such as http://127.0.0.1:8222; with sync: always, a server that syncs "
        "lazily is refused at the start",
    )
    per_node: tuple[str, ...] = setting(
        (),
        "ids of plugins that may work on each node separately, such as queues; without this, such a plugin is refused",
    )
    lease: Seconds = setting(
        10.0,
        "seconds after which a silent node counts as dead; at least two elections of a NATS leader",
        minimum=3.0,
        maximum=600.0,
    )
    relay: str = setting(
        "127.0.0.1:0",
        "address on which this node accepts connections that other nodes pass on; port 0 means any free port",
    )
    advertise: str = setting(
        "", "address under which the other nodes reach `relay`; default: the same address"
    )
    client_address: str = setting(
        "",
        "address of this node for clients, such as mqtt-a.example.com:1883; MQTT 5 clients that should use this node get "
        "it as Server Reference",
    )
    transfers: Path | None = setting(
        None,
        "folder in which nodes on this machine transfer clients' sockets to each other, instead of passing on bytes; "
        "`workers` have one of their own",
    )
    together: str = setting(
        "",
        "regular expression with a group, for client ids: clients with the same text there use the same node of this "
        "machine; needs `workers` or `transfers`",
    )
    redirect: bool = setting(
        False,
        "whether to send MQTT 5 clients to the node with their session (0x9C), if it has a client_address, instead of "
        "passing on their bytes",
    )
    relay_tls: TlsConfig | None = setting(
        None,
        "files for TLS between nodes; each node needs a certificate for its `advertise` address, from the same authority",
    )
    user: str = setting("", "user name for NATS")
    password: str = setting("", "password of the user")
    token: str = setting("", "token for NATS, instead of a user")
    credentials: Path | None = setting(None, "file with a JWT and its seed (.creds) for NATS")
    tls: TlsConfig | None = setting(
        None, "files for TLS to NATS; addresses with tls:// use TLS without it"
    )

    def __post_init__(self) -> None:
        tls = self.relay_tls
        if tls is not None and (tls.ca_file is None or tls.cert_file is None):
            raise ConfigError("relay_tls: ca_file and cert_file are required")
        if isinstance(self.workers, int) and self.workers < 1:
            raise ConfigError(f"workers: expected auto or a number from 1 on, found {self.workers}")
        if self.folder is not None and not self.workers:
            raise ConfigError("folder: only used with workers")
        for what, name in (("node", self.node), ("name", self.name)):
            if name:
                check_name(what, name)
        if self.redirect and not self.client_address:
            raise ConfigError(
                "redirect: client_address is required, so that other nodes can redirect clients here"
            )
        if self.together:
            self._check_together()
        if len(self.client_address) > 1024 or not self.client_address.isprintable():
            raise ConfigError(
                "client_address: expected at most 1024 characters, without control characters"
            )
        for address in self.monitoring:
            if not address.startswith(("http://", "https://")):
                raise ConfigError(f"monitoring: expected http:// or https://, found {address!r}")
        if not self.name:
            raise ConfigError("name: a cluster needs a name")
        if self.replicas not in (1, 3, 5):
            raise ConfigError(f"replicas: {self.replicas} is not one of 1, 3, 5")

    def _check_together(self) -> None:
        if not self.workers and self.transfers is None:
            raise ConfigError("together: workers or transfers is required")
        if not AVAILABLE:
            raise ConfigError("together: this system has no sequenced Unix sockets")
        try:
            groups = re.compile(self.together).groups
        except re.error as error:
            raise ConfigError(f"together: {self.together!r}: {error}") from None
        if groups != 1:
            raise ConfigError(f"together: expected one group in {self.together!r}, found {groups}")
