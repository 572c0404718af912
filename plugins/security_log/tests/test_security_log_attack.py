"""Attack a real broker with the script from the how-to. Check that an alert is raised, and that both `fail2ban` and
Spark's stream find the attack.
"""

import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

import pytest
import trustme
from pages import blocks
from serving import HOOKMQ, WAIT, serving
from workspace import ROOT

pytestmark = pytest.mark.slow
PAGE = ROOT / "docs/how-to/security-log.md"
FAIL2BAN = ROOT / "deploy/fail2ban"
MORE = """
  - use: storage
    config: {{path: state}}
  - use: spark_sink
    config: {{path: spark, streams: [{{name: security, topics: ["$SYS/security/#"]}}]}}
  - use: webhook
    config:
      url: http://127.0.0.1:{port}/
      sign: {{secret: whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=}}
      outbox: {{path: outbox}}
      events: [security.attack_suspected]
"""


class Receiver(BaseHTTPRequestHandler):
    """An HTTP handler that records the bodies of POST requests."""

    bodies: "SimpleQueue[bytes]" = SimpleQueue()

    def do_POST(self) -> None:
        self.bodies.put(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def receiver() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join(WAIT)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory, receiver: int) -> dict[str, Any]:
    """Follow the how-to. Return the folder, the alert that the subscriber received, and the body of the webhook
    request.
    """
    folder = tmp_path_factory.mktemp("attack")
    for block in blocks(PAGE):
        if block.file:
            (folder / block.file).write_text(block.text)
    config = folder / "hookmq.yaml"
    made = trustme.CA().issue_cert("localhost")
    made.private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    tls = '{name: tls, type: tls, bind: "127.0.0.1:0", tls: {certificate: server.pem}}'
    text = config.read_text().replace('127.0.0.1:1883"}]', f'127.0.0.1:0"}}, {tls}]')
    config.write_text(text.rstrip("\n") + MORE.format(port=receiver))
    (folder / "password").write_text("correct horse")
    words = ["passwd", "add", "users.yaml", "operator", "--password-file", "password"]
    subprocess.run([*HOOKMQ, *words], cwd=folder, check=True, timeout=WAIT, capture_output=True)
    with serving("-c", "hookmq.yaml", cwd=folder) as served:
        port = str(served.ports["tcp"])
        sub = subprocess.Popen(
            [*HOOKMQ, "sub", "-p", port, "-u", "operator", "-P", "correct horse", "-i", "operator",
             "-t", "$SYS/security/attack_suspected", "-C", "1"],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            while served.wait_for("client.connected")["client_id"] != "operator":
                pass
            words = [sys.executable, "attack.py", "127.0.0.1", port]
            subprocess.run(words, cwd=folder, check=True, timeout=WAIT)
            alert, _ = sub.communicate(timeout=WAIT)
        finally:
            sub.kill()
            sub.wait(WAIT)
        hooked = Receiver.bodies.get(timeout=WAIT)
        with socket.create_connection(("127.0.0.1", served.ports["tls"]), WAIT) as peer:
            peer.sendall(b"this is not TLS")
            while peer.recv(1000):
                pass
        served.wait_for("listener.handshake_failed")
    return {"folder": folder, "alert": json.loads(alert), "webhook": json.loads(hooked)}


def test_the_subscriber_gets_the_alert_of_the_page(attacked: dict[str, Any]) -> None:
    [shown] = [json.loads(block.text) for block in blocks(PAGE) if block.language == "json"]
    alert = attacked["alert"]
    assert shown.keys() <= alert.keys()
    varying = {"@timestamp", "source.port", "message"}
    same = shown.keys() - varying
    assert {key: alert[key] for key in same} == {key: shown[key] for key in same}
    assert re.sub(r"\d+ s,", "1 s,", alert["message"]) == shown["message"]


def test_the_webhook_gets_the_same_record(attacked: dict[str, Any]) -> None:
    assert attacked["webhook"]["type"] == "hookmq.security.attack_suspected"
    data = attacked["webhook"]["data"]
    assert {key: data[key] for key in attacked["alert"]} == attacked["alert"]


def test_the_file_counts_every_guess_and_has_no_password(attacked: dict[str, Any]) -> None:
    text = (attacked["folder"] / "security.json").read_text()
    records = [json.loads(line) for line in text.splitlines()]
    failures = [one for one in records if one["event.action"] == "authentication_failure"]
    assert sum(one.get("hookmq.repeated", 1) for one in failures) == 15
    assert "123456" not in text
    assert "root" not in text


def test_a_failed_handshake_is_in_the_file(attacked: dict[str, Any]) -> None:
    lines = (attacked["folder"] / "security.json").read_text().splitlines()
    found = [json.loads(line) for line in lines if "handshake_failure" in line]
    [record] = found
    assert (record["source.ip"], record["hookmq.listener"]) == ("127.0.0.1", "tls")


def test_the_stream_for_spark_has_the_events(attacked: dict[str, Any]) -> None:
    words = [*HOOKMQ, "spark", "status", "spark", "--json"]
    done = subprocess.run(
        words, cwd=attacked["folder"], capture_output=True, text=True, timeout=WAIT, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = (attacked["folder"] / "security.json").read_text().splitlines()
    # Records that are written while the broker stops may be missing from the stream.
    assert 5 <= json.loads(done.stdout)["records"] <= len(lines)


@pytest.mark.skipif(not shutil.which("fail2ban-regex"), reason="fail2ban is not installed")
@pytest.mark.parametrize(("events", "least"), [("", 5), ('[events="attack_suspected"]', 1)])
def test_fail2ban_finds_the_attacker(
    attacked: dict[str, Any], tmp_path: Path, events: str, least: int
) -> None:
    """The filter finds the address of each failure, and is not fooled by names that look like an address."""
    forged = tmp_path / "security.json"
    lines = (attacked["folder"] / "security.json").read_text()
    forged.write_text(
        lines.replace('"user.name":"admin"', r'"user.name":"x\",\"source.ip\":\"203.0.113.5\""')
    )
    jail = (FAIL2BAN / "jail.d/hookmq.conf").read_text()
    assert "filter = hookmq" + events in jail
    words = [
        "fail2ban-regex", "-o", "<ip>", str(forged), str(FAIL2BAN / "filter.d/hookmq.conf") + events,
    ]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, timeout=WAIT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = done.stdout.split()
    assert len(found) >= least
    assert set(found) == {"127.0.0.1"}
