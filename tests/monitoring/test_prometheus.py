"""Test that a real Prometheus scrapes a loaded broker, and runs every query in the Grafana dashboard and the alerts."""

import json
import re
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import paho.mqtt.client as mqtt
import pytest
import yaml
from paho.mqtt.enums import CallbackAPIVersion
from ports import free_port
from serving import serving
from workspace import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("prometheus"),
    pytest.mark.skipif(
        shutil.which("prometheus") is None or shutil.which("promtool") is None,
        reason="prometheus is not installed: apt-get install prometheus",
    ),
]

BOARD: Final = ROOT / "deploy/grafana/hookmq.json"
RULES: Final = ROOT / "deploy/prometheus/alerts.yaml"
SCRAPE: Final = ROOT / "deploy/prometheus/prometheus.yml"
WAIT: Final = 60.0
"""Maximum seconds to wait for data. Only a failing test waits this long."""
FIRING: Final = {"HookMQQueuesOverflow", "HookMQPluginFails", "HookMQUndecided"}
"""Alerts whose expressions hold for these tests' broker, which loses messages and has a failing plugin."""
MACHINE: Final = {"HookMQDown", "HookMQLoopBlocked", "HookMQLoopSlow", "HookMQCommitsSlow"}
"""Alerts whose expressions may hold on a busy machine. No others may hold."""
ABSENT: Final = {"hookmq_metric_errors_total"}
"""Metrics without data in this test. The broker counts no errors here, because every metric can be read."""
PROBE: Final = """
from hookmq.plugin import Allow, Plugin, hookimpl


class Probe(Plugin):
    @hookimpl
    def on_ready(self, broker):
        broker.state.put("key", b"value")

    @hookimpl
    def authorize(self, client, action, topic):
        return Allow()

    @hookimpl
    def on_publish(self, message, broker):
        if message.topic == "full/1":
            broker.when_committed("0af7651916cd43dd8448eb211c80319c")
        if message.topic.startswith("broken/"):
            raise RuntimeError("this topic always fails")

    @hookimpl
    def on_session(self, client, event):
        pass
"""
CONFIG: Final = """
version: 1
listeners:
  - {name: tcp, bind: "127.0.0.1:0"}
  - {name: http, type: http, bind: "127.0.0.1:0"}
auth: {default: allow}
authz: {default: allow}
session: {queue_messages: 5}
plugins:
  - {use: storage, config: {path: store}}
  - {use: probe}
  - {use: webhook, config: {url: "http://127.0.0.1:PORT/", events: [client.connected]}}
"""


class Prometheus:
    """A running Prometheus server. `missing` contains the queries that should have returned data but never did."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.missing: list[str] = []

    def get(self, path: str, **query: str) -> Any:
        """Return the data of an API call. Raises AssertionError with Prometheus's own error."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=WAIT) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{query}: {json.load(error)['error']}") from None

    def numbers(self, query: str) -> list[float]:
        """Return the numbers in the response to a query, without NaN."""
        found = [float(one["value"][1]) for one in self.get("query", query=query)["result"]]
        return [one for one in found if one == one]


def load(port: int) -> Generator[None, None, None]:
    """At each step, publish messages that are delivered, overflow a queue, or make a plugin fail."""
    version = CallbackAPIVersion.VERSION2

    def client(client_id: str, clean: bool) -> mqtt.Client:
        found = mqtt.Client(version, client_id, clean_session=clean)
        found.connect("127.0.0.1", port)
        found.loop_start()
        return found

    gone = client("gone", clean=False)
    subscribed = threading.Event()
    gone.on_subscribe = lambda *_: subscribed.set()
    gone.subscribe("full/#", 1)
    assert subscribed.wait(WAIT)
    sub, pub = client("sub", clean=True), client("pub", clean=True)
    sub.subscribe("data/#", 2)
    gone.disconnect()
    gone.loop_stop()
    try:
        while True:
            for number in range(30):
                pub.publish(f"data/{number % 5}", b"x" * 100, number % 3, retain=number == 0)
            pub.publish("full/1", b"x", 1).wait_for_publish(WAIT)
            pub.publish("broken/1", b"x", 0)
            other = client("short", clean=True)
            other.disconnect()
            other.loop_stop()
            yield
    finally:
        for one in (sub, pub):
            one.disconnect()
            one.loop_stop()


@contextmanager
def running(folder: Path, target: str) -> Iterator[Prometheus]:
    """Run Prometheus with the configuration of deploy/, which scrapes only `target`, every two seconds."""
    config = yaml.safe_load(SCRAPE.read_text())
    config["global"] = {"scrape_interval": "2s", "evaluation_interval": "2s"}
    config["scrape_configs"][0]["static_configs"] = [{"targets": [target]}]
    folder.mkdir()
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    shutil.copy(RULES, folder / RULES.name)
    address = f"127.0.0.1:{free_port()}"
    log = (folder / "log").open("wb")
    process = subprocess.Popen(
        [
            "prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}", "--log.level=warn",
            "--enable-feature=exemplar-storage",
        ],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + WAIT
        while True:
            assert process.poll() is None, (folder / "log").read_text()
            try:
                with urllib.request.urlopen(f"http://{address}/-/ready", timeout=WAIT) as answer:
                    if answer.status == 200:
                        break
            except OSError:
                assert time.monotonic() < deadline, (folder / "log").read_text()
        yield Prometheus(f"http://{address}")
    finally:
        process.kill()
        process.wait(WAIT)
        log.close()


def board() -> dict[str, list[str]]:
    """Return the queries of each panel, with the variables replaced as Grafana does when all brokers are selected."""
    found: dict[str, list[str]] = {}
    for panel in json.loads(BOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"].replace("$__rate_interval", "1m")
            query = query.replace("$job", ".+").replace("$instance", ".+")
            assert "$" not in query
            found.setdefault(panel["title"], []).append(query)
    return found


def alerts() -> dict[str, str]:
    """Return the expression of each alert."""
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule["expr"] for rule in group["rules"]}


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Yield a Prometheus that has scraped a loaded broker until every panel has data or time runs out."""
    folder = tmp_path_factory.mktemp("monitored")
    info = folder / "hookmq_probe-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hookmq-probe\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[hookmq.plugins]\nprobe = hookmq_probe:Probe\n")
    (folder / "hookmq_probe.py").write_text(PROBE)
    config = folder / "hookmq.yaml"
    config.write_text(CONFIG.replace("PORT", str(free_port())))
    with serving("-c", str(config), cwd=folder, environ={"PYTHONPATH": str(folder)}) as served:
        target = f"127.0.0.1:{served.ports['http']}"
        with running(folder / "prometheus", target) as found:
            steps = load(served.ports["tcp"])
            wanted = [query for queries in board().values() for query in queries]
            wanted += [expr for name, expr in alerts().items() if name in FIRING]
            deadline = time.monotonic() + WAIT
            while wanted and time.monotonic() < deadline:
                next(steps)
                wanted = [query for query in wanted if not found.numbers(query)]
            steps.close()
            found.missing = wanted
            yield found
        # The probe fails on purpose, and the webhook's service is not there.
        served.log[:] = [one for one in served.log if one["event"] != "plugin.failed"]


def test_promtool_accepts_the_rules_and_the_configuration() -> None:
    for kind, file in (("rules", RULES), ("config", SCRAPE)):
        done = subprocess.run(
            ["promtool", "check", kind, str(file)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_every_panel_and_every_alert_that_should_fire_has_data(prometheus: Prometheus) -> None:
    assert prometheus.missing == []


def test_the_other_alerts_are_quiet(prometheus: Prometheus) -> None:
    assert alerts().keys() >= FIRING | MACHINE
    holding = {name for name, expr in alerts().items() if prometheus.numbers(expr)}
    assert holding - FIRING - MACHINE == set()


def test_every_metric_of_the_board_and_of_the_alerts_exists(prometheus: Prometheus) -> None:
    text = " ".join(
        [*(query for queries in board().values() for query in queries), *alerts().values()]
    )
    used = set(re.findall(r"\b(?:hookmq|process)_\w+", text))
    known = set(prometheus.get("label/__name__/values"))
    assert used - known == ABSENT
    for rule in prometheus.get("rules")["groups"][0]["rules"]:
        assert rule["health"] == "ok", rule


def test_prometheus_stores_the_exemplars_of_commits(prometheus: Prometheus) -> None:
    query = {"query": "hookmq_commit_duration_seconds_bucket", "start": "0", "end": "9999999999"}
    found = prometheus.get("query_exemplars", **query)
    labels = [one["labels"] for series in found for one in series["exemplars"]]
    assert labels
    assert all(one == {"trace_id": "0af7651916cd43dd8448eb211c80319c"} for one in labels)


def test_prometheus_reads_both_formats_without_complaint(prometheus: Prometheus) -> None:
    deadline = time.monotonic() + WAIT
    while True:
        [target] = prometheus.get("targets")["activeTargets"]
        if (target["health"], target["lastError"]) == ("up", ""):
            break
        assert time.monotonic() < deadline, target
    for accept in ("text/plain", "application/openmetrics-text; version=1.0.0"):
        request = urllib.request.Request(target["scrapeUrl"], headers={"Accept": accept})
        with urllib.request.urlopen(request, timeout=WAIT) as answer:
            page = answer.read().decode()
        if accept == "text/plain":
            done = subprocess.run(
                ["promtool", "check", "metrics"],
                input=page,
                capture_output=True,
                text=True,
                check=False,
            )
            assert "error" not in done.stderr.lower(), done.stderr
        else:
            assert page.endswith("# EOF\n")
