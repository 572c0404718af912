"""Test that versions of Spark that cannot read the log can read its landed files. `make spark-versions` installs and
runs them.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from broker import ROOT, WAIT, running
from pyspark_mqtt import schema
from pyspark_mqtt.options import reading
from pyspark_mqtt.publisher import Message
from pyspark_mqtt.reader import MqttBatchReader
from pyspark_mqtt.schema import Column

VERSIONS = ("3.5", "4.0")
SUPPORT = Path(__file__).parents[1] / "support"
HOOKMQ = Path(sys.executable).with_name("hookmq")
# They would lead the other versions to this one's home and modules.
OURS = {"SPARK_HOME", "PYSPARK_SUBMIT_ARGS", "PYTHONPATH", "VIRTUAL_ENV"}


def messages(count: int) -> list[Message]:
    """Return messages with every field that a PUBLISH may have, and messages without any."""
    more: dict[str, Any] = {
        "content_type": "application/json",
        "response_topic": "answer/1",
        "correlation_data": b"\xff\x00",
        "headers": (("message-id", "1"), ("", "ü")),
    }
    return [
        Message(f"plant/{n % 7}/größe", b"\x00\xff%d" % n, 1, False, **(more if n % 3 else {}))
        for n in range(count)
    ]


def expected(options: dict[str, str]) -> list[dict[str, Any]]:
    """Return the log's rows as support/landed.py prints them, read without Spark."""
    reader = MqttBatchReader(reading(options), [Column(name) for name in schema.READABLE])
    rows = [
        row for task in reader.partitions() for one in reader.read(task) for row in one.to_pylist()
    ]
    for row in rows:
        for name in ("payload", "correlation_data"):
            row[name] = None if row[name] is None else row[name].hex().upper()
        row["timestamp"] = round(row["timestamp"].timestamp() * 1e6)
        row["headers"] = [f"{one['key']}={one['value'].hex().upper()}" for one in row["headers"]]
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


@pytest.mark.parametrize("version", VERSIONS)
def test_another_version_reads_landed_files(version: str, tmp_path: Path) -> None:
    python = ROOT / f".venv-spark-{version}" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"Spark {version} is not installed: make spark-versions")
    with running(tmp_path) as broker:
        broker.publish(messages(500))
        streams, lake = str(broker.folder / "streams"), str(tmp_path / "lake")
        subprocess.run(
            [HOOKMQ, "spark", "export", streams, lake, "--tail"], check=True, timeout=WAIT
        )
        rows = expected(broker.read)
    assert len(rows) == 500
    environ = {name: value for name, value in os.environ.items() if name not in OURS}
    done = subprocess.run(
        [python, SUPPORT / "landed.py", tmp_path / "lake" / "all" / "*", tmp_path],
        env=environ | {"PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["version"].startswith(f"{version}.")
    types = {name: kind.simpleString() for name, kind in schema.READABLE.items()}
    assert told["types"] == types
    for way in ("batch", "inferred", "stream"):
        assert told[way] == rows, way
    print(f"Spark {told['version']} read {len(rows)} rows")
