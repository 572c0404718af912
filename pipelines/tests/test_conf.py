"""Test the configuration. Every error is reported with its line and column, and so is every setting that a job lacks."""

from pathlib import Path

import pytest
from hookmq.model.errors import ConfigError
from mqtt_pipelines import sources
from mqtt_pipelines.conf import Conf, load
from mqtt_pipelines.jobs import JOBS
from mqtt_pipelines.settings import Table

CONF = Path(__file__).parents[1] / "conf"
ENVIRON = {"SPARK_TOKEN": "0123456789abcdef"}
TEXT = """\
version: 1
name: plant
source:
  mqtt: {url: "http://127.0.0.1:1890", stream: telemetry, maxOffsetsPerTrigger: 1000, failOnDataLoss: false}
checkpoints: c
trigger: 90s
silver: {schema: "a int", device: {topic_level: 1}, late: 1h}
tables:
  silver: {path: s, format: delta}
  dead_letter: {path: d}
"""


def loaded(folder: Path, text: str, *jobs: str, options: tuple[str, ...] = ()) -> Conf:
    file = folder / "pipeline.yaml"
    file.write_text(text)
    return load(file, options, jobs, ENVIRON)


def test_values(tmp_path: Path) -> None:
    conf = loaded(
        tmp_path, TEXT, "silver", "dead_letter", options=("tables.silver.path=t", "trigger=2m")
    )
    assert (conf.name, conf.trigger, conf.gold) == ("plant", 120.0, None)
    assert conf.tables.silver == Table(path="t", format="delta")
    assert conf.silver is not None
    assert (conf.silver.late, conf.silver.ahead) == (3600.0, 60.0)
    assert conf.silver.watermark == 3720.001
    assert sources.options(conf.source) == {
        "url": "http://127.0.0.1:1890", "stream": "telemetry", "maxOffsetsPerTrigger": "1000",
        "failOnDataLoss": "false", "startingOffsets": "earliest", "minRecordsPerPartition": "10000",
    }  # fmt: skip


def test_there_is_a_file_for_each_job() -> None:
    assert {file.stem for file in CONF.glob("*.yaml")} == set(JOBS)


@pytest.mark.parametrize("job", JOBS)
def test_a_file_for_each_job(job: str) -> None:
    conf = load(CONF / f"{job}.yaml", jobs=[job], environ=ENVIRON)
    assert conf.name == "plant"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("trigger: 90s", "triger: 90s", "pipeline.yaml:6:1: triger: unknown key (did you mean 'trigger'?)"),
        ("late: 1h", "late: soon", "expected a duration such as 5s or 250ms, found the text 'soon'"),
        ("format: delta", "format: delt", "expected one of files, delta, iceberg"),
        ("path: s, ", "", "tables.silver.path: this key is missing"),
        ("stream: telemetry", "strem: telemetry", "source.mqtt: Unknown option strem: did you mean stream?"),
        ("1000", "0", "Option maxOffsetsPerTrigger is '0', but must be a whole number of at least 1"),
        ("topic_level: 1", "topic_level: 1, field: a", "give one of topic_level, field and client_id"),
        ("source:\n", "source:\n  files: x\n", "give mqtt or files, and not both"),
        ("name: plant", "name: a/b", "name: expected 1 to 64 of"),
        ("  dead_letter: {path: d}\n", "", "tables.dead_letter: this key is missing, and job silver needs it"),
        ("version: 1", "version: 2", "version: expected 1"),
        ("checkpoints: c", "checkpoints: ''", "checkpoints: expected a folder or URL, found nothing"),
        ("path: s, ", "path: '', ", "path: expected a folder, a URL or a name, found nothing"),
        ("path: d}", "path: ./s/}", "tables.dead_letter.path: is that of tables.silver, too"),
        ("a int", "a dubble", "silver.schema: 'dubble' in 'a dubble' is not a Spark type; did you mean 'double'?"),
        ("a int", "a int,", "silver.schema: field 2 is empty"),
    ],
)  # fmt: skip
def test_mistakes(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert TEXT.count(old) == 1
    with pytest.raises(ConfigError) as raised:
        loaded(tmp_path, TEXT.replace(old, new), "silver")
    assert said in str(raised.value)
    assert str(raised.value).startswith(f"{tmp_path}/pipeline.yaml:")
    assert "\n" not in str(raised.value)


def test_what_is_needed_is_told_once(tmp_path: Path) -> None:
    text = TEXT.partition("silver:")[0]
    with pytest.raises(ConfigError) as raised:
        loaded(tmp_path, text, "silver", "gold")
    lines = str(raised.value).splitlines()
    assert [line.split(": ")[1] for line in lines] == [
        "silver", "tables.silver", "tables.dead_letter", "gold", "tables.gold",
    ]  # fmt: skip


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="expected a mapping of keys"):
        loaded(tmp_path, "[]")
