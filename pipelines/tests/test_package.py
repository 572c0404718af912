"""Test that ``spark-submit`` can run a job with only the archive. Executors on a cluster do not need HookMQ."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from broker import HOOKMQ, TOKEN, WAIT, running
from mqtt_pipelines.cli import main
from pyspark.sql import SparkSession
from pyspark_mqtt.publisher import Message

CONF = Path(__file__).parents[1] / "conf"
SUBMIT = Path(sys.executable).with_name("spark-submit")
IMPORT_ALL = """
import importlib, pkgutil, sys
sys.modules["hookmq"] = None
import mqtt_pipelines
names = [m.name for m in pkgutil.walk_packages(mqtt_pipelines.__path__, "mqtt_pipelines.")]
own = {"mqtt_pipelines.conf", "mqtt_pipelines.cli", "mqtt_pipelines.cli_maintain", "mqtt_pipelines.__main__"}
for name in sorted(set(names) - own):
    importlib.import_module(name)
print(len(names), "pandas" in sys.modules)
"""


def test_only_the_command_and_its_configuration_need_hookmq() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL],
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    modules, pandas = done.stdout.split()
    assert int(modules) > 20
    assert pandas == "False"


def test_the_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["package", str(tmp_path / "new" / "folder")]) == 0
    said = capsys.readouterr().out
    archive = tmp_path / "new" / "folder" / "mqtt_pipelines.zip"
    assert str(archive) in said
    first = archive.read_bytes()
    with zipfile.ZipFile(archive) as packed:
        names = packed.namelist()
    assert {"mqtt_pipelines/transforms/silver.py", "pyspark_mqtt/__init__.py"} <= set(names)
    assert not [name for name in names if "__pycache__" in name]
    main(["package", str(archive.parent)])
    assert archive.read_bytes() == first


def test_a_job_by_spark_submit(spark: SparkSession, tmp_path: Path) -> None:
    main(["package", str(tmp_path)])
    names = (
        "spark.ui.enabled", "spark.driver.host", "spark.driver.defaultJavaOptions", "spark.driver.extraJavaOptions",
        "spark.sql.shuffle.partitions",
    )  # fmt: skip
    settings = [f"--conf={name}={value}" for name in names if (value := spark.conf.get(name, None))]
    with running(tmp_path, stream={"name": "telemetry"}) as broker:
        good = [Message("plant/d1/state", b'{"celsius": %d}' % n) for n in range(50)]
        broker.publish([*good, *[Message("plant/d1/state", b"no JSON")] * 3])
        done = subprocess.run(
            [
                SUBMIT, "--master", "local[1]", *settings, "--py-files", tmp_path / "mqtt_pipelines.zip",
                tmp_path / "pipelines.py", "run", "silver", "--once", "-c", CONF / "silver.yaml",
                "-o", f"source.mqtt.url=http://127.0.0.1:{broker.api_port}",
                "-o", "source.mqtt.consumerGroup=plant", "-o", "spark.master=local[7]", "-o", "silver.event_time.field=",
                "-o", "silver.schema=celsius int",
            ],
            cwd=tmp_path,
            env=os.environ | {"SPARK_TOKEN": TOKEN, "PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=WAIT * 2,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        said = subprocess.run(
            [HOOKMQ, "spark", "status", tmp_path / "streams", "--json"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert json.loads(said.stdout)["consumers"]["plant.silver"]["dead_letters"] == 3
    rows = spark.read.parquet(str(tmp_path / "data" / "silver")).collect()
    assert sorted(row.celsius for row in rows) == list(range(50))
    # What spark-submit is told counts: one partition of shuffles, not the configuration's four.
    state = tmp_path / "data" / "checkpoints" / "silver" / "state" / "0"
    assert [folder.name for folder in state.iterdir() if folder.name.isdecimal()] == ["0"]
