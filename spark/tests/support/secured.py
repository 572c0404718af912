"""A broker whose read API uses TLS, with certificates from its own authority and from another one."""

import subprocess
from pathlib import Path
from typing import Any

from broker import HOOKMQ, TOKEN, Broker

# Made by the repository's environment, which has trustme.
CERTIFICATES = """\
import sys, trustme
from pathlib import Path
folder, host = Path(sys.argv[1]), sys.argv[2]
ours, other = trustme.CA(), trustme.CA()
for name, authority in (("ca", ours), ("other", other)):
    authority.cert_pem.write_to_path(folder / f"{name}.pem")
server = ours.issue_cert(host, "localhost")
server.private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
for name, authority in (("spark", ours), ("flink", ours), ("forged", other)):
    made = authority.issue_cert("client.example", common_name="spark" if name == "forged" else name)
    made.private_key_pem.write_to_path(folder / f"{name}.key")
    made.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
"""


class Secured(Broker):
    """A broker whose read API uses HTTPS and accepts client certificates, or requires them."""

    def __init__(self, folder: Path, host: str = "127.0.0.1", required: str = "optional") -> None:
        super().__init__(folder)
        self.host = host
        self.required = required
        python = HOOKMQ.with_name("python")
        subprocess.run([python, "-c", CERTIFICATES, folder, host], check=True)

    @property
    def read(self) -> dict[str, str]:
        return super().read | {
            "url": f"https://{self.host}:{self.api_port}",
            "caFile": str(self.folder / "ca.pem"),
        }

    def configuration(self) -> dict[str, Any]:
        made = super().configuration()
        made["plugins"][1]["config"]["api"] |= {
            "bind": f"{self.host}:{self.api_port}",
            "tls": {
                "certificate": str(self.folder / "server.pem"),
                "client_ca": str(self.folder / "ca.pem"),
                "client_certificates": self.required,
            },
            "access": [{"token": TOKEN}, {"common_name": "spark"}],
        }
        return made

    def certificate(self, name: str) -> dict[str, str]:
        """Return the options for a reader with the client certificate `spark`, `flink` or `forged`."""
        return {
            "certFile": str(self.folder / f"{name}.pem"),
            "keyFile": str(self.folder / f"{name}.key"),
        }
