"""Test which build is used, and the reason reported for it. `tests/packaging/test_compiled.py` tests the real extension
modules.
"""

import hashlib
import importlib
import os
import sys
from collections.abc import Callable
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType

import hookmq
import pytest
from hookmq.build import (
    SUFFIX,
    SUMS,
    TAG,
    VARIABLE,
    Build,
    _Finder,
    choose,
    choose_or_exit,
)
from hookmq.routing.subscription_tree import SubscriptionTree

Package = Path
LIBRARY = "hookmq__mypyc"


def test_the_tests_run_the_build_they_were_asked_to_run() -> None:
    """The build under test is the one that `make test` or `make test-compiled` selects. Tests of one build therefore
    cannot pass by running the code of the other.
    """
    wanted = os.environ.get(VARIABLE)
    assert hookmq.BUILD.kind == (wanted or hookmq.BUILD.kind)
    assert isinstance(
        SubscriptionTree.match, type(test_the_tests_run_the_build_they_were_asked_to_run)
    ) == (hookmq.BUILD.kind == "pure")
    for name in (
        "routing.subscription_tree",
        "session.inflight",
        "session.session",
        "mqtt.decoder",
        "broker.state",
        "broker.connection",
    ):
        module = importlib.import_module(f"hookmq.{name}")
        compiled = isinstance(module.__spec__.loader, ExtensionFileLoader)  # type: ignore[union-attr]
        assert compiled == (hookmq.BUILD.kind == "compiled"), name


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    """Return a folder laid out like the hookmq package, with two source files and their compiled counterparts."""
    monkeypatch.delenv(VARIABLE, raising=False)
    others = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
    monkeypatch.setattr(sys, "meta_path", others)
    package = tmp_path / "hookmq"
    folder = package / "_compiled" / TAG
    (package / "codec").mkdir(parents=True)
    (folder / "hookmq").mkdir(parents=True)
    for name in ("router.py", "codec/header.py"):
        (package / name).write_text(f"# {name}\n")
    (folder / "hookmq" / f"router{SUFFIX}").write_bytes(b"the module")
    (folder / f"{LIBRARY}{SUFFIX}").write_bytes(b"no library")
    monkeypatch.setitem(sys.modules, LIBRARY, ModuleType(LIBRARY))  # already loaded
    write(package, *FILES)
    return package


FILES = ("../../router.py", "../../codec/header.py", f"hookmq/router{SUFFIX}", LIBRARY + SUFFIX)


def write(package: Package, *names: str) -> Path:
    """Write a manifest that lists `names`, in the format of `core/compiling.py`."""
    folder = package / "_compiled" / TAG
    text = "".join(
        f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names
    )
    file = folder / SUMS
    file.write_text(f"{text}{hashlib.sha256(text.encode()).hexdigest()}  {SUMS}\n")
    return file


def test_modules_compiled_from_this_source_are_used(package: Package) -> None:
    before = len(sys.meta_path)
    assert choose(str(package)) == Build("compiled", f"from this source, for {TAG}")
    assert len(sys.meta_path) == before + 1
    finder = sys.meta_path[0]
    spec = finder.find_spec("hookmq.router", None)
    assert spec is not None
    assert isinstance(spec.loader, ExtensionFileLoader)
    assert spec.origin == str(package / "_compiled" / TAG / "hookmq" / f"router{SUFFIX}")
    assert finder.find_spec("hookmq.mqtt.framing", None) is None
    assert finder.find_spec("hookmq.nothing", None) is None


@pytest.mark.parametrize("name", ["router.py", "codec/header.py"])
def test_one_byte_that_was_edited_and_the_source_runs(package: Package, name: str) -> None:
    before = list(sys.meta_path)
    file = package / name
    file.write_bytes(file.read_bytes()[:-1] + b" ")
    reason = f"the compiled build is from other source: hookmq/{name} differs"
    assert choose(str(package)) == Build("pure", reason, True)
    assert sys.meta_path == before


def test_a_source_that_is_gone_differs(package: Package) -> None:
    (package / "router.py").unlink()
    (package / "codec/header.py").write_text("")
    reason = "the compiled build is from other source: hookmq/router.py and 1 more differ"
    assert choose(str(package)) == Build("pure", reason, True)


def test_nothing_was_compiled(package: Package) -> None:
    (package / "_compiled" / TAG).rename(package / "_compiled" / "of another python")
    assert choose(str(package)) == Build("pure", f"nothing was compiled for {TAG}")


@pytest.mark.parametrize("size", [0, 5])
@pytest.mark.parametrize("name", FILES[2:])
def test_half_a_library_is_not_loaded(package: Package, name: str, size: int) -> None:
    """A truncated library is not loaded, because loading it would kill the process with SIGBUS."""
    before = list(sys.meta_path)
    os.truncate(package / "_compiled" / TAG / name, size)
    reason = f"the compiled build is damaged: {name} was changed"
    assert choose(str(package)) == Build("pure", reason, True)
    assert sys.meta_path == before


@pytest.mark.parametrize("damage", [
    lambda text: b"", lambda text: b"rubbish\n", lambda text: b"\xff\xfe" * 99, lambda text: text[:-1],
    lambda text: text[: len(text) // 2], lambda text: b"".join(text.splitlines(keepends=True)[:-1]),
    lambda text: b"".join(text.splitlines(keepends=True)[1:]), lambda text: text.replace(b"\n", b"\r\n"),
    lambda text: text + b"\n",
])  # fmt: skip
def test_a_manifest_that_is_not_whole_is_not_believed(
    package: Package, damage: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = package / "_compiled" / TAG / SUMS
    manifest.write_bytes(damage(manifest.read_bytes()))
    reason = f"the compiled build is damaged: {SUMS} was changed"
    assert choose(str(package)) == Build("pure", reason, True)
    monkeypatch.setenv(VARIABLE, "compiled")
    with pytest.raises(ImportError, match=r"HOOKMQ_BUILD is 'compiled', but .* is damaged"):
        choose(str(package))


@pytest.mark.parametrize("name", ["../../../outside.py", f"../outside{SUFFIX}", "/dev/null"])
def test_nothing_outside_of_the_package_is_read(package: Package, name: str) -> None:
    folder = package / "_compiled" / TAG
    for outside in (package.parent / "outside.py", folder.parent / f"outside{SUFFIX}"):
        outside.write_text("")
    write(package, *FILES, name)
    reason = f"the compiled build is damaged: {SUMS} was changed"
    assert choose(str(package)) == Build("pure", reason, True)


def test_a_manifest_that_cannot_be_read(package: Package) -> None:
    manifest = package / "_compiled" / TAG / SUMS
    manifest.unlink()
    manifest.mkdir()
    build = choose(str(package))
    assert build.kind == "pure"
    assert build.unused
    assert build.reason.startswith("the compiled build cannot be read: ")


def test_a_library_that_does_not_load_here(
    package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that cannot be loaded on this system is not used. It may need a newer C library, or be on a file system
    mounted with noexec.
    """
    before = list(sys.meta_path)
    monkeypatch.delitem(sys.modules, LIBRARY)
    build = choose(str(package))
    assert build.kind == "pure"
    assert build.unused
    assert build.reason.startswith("the compiled build cannot be loaded: ")
    assert LIBRARY in build.reason
    assert sys.meta_path == before


def test_a_manifest_without_the_library(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, LIBRARY)
    write(package, *FILES[:2])
    reason = f"the compiled build cannot be loaded: No module named '{LIBRARY}'"
    assert choose(str(package)) == Build("pure", reason, True)


def test_the_source_runs_where_it_is_asked_for(
    package: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "pure")
    assert choose(str(package)) == Build("pure", "HOOKMQ_BUILD says so")


def test_compiled_or_an_error(package: Package, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "compiled")
    assert choose(str(package)).kind == "compiled"
    (package / "router.py").write_text("")
    with pytest.raises(ImportError, match=r"HOOKMQ_BUILD is 'compiled', but .* hookmq/router.py"):
        choose(str(package))
    monkeypatch.setenv(VARIABLE, "fast")
    with pytest.raises(ImportError, match=r"'fast': expected 'pure' or 'compiled'"):
        choose(str(package))


def test_the_command_says_in_one_line_what_is_wrong_with_the_variable(
    package: Package, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, "rubbish")
    monkeypatch.setattr("sys.argv", ["/usr/bin/hookmq", "version"])
    with pytest.raises(SystemExit) as left:
        choose_or_exit(str(package))
    assert left.value.code == 2
    assert capsys.readouterr().err == (
        "hookmq: HOOKMQ_BUILD is 'rubbish': expected 'pure' or 'compiled'\n"
    )
    # A program that imports the package gets an ordinary ImportError.
    monkeypatch.setattr("sys.argv", ["program.py"])
    with pytest.raises(ImportError, match="rubbish"):
        choose_or_exit(str(package))
    monkeypatch.setenv(VARIABLE, "pure")
    assert choose_or_exit(str(package)).kind == "pure"


def test_the_build_says_what_it_is() -> None:
    assert str(Build("pure", "why")) == "pure (why)"
    assert not Build("pure", "why").unused
