"""A real Prometheus server that scrapes this machine and answers queries."""

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest
from broker import free_port

WAIT = 60.0
"""Maximum seconds to wait for data. Only a failing test waits this long."""


def unanswered(folder: Path, targets: Sequence[str], queries: Sequence[str]) -> list[str] | None:
    """Scrape the targets until each query has returned a number. Return the queries that never returned one.

    Return None if Prometheus is not installed.
    """
    if shutil.which("prometheus") is None:
        return None
    folder.mkdir()
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [{"job_name": "demo", "static_configs": [{"targets": list(targets)}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML.
    address = f"127.0.0.1:{free_port()}"
    command = [
        "prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}", "--log.level=warn",
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        left, until = list(queries), time.monotonic() + WAIT
        while left and time.monotonic() < until:
            assert process.poll() is None, (folder / "log").read_text()
            left = [query for query in left if not numbers(address, query)]
        return left
    finally:
        process.kill()
        process.wait()


def numbers(address: str, query: str) -> list[float]:
    """Return the numbers in a query's result, leaving out NaN. The list is empty while Prometheus starts.

    Fails with Prometheus's own error if the query is invalid.
    """
    url = f"http://{address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    try:
        with urllib.request.urlopen(url, timeout=WAIT) as answer:
            found = json.load(answer)["data"]["result"]
    except urllib.error.HTTPError as error:
        if error.code != 503:
            pytest.fail(f"{query}: {error.read().decode()}")
        return []
    except OSError:
        return []
    values = [float(one["value"][1]) for one in found]
    return [one for one in values if one == one]
