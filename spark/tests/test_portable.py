"""Test what executors import, and the error that an executor without this package reports.

Spark is not needed, except for its pickler and separate processes.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from fakelog import encode, record
from pyspark.cloudpickle import dumps
from pyspark_mqtt import DefaultSource
from pyspark_mqtt.options import reading, writing
from pyspark_mqtt.schema import Column
from pyspark_mqtt.stream import MqttStreamReader
from pyspark_mqtt.writer import MqttStreamWriter

# As executors have it: Spark's pickler, and what is on the path; the package is found only where `there` is true.
EXECUTOR = """\
import pickle, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "pyspark_mqtt" and not {there}:
            raise ModuleNotFoundError("No module named 'pyspark_mqtt'")
sys.meta_path.insert(0, Finder())
with open({file!r}, "rb") as file:
    made = pickle.load(file)
print(type(made).__name__)
"""


@pytest.fixture(
    params=[
        DefaultSource({"url": "http://a:1"}),
        MqttStreamWriter(writing({"brokerUrl": "mqtt://a"})),
        MqttStreamReader(reading({"url": "http://a:1", "stream": "s"}), [Column("topic")]),
    ],
    ids=lambda made: type(made).__name__,
)
def sent(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """Return a file with the pickled object that Spark sends to executors, and the name of its class."""
    file = tmp_path / "sent"
    file.write_bytes(dumps(request.param))
    return file, type(request.param).__name__


def load(file: Path, there: bool) -> "subprocess.CompletedProcess[str]":
    code = EXECUTOR.format(file=str(file), there=there)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_it_arrives(sent: tuple[Path, str]) -> None:
    done = load(sent[0], there=True)
    assert done.stdout == f"{sent[1]}\n", done.stderr


def test_an_executor_without_the_package_says_so(sent: tuple[Path, str]) -> None:
    said = load(sent[0], there=False).stderr.splitlines()[-1]
    assert said.startswith("ModuleNotFoundError: pyspark_mqtt cannot be imported on ")
    assert "install pyspark-mqtt on every node" in said


READER = """\
import sys
asked = []
class Finder:
    def find_spec(self, name, path=None, target=None):
        asked.append(name)
sys.meta_path.insert(0, Finder())
from pyspark_mqtt.arrow import batches
from pyspark_mqtt.blocks import parse
from pyspark_mqtt.offsets import Range
from pyspark_mqtt.schema import READABLE, Column
with open({file!r}, "rb") as file:
    block = parse(memoryview(file.read()))
[batch] = batches([(block, 7)], [Column(name) for name in READABLE], Range(3, 0, 9), 10_000, "an-id")
print(batch.select(["partition", "log_id", "offset"]).to_pylist())
print([name for name in ("pyarrow", "pandas", "pyspark.pandas") if name in asked])
"""


def test_reading_does_not_import_pandas(tmp_path: Path) -> None:
    """Reading does not import pandas, which would take a second in each new worker. pyarrow imports pandas for
    `pa.scalar` and `pa.array`.
    """
    file = tmp_path / "block"
    rows = [record("a", b"1", headers=[("k", b"v")]), record("b", b"2", client_id=None)]
    file.write_bytes(encode(3, 7, rows))
    code = READER.format(file=str(file))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    ids = [{"partition": 3, "log_id": "an-id", "offset": offset} for offset in (7, 8)]
    assert done.stdout.splitlines() == [str(ids), "['pyarrow']"], done.stderr
