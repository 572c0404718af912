"""A real broker with every transport and a test certificate authority, shared by all interoperability tests of a
worker.
"""

import ssl
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import trustme
from cluster_front import nodes_wanted
from interop_cluster import serving_cluster
from serving import Served, serving

CONFIG = """\
version: 1
listeners:
  - {name: tcp, type: tcp, bind: "127.0.0.1:0"}
  - {name: tls, type: tls, bind: "127.0.0.1:0", tls: {certificate: server.pem}}
  - {name: ws, type: ws, bind: "127.0.0.1:0", websocket: {path: /mqtt}}
  - {name: wss, type: wss, bind: "127.0.0.1:0", websocket: {path: /mqtt}, tls: {certificate: server.pem}}
auth: {default: allow}
authz: {default: allow}
"""


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create the broker's files: its configuration, its certificate and the authority's ``ca.pem``."""
    folder = tmp_path_factory.mktemp("broker")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    server = authority.issue_cert("localhost", "127.0.0.1")
    server.private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    trustme.CA().cert_pem.write_to_path(folder / "other-ca.pem")
    text = CONFIG.replace("server.pem", str(folder / "server.pem"))
    (folder / "hookmq.yaml").write_text(text)
    return folder


@pytest.fixture(scope="session")
def broker(folder: Path) -> Iterator[Served]:
    """Run a broker, or as many as HOOKMQ_CLUSTER says. It must exit with code 0 and must not log errors."""
    file = folder / "hookmq.yaml"
    count = nodes_wanted()
    running = (
        serving_cluster(folder, file.read_text(), count) if count else serving("-c", str(file))
    )
    with running as served:
        yield served


@pytest.fixture(scope="session")
def trust(folder: Path) -> ssl.SSLContext:
    """Return a client TLS context that trusts the test authority."""
    return ssl.create_default_context(cafile=str(folder / "ca.pem"))


@pytest.fixture
def topic() -> str:
    """Return a topic that no other test uses, because tests share the broker."""
    return f"test/{uuid4().hex}"
