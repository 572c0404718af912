"""Test Spark on one host and the broker on another, in network namespaces: `make spark-hosts`.

They use TLS with client certificates, and the link between them fails for a while.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet
import pytest
from broker import WAIT
from pyspark_mqtt.publisher import Message
from secured import Secured

SUPPORT = Path(__file__).parents[1] / "support"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@dataclass
class Network:
    """A namespace with a link to this one."""

    name: str
    link: str
    here: str

    def switch(self, state: str) -> None:
        """Set the link `up` or `down`."""
        ip("link", "set", self.link, state)


@pytest.fixture
def network() -> Iterator[Network]:
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("network namespaces need root and the command ip (Debian: iproute2)")
    number = os.getpid() % 16_000
    made = Network(
        f"hookmq-{number}", f"hq{number}a", f"198.18.{number >> 6}.{number % 64 * 4 + 1}"
    )
    there, inside = f"hq{number}b", made.here.rpartition(".")[0] + f".{number % 64 * 4 + 2}"
    try:
        ip("netns", "add", made.name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces are not permitted here: {error.stderr.strip()}")
    try:
        ip("link", "add", made.link, "type", "veth", "peer", "name", there, "netns", made.name)
        ip("addr", "add", f"{made.here}/30", "dev", made.link)
        made.switch("up")
        ip("-n", made.name, "addr", "add", f"{inside}/30", "dev", there)
        ip("-n", made.name, "link", "set", there, "up")
        ip("-n", made.name, "link", "set", "lo", "up")
        yield made
    finally:
        ip("netns", "del", made.name)  # and the link with it
        with suppress(subprocess.CalledProcessError):
            ip("link", "del", made.link)


def until(reached: Callable[[], bool], driver: "subprocess.Popen[bytes]", said: Path) -> None:
    last = time.monotonic() + 2 * WAIT
    while not reached():
        assert driver.poll() is None, said.read_text()[-3000:]
        assert time.monotonic() < last, said.read_text()[-3000:]
        time.sleep(0.05)


def payloads(table: Path) -> list[int]:
    """Return the payloads in the files that Spark has committed."""
    found: list[int] = []
    for log in (table / "_spark_metadata").glob("[0-9]*"):
        for line in log.read_text().splitlines()[1:]:
            one = Path(json.loads(line)["path"].removeprefix("file://"))
            rows = pyarrow.parquet.read_table(one, columns=["payload"])
            found += [int(row["payload"]) for row in rows.to_pylist()]
    return sorted(found)


def test_the_link_fails_for_a_while(network: Network, tmp_path: Path) -> None:
    broker = Secured(tmp_path, network.here, "required")
    broker.start()
    said, driver = tmp_path / "said", None
    options = {name: value for name, value in broker.read.items() if name != "token"}
    options |= broker.certificate("spark") | {
        "fetch.timeoutMs": "2000", "fetchOffset.numRetries": "3000", "maxOffsetsPerTrigger": "200",
    }  # fmt: skip
    try:
        broker.publish(Message(f"t/{n % 7}", b"%d" % n) for n in range(500))
        with said.open("wb") as output:
            driver = subprocess.Popen(
                ["ip", "netns", "exec", network.name, sys.executable, SUPPORT / "driver.py",
                 tmp_path, json.dumps(options)],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
            )  # fmt: skip
        table = tmp_path / "table"
        until(lambda: bool(payloads(table)), driver, said)
        network.switch("down")
        broker.publish(Message(f"t/{n % 7}", b"%d" % n) for n in range(500, 1500))
        # The reader reports the first failure of a request, and waits.
        until(lambda: "Trying again every" in said.read_text(), driver, said)
        assert len(payloads(table)) < 1500
        network.switch("up")
        until(lambda: len(payloads(table)) >= 1500, driver, said)
        assert payloads(table) == list(range(1500))
    finally:
        if driver is not None:
            with suppress(ProcessLookupError):
                os.killpg(driver.pid, 9)
            driver.wait()
        broker.kill()
