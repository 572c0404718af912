"""Test that docs/tutorials/lakehouse.md works as written, including its configurations, commands, programs and output."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import pytest
from broker import HOOKMQ, ROOT, WAIT
from mqtt_pipelines.build import build
from mqtt_pipelines.cli import parser
from mqtt_pipelines.conf import load
from mqtt_pipelines.run import run
from mqtt_pipelines.transforms.stateful import PROVIDER
from pyspark.sql import SparkSession

PAGE = ROOT / "docs" / "tutorials" / "lakehouse.md"
GENERATOR = ROOT / "pipelines" / "examples" / "lakehouse.py"
FENCE = re.compile(r"^```(?P<info>[^`\n]*)\n(?P<text>.*?)^```$", re.M | re.S)


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, str]]:
    """Run the broker with the configuration from the page. Yield its ports for MQTT and for the read API."""
    command = [str(HOOKMQ), "serve", "--log-format", "json", "-c", "hookmq.yaml"]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as broker:
        try:
            assert broker.stderr is not None
            api = ""
            for line in broker.stderr:
                entry = json.loads(line)
                if entry["event"] == "spark_sink.serving":
                    api = str(entry["port"])
                if entry["event"] == "node.started":
                    yield entry["listeners"]["tcp"].rpartition(":")[2], api
                    break
        finally:
            broker.terminate()
            broker.communicate(timeout=WAIT)


@pytest.mark.timeout(600)
def test_the_tutorial(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = [(match["info"], dedent(match["text"])) for match in FENCE.finditer(PAGE.read_text())]
    files = {info.partition("file=")[2]: text for info, text in blocks if "file=" in info}
    commands = [line for info, text in blocks if info == "sh" for line in text.splitlines()]
    [shown] = [text for info, text in blocks if info == "text"]
    (tmp_path / "hookmq.yaml").write_text(re.sub(r"\b18(83|90)\b", "0", files["hookmq.yaml"]))
    done: list[str] = []
    with serving(tmp_path) as (mqtt, api):

        def perform(command: str) -> None:
            """Run a command from the page, using this test's session, ports and folder."""
            program, *arguments = shlex.split(command)
            name = arguments[0]
            if program == "hookmq-pipelines":
                parsed = parser().parse(arguments)
                assert parsed.once
                (tmp_path / parsed.config).write_text(placed(files[parsed.config]))
                conf = load(tmp_path / parsed.config, [], parsed.jobs)
                run(spark, build(spark, conf, parsed.jobs), conf.name, once=True)
            elif program == "python" and name in files:
                exec(compile(placed(files[name]), name, "exec"), {"__name__": "__main__"})
            elif program == "python":
                assert ROOT / name == GENERATOR
                subprocess.run([sys.executable, GENERATOR, "--port", mqtt], check=True)
            else:
                return
            done.append(command)

        def placed(text: str) -> str:
            return text.replace("lake/", f"{tmp_path}/lake/").replace("1890", api)

        try:
            for command in commands:
                capsys.readouterr()
                perform(command)
            assert capsys.readouterr().out == shown
            assert len(done) == 5
            for command in (done[1], done[-1]):  # "No row is added."
                capsys.readouterr()
                perform(command)
            assert capsys.readouterr().out == shown
        finally:
            spark.conf.unset(PROVIDER)
