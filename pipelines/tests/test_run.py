"""Test how queries stop between batches, restart, and end after failures. Also test errors that only Spark detects."""

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakelog import FakeLog, record, serving
from mqtt_pipelines import cli, run, schemas
from mqtt_pipelines.query import Query
from mqtt_pipelines.sinks import Written
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from rows import Log, frame

BATCHES = 4
SILVER = """\
version: 1
name: p
source: {mqtt: {url: URL, stream: s, fetchOffset.numRetries: 0}}
checkpoints: FOLDER/c
silver: {schema: "celsius double", device: {topic_level: 1}}
gold: {metrics: [celsius]}
tables: {silver: {path: FOLDER/s}, dead_letter: {path: FOLDER/d}, gold: {path: FOLDER/g, format: delta}}
"""


class Memory:
    """A sink that records what it receives."""

    name = "memory"

    def __init__(self, then: Callable[[int], None] = lambda batch_id: None) -> None:
        self.batches: list[tuple[int, str, list[int]]] = []
        self.then = then

    def write(self, batch: DataFrame, batch_id: int, app: str) -> Written:
        rows = sorted(row.offset for row in batch.collect())
        self.batches.append((batch_id, app, rows))
        self.then(batch_id)
        return Written(len(rows), version=str(batch_id))


def test_stopped_between_batches_and_gone_on(spark: SparkSession, tmp_path: Path) -> None:
    log = Log()
    for number in range(BATCHES):
        part = tmp_path / f"part-{number}"
        frame(spark, [log.message(b"x")]).coalesce(1).write.parquet(str(part))
        [file] = part.glob("*.parquet")
        (tmp_path / "in").mkdir(exist_ok=True)
        file.rename(tmp_path / "in" / f"{number}.parquet")

    def query(name: str, sink: Memory) -> Query:
        reader = spark.readStream.schema(schemas.RAW).option("maxFilesPerTrigger", 1)
        given = reader.parquet(str(tmp_path / "in"))
        return Query(name, given, sink, str(tmp_path / name), 0.0)

    # Stopped while batch 1 is written: it is finished, and no further one is begun and left without its end.
    stop = threading.Event()
    told: list[tuple[str, int, Written]] = []
    first = Memory(lambda batch_id: stop.set() if batch_id == 1 else None)
    run.run(
        spark, [query("a", first)], "app", stop=stop,
        observe=lambda query, batch_id, written: told.append((query.name, batch_id, written)),
    )  # fmt: skip
    done = len(list((tmp_path / "a" / "commits").glob("[0-9]*")))
    assert [batch_id for batch_id, _, _ in first.batches][:2] == [0, 1]
    assert done >= 2
    assert [one[2].rows for one in told] == [1] * len(told)

    # Goes on after the batches that are done, with the same name to the sink.
    second = Memory()
    run.run(spark, [query("a", second)], "app", once=True)
    assert [batch_id for batch_id, _, _ in second.batches] == list(range(done, BATCHES))
    apps = {app for _, app, _ in [*first.batches, *second.batches]}
    assert len(apps) == 1
    assert apps.pop().startswith("app.a.")

    # One that fails ends the others, and its reason is raised.
    def fail(batch_id: int) -> None:
        if batch_id == 2:
            raise RuntimeError("disk full")

    waiting = Memory()
    with pytest.raises(PySparkException) as raised:
        run.run(spark, [query("b", waiting), query("c", Memory(fail))], "app")
    assert "disk full" in str(raised.value)
    assert spark.streams.active == []


@pytest.mark.parametrize(
    ("master", "expected"),
    [("local", 1), ("local[2]", 2), ("local[16,4]", 16), ("local[*]", 3), ("local[*,4]", 3)],
)
def test_cores_of_a_master(monkeypatch: pytest.MonkeyPatch, master: str, expected: int) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    assert run.cores(master) == expected


def test_python_that_is_too_slow_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    class Started:
        isActive = False
        status = {"message": "Terminated with exception", "isTriggerActive": False}
        lastProgress = None

        def __init__(self, error: str | None) -> None:
            self.error = None if error is None else PySparkException(error)

        def exception(self) -> PySparkException | None:
            return self.error

        def stop(self) -> None:
            pass

    def runs(*errors: str | None) -> int:
        left = list(errors)
        monkeypatch.setattr(run, "start", lambda *_: Started(left.pop(0)))
        query: Any = SimpleNamespace(name="a")
        spark: Any = None
        run.run(spark, [query], "app")
        return len(errors) - len(left)

    assert runs(run.BUSY, f"[X] {run.BUSY}.", None) == 3
    with pytest.raises(PySparkException, match="failed to connect back"):
        runs(*[run.BUSY] * 5)
    with pytest.raises(PySparkException, match="refused"):
        runs("refused", None)


@pytest.mark.parametrize(
    ("job", "options", "code", "said"),
    [
        ("silver", ["source.mqtt.url=http://127.0.0.1:1"], 1, "Connection refused"),
        ("silver", ["source.mqtt.stream=other"], 1, "no stream other"),
        (
            "silver",
            ["silver.schema=celsius double not"],
            2,
            "double, at bigint`: [PARSE_SYNTAX_ERROR]",
        ),
        (
            "gold",
            ["gold.metrics.0=warmth"],
            2,
            "gold.metrics names 'warmth', which is not a column",
        ),
        ("gold", ["gold.metrics.0=device"], 2, "gold.metrics names 'device', which is string"),
        ("gold", ["tables.gold.path=/proc/none"], 1, "/proc/none"),
    ],
)
def test_mistakes_are_one_line(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    job: str, options: list[str], code: int, said: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(run, "session", lambda conf: spark)
    monkeypatch.setattr(run, "on_signals", lambda stop: None)
    monkeypatch.setattr(SparkSession, "stop", lambda self: None)
    start = 1_795_178_400_000_000
    readings = [record("p/d/s", b'{"celsius": 1}', timestamp=start + n * 10**9) for n in range(3)]
    with serving(FakeLog({0: readings})) as log:
        file = tmp_path / "p.yaml"
        file.write_text(SILVER.replace("URL", log.url).replace("FOLDER", str(tmp_path)))
        words = [word for option in options for word in ("-o", option)]
        assert cli.main(["run", job, "-c", str(file), "--once", *words]) == code
    lines = [
        line for line in capsys.readouterr().err.splitlines()
        if line.startswith("hookmq-pipelines: ") and " batch " not in line
    ]  # fmt: skip
    assert len(lines) == 1, lines
    assert said in lines[0]
