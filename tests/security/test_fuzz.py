"""Run the fuzzer briefly with constant inputs. Use `python tests/security/fuzz.py --seconds N` for
a longer run.
"""

import subprocess
import sys
from pathlib import Path

import hookmq
import pytest

FUZZ = [sys.executable, str(Path(__file__).with_name("fuzz.py"))]


def fuzz(*arguments: str) -> list[str]:
    ended = subprocess.run(
        [*FUZZ, "--seconds", "600", *arguments],
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout.splitlines()


def test_a_moment_of_every_target(tmp_path: Path) -> None:
    """Every target runs briefly without a failure. The run also shows that mutation works: it
    reaches lines that the initial inputs did not.
    """
    lines = fuzz("--seed", "1", "--inputs", "250", "--keep", str(tmp_path))
    assert [line.partition(":")[0] for line in lines] == [
        "codec",
        "connection",
        "topics",
        "proxy",
        "config",
    ]
    assert all(line.endswith(", well") for line in lines)
    reached = [int(line.split(", ")[2].split()[0]) for line in lines]
    least = [400, 1200, 100, 50, 300]
    if hookmq.BUILD.kind == "compiled":  # line coverage is not available
        least = [0, 0, -1, *least[3:]]
    assert all(have > want for have, want in zip(reached, least, strict=True)), reached


def test_the_same_seed_is_the_same_run(tmp_path: Path) -> None:
    once = fuzz("--seed", "5", "--inputs", "400", "--target", "codec", "--keep", str(tmp_path))
    assert once == fuzz(
        "--seed", "5", "--inputs", "400", "--target", "codec", "--keep", str(tmp_path)
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("target", "inputs"),
    [
        ("connection", 5_000), ("config", 8_000), ("proxy", 30_000), ("topics", 40_000), ("codec", 80_000),
    ],
)  # fmt: skip
def test_longer(tmp_path: Path, target: str, inputs: int) -> None:
    (line,) = fuzz(
        "--seed", "2", "--target", target, "--inputs", str(inputs), "--keep", str(tmp_path)
    )
    assert line.startswith(f"{target}: seed 2, {inputs} inputs, ")
