"""A part of the conformance and interoperability tests, through random nodes of a cluster. `make conformance-cluster`
runs all of them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "files",
    [
        ("conformance/test_qos.py", "conformance/test_sessions.py", "conformance/test_shared.py"),
        ("interop/test_aiomqtt.py",),
    ],
)
def test_clients_of_random_nodes(files: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", *(str(TESTS / file) for file in files)],
        env={**os.environ, "HOOKMQ_CLUSTER": "3"}, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 15
