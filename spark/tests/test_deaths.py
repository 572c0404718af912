"""Test failures of Spark's processes: a killed driver, and an executor without this package."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyspark
from broker import WAIT, running
from fakelog import FakeLog, record, serving
from pyspark.sql import SparkSession
from pyspark_mqtt.publisher import Message
from queries import available_now

SUPPORT = Path(__file__).parent / "support"
PACKAGE = Path(__file__).parents[1]
# What is on the path by an editable installation is not, in processes that this is on the path of.
STRIPPED = f"""\
import sys
sys.path[:] = [one for one in sys.path if one != {str(PACKAGE)!r}]
"""


def test_a_driver_is_killed_in_the_middle_of_its_batches(
    spark: SparkSession, tmp_path: Path
) -> None:
    with running(tmp_path) as broker:
        broker.publish(Message(f"t/{n % 7}", b"%d" % n) for n in range(6000))
        options = broker.read | {"maxOffsetsPerTrigger": "300"}
        driver = subprocess.Popen(
            [sys.executable, SUPPORT / "driver.py", tmp_path, json.dumps(options)],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
        )
        commits = tmp_path / "checkpoint" / "commits"
        try:
            until = time.monotonic() + 2 * WAIT
            while not (commits / "2").exists():
                assert driver.poll() is None
                assert time.monotonic() < until
                time.sleep(0.01)
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
        assert not (commits / "19").exists(), "it was done before it was killed"
        broker.publish(Message(f"t/{n % 7}", b"%d" % n) for n in range(6000, 6500))
        frame = spark.readStream.format("mqtt").options(**broker.read).load()
        available_now(frame, tmp_path)
    rows = spark.read.parquet(str(tmp_path / "table")).collect()
    assert sorted(int(row.payload) for row in rows) == list(range(6500))
    last: dict[str, int] = {}
    for row in sorted(rows, key=lambda row: (row.partition, row.offset)):
        assert last.get(row.topic, -1) < int(row.payload)
        last[row.topic] = int(row.payload)


def test_an_executor_without_this_package_says_so_and_how_it_gets_it(tmp_path: Path) -> None:
    path = tmp_path / "path"
    path.mkdir()
    (path / "sitecustomize.py").write_text(STRIPPED)
    archive = shutil.make_archive(str(tmp_path / "sent"), "zip", PACKAGE, "pyspark_mqtt")
    home = tmp_path / "home"
    home.mkdir()
    for one in Path(pyspark.__file__).parent.iterdir():
        # But where executors write, and archives of modules that are in the environment, too.
        if one.name not in ("work", "python"):
            (home / one.name).symlink_to(one)
    environ = {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    log = FakeLog({0: [record("t", b"%d" % n) for n in range(50)]})
    with serving(log):
        done = subprocess.run(
            [sys.executable, SUPPORT / "cluster.py", json.dumps(log.options), archive, path],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=os.environ | environ,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    missing, there = done.stdout.splitlines()
    assert missing.startswith("missing ModuleNotFoundError: pyspark_mqtt cannot be imported on ")
    assert (
        "install pyspark-mqtt on every node; or send it with spark.sparkContext.addPyFile"
        in missing
    )
    assert "spark.dataSource.register(pyspark_mqtt.DefaultSource)" in missing
    assert there == "there 50"
