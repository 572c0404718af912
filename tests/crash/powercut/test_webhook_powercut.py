"""Test power cuts under a broker with a webhook outbox.

Every acknowledged event arrived before the cut or is sent after the restart, in order and with its
original id.
"""

import json
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from typing import Any

import mqttbytes as m
import pytest
from brokercut.runs import _free, broker
from byteclient import CONNACK, over_tcp
from hookmq_storage.store import SQLiteStore
from hookmq_testing import Harness, make_plugin
from hookmq_webhook.config import OutboxConfig
from hookmq_webhook.dispatch import Answer, Verdict
from hookmq_webhook.plugin import WebhookPlugin
from hookmq_webhook.queues import Numbered
from powercut.recording import Cut, Recorder, Recording, Report, cut
from powercut.shim import missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
SEED = 20
CLIENTS = ("one", "two")
CONFIG = """\
version: 1
listeners: [{{name: tcp, type: tcp, bind: "127.0.0.1:0"}}]
auth: {{default: allow}}
authz: {{default: allow}}
plugins:
  - {{use: storage, config: {{path: "{folder}/data"}}}}
  - use: webhook
    config:
      url: "http://127.0.0.1:{port}/"
      events: [message.published, client.connected, client.disconnected]
      outbox: {{path: "{folder}/outbox", max_bytes: 128KiB}}
      retry: {{first_delay: 5ms, longest_delay: 20ms, breaker_pause: 10ms}}
      drain: {drain}
      process: false  # another one would fill the outbox while it starts
"""


class Receiver(ThreadingHTTPServer):
    """A slow receiver that records events before it acknowledges them. It fails occasionally."""

    daemon_threads = True

    def __init__(self, recorder: Recorder, seed: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.recorder = recorder
        self.random = Random(seed)
        self.lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    """The handler of one request to the receiver."""

    protocol_version = "HTTP/1.1"
    server: Receiver

    def do_POST(self) -> None:
        event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            status = 500 if self.server.random.random() < 0.1 else 204
            if status == 204 and "payload" in event["data"]:
                data = event["data"]
                told = ["got", data["client_id"], data["payload"].split()[0], event["id"]]
                self.server.recorder.mark(json.dumps(told).encode())
        threading.Event().wait(0.004)
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@contextmanager
def receiving(recorder: Recorder, seed: int) -> Iterator[int]:
    server = Receiver(recorder, seed)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def record(
    work: Path, messages: int, lives: int, environ: dict[str, str] | None = None
) -> Recording:
    """Record several broker processes, with the marks of their publishers and receiver."""
    recorder = Recorder(work / "disk", work)
    config = work / "hookmq.yaml"
    number = 0
    random = Random(SEED)
    with receiving(recorder, SEED) as port:
        for life in range(lives):
            drain = "0s" if life < lives - 1 else "60s"
            config.write_text(CONFIG.format(folder=recorder.folder, port=port, drain=drain))
            with broker(config, {**recorder.environ, **(environ or {})}) as served:
                clients = {name: over_tcp(served.ports["tcp"]) for name in CLIENTS}
                for name, client in clients.items():
                    client.tell(m.connect(name, level=4), CONNACK)
                for _ in range(messages // lives):
                    number += 1
                    name = random.choice(CLIENTS)
                    body = b"%d " % number + bytes(random.choices(b"abc", k=random.randrange(1200)))
                    clients[name].send(m.publish("k/x", body, 1, number, level=4))
                    clients[name].get(b"\x40\x02" + number.to_bytes(2, "big"))
                    recorder.mark(json.dumps(["acked", name, str(number)]).encode())
                for client in clients.values():
                    client.close()
                assert served.stop() == 0, served.errors
            _free(recorder.folder)
    return recorder.recording()


class Service:
    """A service that accepts every event."""

    made: "list[Service]" = []

    def __init__(self, *given: Any) -> None:
        self.sent: list[Numbered] = []
        self.statuses: dict[int, int] = {}
        self.bytes = 0
        Service.made.append(self)

    async def send(self, events: Sequence[Numbered]) -> Answer:
        self.sent += events
        return Answer(Verdict.ARRIVED)

    async def close(self) -> None:
        """Do nothing."""


class Faked(WebhookPlugin):
    Sender = Service  # type: ignore[assignment]


def check(folder: Path, marks: list[bytes], one: Cut) -> None:
    """Start a broker on the remaining data and let it deliver all events."""
    path = OutboxConfig(path=folder / "outbox", max_bytes=1 << 17)
    events = ("message.published", "client.connected", "client.disconnected")
    settings = {"url": "http://127.0.0.1:1/", "events": events, "outbox": path}
    instance = make_plugin(Faked, settings, "webhook")
    harness = Harness([instance], start=False)
    error = harness.wait(harness.hooks.startup)
    assert error is None, error
    harness.store.close(lambda: None)
    store = SQLiteStore(folder / "data", harness.clock, "os")
    try:
        harness.restart(store=store)
        harness.advance(5)
        compare([json.loads(mark) for mark in marks], Service.made[-1].sent)
    finally:
        with suppress(Exception):
            harness.close()
        store.close(lambda: None)


def compare(marks: list[list[str]], sent: list[Numbered]) -> None:
    """Assert that every acknowledged event arrived before or after the cut."""
    arrived = [(mark[1], int(mark[2]), mark[3]) for mark in marks if mark[0] == "got"]
    for one in sent:
        event = one.event
        if event.type == "message.published":
            assert event.client is not None
            arrived.append((event.client, int((event.payload or b"").split()[0]), one.id))
    ids: dict[int, str] = {}
    for _, number, id in arrived:
        assert ids.setdefault(number, id) == id, f"message {number} is two events"
    assert len(set(ids.values())) == len(ids), "one id for two events"
    acked = {int(mark[2]) for mark in marks if mark[0] == "acked"}
    assert acked <= ids.keys(), f"acknowledged and gone: {sorted(acked - ids.keys())[:5]}"
    for client in CLIENTS:
        firsts = list(dict.fromkeys(number for name, number, _ in arrived if name == client))
        assert firsts == sorted(firsts), f"{client} is out of order: {firsts}"


def cut_and_check(recording: Recording, cuts: int) -> Report:
    return cut(recording, check, cuts, SEED)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_acknowledged_messages_are_in_the_outbox_after_a_power_cut(tmp_path: Path) -> None:
    recording = record(tmp_path, messages=240, lives=3)
    report = cut_and_check(recording, 100)
    assert not report.failures, report.text()
    assert report.cuts == 100
    deleted = [one for one in recording.records if one.kind.name == "UNLINK"]
    assert deleted, "nothing that arrived was deleted, so that deleting was not tested"


PLANTED = {
    "the log is not synced": """
    from hookmq_webhook.outbox import Outbox
    make = Outbox._make_log
    def unsynced(self):
        self._sync = False
        return make(self)
    Outbox._make_log = unsynced
""",
    "the folder's name is not safe": """
    import os
    import hookmq_webhook.folder
    def prepare_folder(folder):
        folder.mkdir(0o700, True, True)
        return set(os.listdir(folder))
    hookmq_webhook.folder.prepare_folder = prepare_folder
""",
    "the cursor runs ahead": """
    from hookmq_webhook.cursor import Position
    from hookmq_webhook.log_queue import LogQueue
    LogQueue._present = lambda self: Position(self._end)
""",
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("bug", PLANTED)
def test_a_power_cut_finds_what_is_planted(bug: str, tmp_path: Path) -> None:
    folder = tmp_path / "planted"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(f'import sys\nif "serve" in sys.argv:\n{PLANTED[bug]}')
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    recording = record(tmp_path, messages=120, lives=2, environ={"PYTHONPATH": path})
    assert cut_and_check(recording, 150).failures, f"{bug}: not found"
