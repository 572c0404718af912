"""Test that docs/tutorials/mqtt-to-delta.md works as written: its files, commands and output."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from broker import HOOKMQ, ROOT, WAIT

PAGE = ROOT / "docs" / "tutorials" / "mqtt-to-delta.md"
FENCE = re.compile(r"^```(?P<info>[^`\n]*)\n(?P<text>.*?)^```$", re.M | re.S)


@pytest.mark.timeout(600)  # Two starts of Spark, one after the other.
def test_the_tutorial(tmp_path: Path) -> None:
    blocks = [(match["info"], dedent(match["text"])) for match in FENCE.finditer(PAGE.read_text())]
    files = {info.partition("file=")[2]: text for info, text in blocks if "file=" in info}
    commands = [line for info, text in blocks if info == "sh" for line in text.splitlines()]
    [shown] = [text for info, text in blocks if info == "text"]

    def run(*command: str | Path) -> str:
        # As in a shell without an activated environment: the program itself names the workers' Python.
        environ = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"}
        environ.pop("PYSPARK_PYTHON", None)
        done = subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=2 * WAIT
        )
        # After the last line, as the interpreter goes, a thread of one of the libraries in C++ and Rust may abort it:
        # "terminate called without an active exception". All has been written by then, and is compared below.
        late = done.returncode == -6 and "without an active exception" in done.stderr
        assert done.returncode == 0 or late, done.stdout + done.stderr
        return done.stdout

    assert commands[0].startswith("make install && source .venv/bin/activate")
    assert "\ninstall:" in (ROOT / "Makefile").read_text()
    # As the page says, but for the ports, which others may have taken.
    (tmp_path / "hookmq.yaml").write_text(re.sub(r"\b18(83|90)\b", "0", files["hookmq.yaml"]))
    run(HOOKMQ, "check", "-c", "hookmq.yaml")
    broker = subprocess.Popen(
        [HOOKMQ, "serve", "--log-format", "json", "-c", "hookmq.yaml"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert broker.stderr is not None
        api = mqtt = ""
        for line in broker.stderr:
            entry = json.loads(line)
            if entry["event"] == "spark_sink.serving":
                api = str(entry["port"])
            if entry["event"] == "node.started":
                mqtt = entry["listeners"]["tcp"].rpartition(":")[2]
                break
        (tmp_path / "to_delta.py").write_text(files["to_delta.py"].replace("1890", api))
        publishing = [shlex.split(line) for line in commands if line.startswith("hookmq pub")]
        assert len(publishing) == 5
        for _, *arguments in publishing:
            run(HOOKMQ, *arguments, "-p", mqtt)
        assert "python to_delta.py" in commands
        assert run(sys.executable, "to_delta.py") == shown
        # "Run it again: nothing is added. Publish, and run it again: only what is new is added."
        run(HOOKMQ, *publishing[2][1:], "-p", mqtt)
        again = run(sys.executable, "to_delta.py")
        assert again.splitlines() == sorted([*shown.splitlines(), "sensors/cellar 11.0"])
    finally:
        broker.terminate()
        broker.communicate(timeout=WAIT)
