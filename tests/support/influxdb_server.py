"""An InfluxDB 1 server from Debian's package, running in a test's folder on free ports."""

import json
import shutil
import ssl
import subprocess
import urllib.request
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from urllib.parse import urlencode

import pytest
from ports import free_port

DATABASE = "plant"
"""The name of the tests' database. A test must create it."""


class InfluxDbServer:
    """A running server. `http` is added to the section [http] of its configuration. `authority` is the CA file that its
    clients trust."""

    def __init__(self, http: str = "", scheme: str = "http", authority: Path | None = None) -> None:
        self._scheme = scheme
        self._tls = ssl.create_default_context(cafile=authority) if authority else None
        program = shutil.which("influxd")
        if program is None:
            pytest.skip("InfluxDB is not installed (influxd): apt-get install influxdb")
        self.folder = Path(mkdtemp(prefix="hookmq-influxdb-"))
        self.port = free_port()
        file = self.folder / "influxdb.conf"
        file.write_text(
            f'reporting-disabled = true\nbind-address = "127.0.0.1:{free_port()}"\n'
            f'[meta]\ndir = "{self.folder}/meta"\n'
            f'[data]\ndir = "{self.folder}/data"\nwal-dir = "{self.folder}/wal"\nquery-log-enabled = false\n'
            f'[monitor]\nstore-enabled = false\n[logging]\nlevel = "error"\n'
            f'[http]\nbind-address = "127.0.0.1:{self.port}"\nlog-enabled = false\n{http}\n'
        )
        self._words = [program, "-config", str(file)]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        """The server's address, for the driver's setting `url`."""
        return f"{self._scheme}://localhost:{self.port}"

    def start(self) -> None:
        """Start the server and wait until it responds."""
        self._process = subprocess.Popen(
            self._words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while True:
            assert self._process.poll() is None, "InfluxDB ended"
            with (
                suppress(OSError),
                urllib.request.urlopen(f"{self.url}/ping", timeout=30, context=self._tls),
            ):
                return

    def query(self, statement: str, **more: str) -> list[dict[str, Any]]:
        """Run an InfluxQL statement and return the resulting series. `more` contains URL parameters, such as the user
        `u` and the password `p`."""
        data = urlencode({"q": statement, "db": DATABASE, "epoch": "ns"}).encode()
        place = f"{self.url}/query?{urlencode(more)}"
        with urllib.request.urlopen(place, data, timeout=60, context=self._tls) as answer:
            (result,) = json.load(answer)["results"]
        assert "error" not in result, result
        return list(result.get("series", ()))

    def stop(self) -> None:
        """Kill the server. Its data stays on disk."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
            self._process = None

    def close(self) -> None:
        """Stop the server and delete its folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
