"""Test that ``make demo-spark`` shows real counts: its tables agree with the fleet's ledger. Ctrl-C ends every process.

One demo runs for all tests. `make pictures` stores screenshots of its page in docs/images, and the notebook's outputs.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

os.environ.setdefault("MPLBACKEND", "agg")
import matplotlib.pyplot as plt
import prometheus
from broker import ROOT
from deltalake import DeltaTable
from execute import dump, execute

BOARD = ROOT / "deploy" / "grafana" / "hookmq-spark.json"
NOTEBOOK = ROOT / "pipelines" / "notebooks" / "tables.ipynb"
DEMO = ROOT / "pipelines" / "demo"
PYTHON = ROOT / ".venv" / "bin" / "python"
"""The environment with Playwright."""
PICTURES = os.environ.get("HOOKMQ_PICTURES", "")
SECONDS = 500
"""The demo ends after this time, even if it has not reached the state that the test waits for. Only a failing test
takes this long.
"""
WANTED = ("✓ The first window", "✓ The first cooling failure")
WINDOW = timedelta(seconds=10)

pytestmark = pytest.mark.timeout(SECONDS + 100)


@dataclass
class Shown:
    """Everything that a demo showed before Ctrl-C."""

    folder: Path
    said: str
    code: int
    state: dict[str, Any]
    pictures: "subprocess.CompletedProcess[str] | None"
    foreign: int
    """The status of the response to a request for another host."""
    unanswered: list[str] | None
    """The queries of the Grafana board for which Prometheus has no data."""

    def rows(self, name: str, *columns: str) -> list[dict[str, Any]]:
        """Return the rows of one table."""
        found = DeltaTable(str(self.folder / name)).to_pyarrow_table(columns=list(columns))
        rows: list[dict[str, Any]] = found.to_pylist()
        return rows


def look(url: str, pictures: Path) -> "subprocess.CompletedProcess[str] | None":
    """Check the page in a browser, if one is installed, and take screenshots."""
    if shutil.which("chromium") is None:
        return None
    names = ("PYTHONPATH", "PYTHONHOME", "SPARK_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    command = [str(PYTHON), str(DEMO / "pictures.py"), url, str(pictures)]
    if PICTURES:  # with charts that show some minutes
        command += ["--windows", "10"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """Run a demo until it has shown a window and an alert. Check its page, then press Ctrl-C."""
    folder = tmp_path_factory.mktemp("demo")
    tables = folder / "tables"
    command = [
        sys.executable, str(DEMO / "run.py"), "--devices", "200", "--seconds", str(SECONDS), "--no-browser",
        "--folder", str(tables),
    ]  # fmt: skip
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        lines: list[str] = []
        state: dict[str, Any] = {}
        missing, foreign, pictures, unanswered = set(WANTED), 0, None, None
        for line in process.stdout:
            lines.append(line)
            missing -= {one for one in missing if one in line}
            if missing or state:
                continue
            url = lines[0].split()[-1]
            pictures = look(url, Path(PICTURES or folder).absolute())
            foreign = status(url, "example.com")
            with urllib.request.urlopen(url + "state.json", timeout=60) as answer:
                state = json.load(answer)
            targets = [urlsplit(one).netloc for one in (state["addresses"]["metrics"], url)]
            unanswered = prometheus.unanswered(folder / "prometheus", targets, board())
            process.send_signal(signal.SIGINT)
        code = process.wait()
    return Shown(tables, "".join(lines), code, state, pictures, foreign, unanswered)


def board() -> list[str]:
    """Return the dashboard's queries, with variables replaced as Grafana replaces them for "All"."""
    found = []
    for panel in json.loads(BOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"].replace("$__rate_interval", "1m")
            found.append(re.sub(r"\$(job|instance|stream|app)\b", ".+", query))
            assert "$" not in found[-1]
    return found


def status(url: str, host: str) -> int:
    """Send a request whose Host header is `host`, and return the status of the response."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=60)
    connection.request("GET", "/state.json", headers={"Host": host})
    found = connection.getresponse().status
    connection.close()
    return found


def test_it_reports_each_step_and_ends_every_process(shown: Shown) -> None:
    assert shown.code == 0, shown.said
    lines = shown.said.splitlines()
    assert lines[0].startswith("The page of this demo: http://127.0.0.1:")
    assert lines[1] == "  ▸ The broker starts. This usually takes 2 s."
    assert lines.index("The fleet has stopped.") < lines.index("The pipeline has stopped.")
    assert "The broker has stopped." in lines, shown.said
    assert f"The tables are in {shown.folder}" in lines


def test_the_tables_agree_with_the_ledger_of_the_fleet(shown: Shown) -> None:
    ledger = json.loads((shown.folder / "ledger.json").read_text())
    kinds = [ledger[kind] for kind in ("good", "broken", "late", "repeated")]
    assert all(kinds)
    assert sum(kinds) == ledger["sent"] == ledger["acknowledged"]
    key = ("log_id", "partition", "offset")
    bronze = shown.rows("bronze", *key, "topic", "headers")
    silver = shown.rows("silver", *key, "topic", "message_id", "event_time")
    dead = shown.rows("dead_letter", *key, "reason")
    keys = {name: [tuple(row[one] for one in key) for row in rows] for name, rows in
            (("bronze", bronze), ("silver", silver), ("dead", dead))}  # fmt: skip
    assert len(set(keys["bronze"])) == len(bronze) == ledger["acknowledged"]
    assert len(set(keys["silver"] + keys["dead"])) == len(silver) + len(dead)
    reasons = Counter(row["reason"] for row in dead)
    assert reasons["late"] >= ledger["late"]
    assert len(dead) - reasons["late"] == ledger["broken"]
    # What is in neither table repeats a message in silver.
    ids = {(row["topic"], row["message_id"]) for row in silver}
    assert len(ids) == len(silver)
    known = set(keys["silver"] + keys["dead"])
    for row, own in zip(bronze, keys["bronze"], strict=True):
        if own not in known:
            [header] = row["headers"]
            assert (row["topic"], header["value"].decode()) in ids
    assert f"{ledger['sent']:,} in all: every acknowledged message, exactly once" in shown.said


def test_each_window_counts_the_rows_of_silver(shown: Shown) -> None:
    times = [row["event_time"] for row in shown.rows("silver", "event_time")]
    counts: Counter[Any] = Counter()
    for row in shown.rows("gold", "metric", "window_start", "count"):
        counts[row["metric"], row["window_start"]] += row["count"]
    assert {metric for metric, _ in counts} == {"celsius", "speed"}
    for (_, start), count in counts.items():
        assert count == sum(start <= time < start + WINDOW for time in times)


def test_alerts_come_back_over_mqtt_for_trucks_whose_cooling_failed(shown: Shown) -> None:
    ledger = json.loads((shown.folder / "ledger.json").read_text())
    alerts = json.loads((shown.folder / "alerts.json").read_text())
    assert alerts
    assert {alert["device"] for alert in alerts} <= set(ledger["failures"])
    for alert in alerts:
        assert alert["topic"] == f"alerts/{alert['device']}/celsius"
        assert alert["value"] > alert["expected"] + 3
    assert any(f"ALERT on {alert['topic']}:" in shown.said for alert in alerts)


def test_the_page_shows_the_figures(shown: Shown) -> None:
    totals = shown.state["totals"]
    assert totals["online"] == 200
    assert 0 < totals["silver"] <= totals["acknowledged"]
    assert shown.state["windows"][0]["celsius"]["readings"] > 0
    assert shown.state["alerts"]
    assert shown.state["series"]["times"]
    assert shown.foreign == 421


def test_the_page_works_in_a_browser(shown: Shown) -> None:
    if shown.pictures is None:
        pytest.skip("Chromium is not installed (apt-get install chromium)")
    assert shown.pictures.returncode == 0, shown.pictures.stderr


def test_every_query_of_the_grafana_board_has_data(shown: Shown) -> None:
    if shown.unanswered is None:
        pytest.skip("prometheus is not installed: apt-get install prometheus")
    assert shown.unanswered == []


def test_the_notebook_plots_these_tables(shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TABLES", str(shown.folder))
    book = json.loads(NOTEBOOK.read_text())
    names = execute(book)
    plt.close("all")
    assert len(names["silver"]) == len(shown.rows("silver", "device"))
    assert names["twice"] == 0
    if PICTURES:
        NOTEBOOK.write_text(dump(book))


def test_help_and_wrong_folders(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    run = [sys.executable, str(DEMO / "run.py")]
    told = subprocess.run([*run, "--help"], capture_output=True, text=True, check=True).stdout
    assert "--no-browser" in told
    done = subprocess.run(
        [*run, "--folder", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "is not empty" in done.stderr
    assert (tmp_path / "file").read_text() == "mine"
