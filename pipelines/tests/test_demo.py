"""``make demo-spark`` starts a broker, devices and Spark. Rows appear in gold, and Ctrl-C ends every process."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from broker import ROOT

DEMO = ROOT / "pipelines" / "demo" / "run.py"


@pytest.mark.timeout(
    420
)  # Spark and all else on what may be a busy machine; it ends with the first rows.
def test_until_somebody_stops_it(tmp_path: Path) -> None:
    command = [
        sys.executable, str(DEMO), "--devices", "200", "--seconds", "300", "--folder", str(tmp_path),
    ]  # fmt: skip
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("gold: "):
                process.send_signal(signal.SIGINT)
        code = process.wait()
    said = "".join(lines)
    assert code == 0, said
    assert "fleet: 200 devices are online" in said
    [rows, silver] = re.findall(r"gold: ([\d,]+) rows .* silver: ([\d,]+);", said)[0]
    assert int(rows.replace(",", "")) > 0
    assert int(silver.replace(",", "")) > 0
    assert re.search(r"  truck-\d{4}  celsius +\d+ +-?\d+\.\d\d ", said)
    assert said.endswith("pipeline stopped\nfleet stopped\nbroker stopped\n")
