"""Test that the command reports each error in one line."""

from pathlib import Path

import pytest
from mqtt_pipelines.cli import cause, main
from mqtt_pipelines.jobs import JOBS

CONF = Path(__file__).parents[1] / "conf"
PAGE = Path(__file__).parents[1] / "CONFIG.md"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("run bronz -c x", 2, "no job 'bronz' (did you mean 'bronze'?)"),
        ("run bronze", 2, "-c/--config"),
        ("run bronze -c none.yaml", 2, "none.yaml: no such file or directory"),
        ("chek", 2, "invalid choice: 'chek'"),
        ("check -c {conf} -o tables.bronze.format=delts", 2, "did you mean 'delta'?"),
        ("check gold -c {conf}", 2, "silver: this key is missing, and job gold needs it"),
    ],
)
def test_mistakes(
    arguments: str,
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARK_TOKEN", "0123456789abcdef")
    assert main(arguments.format(conf=CONF / "bronze.yaml").split()) == code
    told = capsys.readouterr()
    assert said in told.err
    assert told.out == ""


def test_lists_and_checks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_TOKEN", "0123456789abcdef")
    assert main(["jobs"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[::2]] == list(JOBS)
    assert main(["check", "bronze", "-c", str(CONF / "bronze.yaml")]) == 0
    assert capsys.readouterr().out.endswith("bronze.yaml is valid\n")


def test_the_page_of_keys_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reference"]) == 0
    said = capsys.readouterr().out
    assert said == PAGE.read_text(), "run: hookmq-pipelines reference > pipelines/CONFIG.md"
    rows = [line for line in said.splitlines() if line.startswith("| `")]
    assert len(rows) > 40
    assert [row for row in rows if row.endswith("|  |")] == []


class OfJava(Exception):
    """A stand-in for pyspark's exception, which cannot be created without Spark."""

    _stackTrace = "at c.D"
    _cause: "OfJava | None" = None


def test_the_cause_of_a_report() -> None:
    report = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: x\n  at line\n"
        "pyspark_mqtt.errors.UnreachableError: http://h:1: Connection refused\n\nJVM stacktrace:\n"
    )
    assert cause(Exception(report)) == "http://h:1: Connection refused"
    within = "[PYTHON_X] Failed when it did x: pyspark_mqtt.errors.MqttError: Stream a: there is none.\n at x"
    assert cause(Exception(within)) == "Stream a: there is none."
    assert "JAVA_HOME" in cause(Exception("[JAVA_GATEWAY_EXITED] Java gateway process exited"))
    assert cause(Exception("one\ntwo")) == "one"
    java = "An error occurred while calling o7.start.\n: java.io.IOException: Mkdirs failed\n\tat x"
    assert cause(Exception(java)) == "java.io.IOException: Mkdirs failed"
    failed = OfJava("[STREAM_FAILED]")
    failed._cause = OfJava("[TASK_WRITE_FAILED]")
    failed._cause._stackTrace = "at a.B\nCaused by: IOException: No space left on device"
    assert cause(failed).startswith("No space is left on a disk that tables or")
    assert cause(ValueError()) == "ValueError"
    assert cause(ConnectionRefusedError(111, "refused")).startswith("Java ended")
    assert cause(Exception("x.SparkSession does not exist in the JVM")).startswith("Java ended")
