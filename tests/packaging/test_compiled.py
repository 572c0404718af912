"""The compiled build runs however Python is started, and never hides an edited source file."""

import os
import shutil
import subprocess
import sys
from importlib.machinery import ExtensionFileLoader
from pathlib import Path

import hookmq
import hookmq_cluster
import pytest
from hookmq.build import TAG
from hookmq_cluster import inbox
from workspace import ROOT

PACKAGE = ROOT / "core" / "hookmq"
ASK = "import hookmq; print(hookmq.BUILD.kind); print(hookmq.BUILD.reason)"
pytestmark = pytest.mark.skipif(
    hookmq.BUILD.kind != "compiled", reason="the compiled build does not run (make test-compiled)"
)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a copy of the package that tests may edit."""
    folder = tmp_path_factory.mktemp("copy")
    leave = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, folder / "hookmq", ignore=leave)
    return folder


def run(folder: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the package in `folder` as hookmq."""
    environ = {k: v for k, v in os.environ.items() if k != "HOOKMQ_BUILD"}
    return subprocess.run(
        [sys.executable, *words],
        env=environ
        | {"PYTHONPATH": f"{folder}:{ROOT / 'tests' / 'support'}", "PYTHONDONTWRITEBYTECODE": "1"}
        | more,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=160,
    )


def told(folder: Path, **more: str) -> list[str]:
    """Return the kind of build that the package in `folder` uses, and the reason."""
    done = run(folder, "-c", ASK, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_it_runs_and_says_so(copy: Path) -> None:
    assert told(copy) == ["compiled", f"from this source, for {TAG}"]
    assert told(copy, HOOKMQ_BUILD="pure") == ["pure", "HOOKMQ_BUILD says so"]
    done = run(copy, "-m", "hookmq.cli", "version")
    assert f"build        compiled (from this source, for {TAG})\n" in done.stdout


def test_the_cluster_runs_compiled_and_says_so(copy: Path) -> None:
    assert hookmq_cluster.BUILD == hookmq.BUILD
    assert isinstance(inbox.__spec__.loader, ExtensionFileLoader)
    done = run(copy, "-m", "hookmq.cli", "version")
    assert f"build cluster compiled (from this source, for {TAG})\n" in done.stdout


def test_a_spawned_process_runs_the_same(copy: Path) -> None:
    program = (
        "import multiprocessing, hookmq.routing.subscription_tree as router\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.apply(repr, (router.SubscriptionTree.match,)) == repr(router.SubscriptionTree.match))\n"
        "    print(router.__file__)\n"
    )
    (copy / "program.py").write_text(program)
    done = run(copy, "program.py")
    assert done.stdout.splitlines()[0] == "True", done.stderr
    assert str(copy / "hookmq" / "_compiled") in done.stdout


@pytest.mark.parametrize(
    "name", ["routing/subscription_tree.py", "broker/packet_reader.py", "mqtt/reason_codes.py"]
)
def test_one_byte_of_source_that_was_edited_runs(copy: Path, name: str) -> None:
    """An edited source file runs even if only one byte has changed. This includes files that are
    not compiled, because their constants are compiled into other modules.
    """
    file = copy / "hookmq" / name
    source = file.read_bytes()
    file.write_bytes(source + b"\n")
    try:
        why = f"the compiled build is from other source: hookmq/{name} differs"
        assert told(copy) == ["pure", why]
        done = run(copy, "-m", "hookmq.cli", "version")
        assert f"build        pure ({why})\n" in done.stdout
        done = run(copy, "-c", ASK, HOOKMQ_BUILD="compiled")
        assert done.returncode == 1
        assert f"ImportError: HOOKMQ_BUILD is 'compiled', but {why}" in done.stderr
    finally:
        file.write_bytes(source)
    assert told(copy)[0] == "compiled"


@pytest.mark.timeout(600)
def test_both_builds_live_the_same_lives() -> None:
    """Both builds behave identically. The same seeds produce the same traces: every packet, record
    and event, in the same order.
    """
    lives = (
        "from simulator import make_plan, run\n"
        "print([run(make_plan(seed)).hash for seed in range(12)])"
    )
    told = [run(ROOT / "core", "-c", lives, HOOKMQ_BUILD=build) for build in ("pure", "compiled")]
    assert not any(done.returncode for done in told), [done.stderr for done in told]
    assert told[0].stdout == told[1].stdout


@pytest.mark.timeout(600)
def test_the_wheel_is_for_this_platform_and_runs_compiled(tmp_path: Path) -> None:
    wheels = sorted((ROOT / "dist").glob("hookmq-*-cp*.whl"))
    assert wheels, "make compiled leaves one in dist/"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = ["-m", "pip", "install", "--quiet", "--no-deps"]
    subprocess.run([python, *install, wheels[-1]], check=True)
    site = next((tmp_path / "venv" / "lib").glob("python*/site-packages"))
    assert told(site)[0] == "compiled"
    with (site / "hookmq" / "mqtt" / "topics.py").open("a") as file:
        file.write("\n")
    why = "the compiled build is from other source: hookmq/mqtt/topics.py differs"
    assert told(site) == ["pure", why]
