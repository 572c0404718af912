"""Interoperability with MQTT.js, the client for browsers and Node.js, over WebSocket and TCP."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from serving import Served

FOLDER = Path(__file__).parent / "js"


@pytest.mark.parametrize("version", ["3", "4", "5"])
@pytest.mark.parametrize("transport", ["ws", "wss", "tcp", "tls"])
def test_round_trip(broker: Served, folder: Path, topic: str, transport: str, version: str) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is not installed")
    if not (FOLDER / "node_modules" / "mqtt").is_dir():
        pytest.skip("MQTT.js is not installed (npm ci --prefix tests/interop/js)")
    scheme = {"tcp": "mqtt", "tls": "mqtts"}.get(transport, transport)
    path = "/mqtt" if transport.startswith("w") else ""
    url = f"{scheme}://localhost:{broker.ports[transport]}{path}"
    words = [node, str(FOLDER / "roundtrip.js"), url, version, topic]
    if transport in ("wss", "tls"):
        words.append(str(folder / "ca.pem"))
    done = subprocess.run(words, capture_output=True, timeout=120, check=False, cwd=FOLDER)
    assert done.returncode == 0, done.stderr.decode()
    told = json.loads(done.stdout)
    assert told["granted"] == [2]
    assert told["got"] == [
        {"topic": "/kept", "payload": "retained", "qos": 1, "retain": True},
        {"topic": "/0", "payload": "at 0", "qos": 0, "retain": False},
        {"topic": "/1", "payload": "at 1", "qos": 1, "retain": False},
        {"topic": "/2", "payload": "at 2", "qos": 2, "retain": False},
        {"topic": "/large", "payload": 300000, "qos": 1, "retain": False},
        {"topic": "/kept", "payload": "", "qos": 1, "retain": False},
        {"topic": "/end", "payload": "end", "qos": 1, "retain": False},
    ]
