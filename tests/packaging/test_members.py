"""Test properties that all distributions in the workspace have in common."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from hookmq.plugin import Plugin
from release import PUBLISHED as RELEASED
from workspace import ROOT, Member, members

ALL = [pytest.param(member, id=member.name) for member in members()]
CLIENTS = {"hookmq-queues-client", "hookmq-webhook-receiver"}
"""Distributions that run in users' own programs. They need no broker. A plugin may share code with its clients."""
LIBRARIES = {"hookmq", "hookmq-toolkit", "hookmq-testing", *CLIENTS}
"""The core, the plugins' shared library, the testing kit and the clients. They are not plugins."""
PLUGINS = [
    pytest.param(member, id=member.name) for member in members() if member.name not in LIBRARIES
]
GROUPS = {"hookmq.plugins", "hookmq.commands"}
"""The groups of entry points that a plugin may have."""


@pytest.mark.parametrize("member", ALL)
def test_it_is_complete(member: Member) -> None:
    package = member.folder / member.package
    assert (package / "__init__.py").is_file()
    assert (package / "py.typed").is_file()
    assert list(member.folder.glob("tests/**/test_*.py"))
    assert (member.folder / member.project["readme"]).read_text().startswith(f"# {member.name}\n")
    assert member.project["requires-python"] == ">=3.11"
    assert member.project["license"] == "Apache-2.0"
    assert member.project["description"]


@pytest.mark.parametrize("member", PLUGINS)
def test_a_plugin_is_named_after_its_folder(member: Member) -> None:
    prefix = "hookmq-example-" if "examples" in member.folder.parts else "hookmq-"
    assert member.name == prefix + member.folder.name.replace("_", "-")


@pytest.mark.parametrize("member", PLUGINS)
def test_a_plugin_has_an_entry_point_in_its_own_package(member: Member) -> None:
    offered = member.project["entry-points"]
    own = {"hookmq.cluster_commands"}
    if member.name == "hookmq-sinks":
        own = {"hookmq.sink_drivers", "hookmq.sink_sources"}
    if member.name == "hookmq-cluster":
        own = {"hookmq.cluster_commands", "hookmq.builds"}
    assert offered.keys() - own in ({"hookmq.plugins"}, {"hookmq.commands"}, GROUPS)
    for group, points in offered.items():
        assert points
        for name, target in points.items():
            assert re.split("[.:]", target)[0] == member.package
            [found] = entry_points(group=group, name=name)
            assert found.value == target
    plugins = offered.get("hookmq.plugins", {})
    # A plugin is found by its distribution's name.
    assert len(plugins) != 1 or {name.replace("_", "-") for name in plugins} == {
        member.name.removeprefix("hookmq-")
    }


@pytest.mark.parametrize("member", PLUGINS)
def test_a_plugin_works_with_every_hookmq_up_to_the_next_major_version(member: Member) -> None:
    """A plugin accepts every version of hookmq up to the next major version, and states this in the form that
    `docs/reference/compatibility.md` recommends.
    """
    needed = [r for r in member.project["dependencies"] if r.startswith("hookmq")]
    assert "hookmq>=0.1,<1" in needed
    assert [r for r in needed if not re.fullmatch(r"hookmq[a-z-]*(\[[a-z,]+\])?>=0\.1,<1", r)] == []
    page = (ROOT / "docs" / "reference" / "compatibility.md").read_text()
    assert 'dependencies = ["hookmq>=0.1,<1"]' in page
    assert f"The default is `{Plugin.requires_api}`" in page


@pytest.mark.parametrize("member", PLUGINS)
def test_a_plugin_depends_on_no_other_plugin(member: Member) -> None:
    others = [
        r
        for r in member.project["dependencies"]
        if r.startswith("hookmq-") and re.split(r"[\[>]", r)[0] not in LIBRARIES
    ]
    assert not others
    sources = "\n".join(path.read_text() for path in (member.folder / member.package).rglob("*.py"))
    imported = set(re.findall(r"^\s*(?:from|import) (hookmq_\w+)", sources, re.MULTILINE))
    shared = {name.replace("-", "_") for name in CLIENTS}
    assert imported <= {member.package, "hookmq_toolkit", *shared}


def test_a_client_needs_no_broker() -> None:
    found = [member for member in members() if member.name in CLIENTS]
    assert len(found) == len(CLIENTS)
    for member in found:
        assert not [r for r in member.project["dependencies"] if r.startswith("hookmq")]
        sources = [path.read_text() for path in (member.folder / member.package).rglob("*.py")]
        imported = re.findall(r"^\s*(?:from|import) (hookmq\w*)", "\n".join(sources), re.MULTILINE)
        assert set(imported) == {member.package}


@pytest.mark.parametrize("member", PLUGINS)
def test_a_plugin_has_no_circles(member: Member) -> None:
    folder = member.folder / member.package
    modules = {
        ".".join(path.relative_to(member.folder).with_suffix("").parts): path
        for path in folder.rglob("*.py")
        if path.name != "__init__.py"
    }
    taken: dict[str, set[str]] = {}
    for name, path in modules.items():
        taken[name] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                taken[name] |= {one.name for one in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                taken[name] |= {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
        taken[name] &= modules.keys()
    # Raises CycleError, which names the modules.
    order = list(TopologicalSorter(taken).static_order())
    assert set(order) == modules.keys()


PUBLISHED = [one for one in ALL if not str(one.id).startswith("hookmq-example-")]


@pytest.mark.parametrize("member", PUBLISHED)
def test_each_distribution_names_its_licence_and_pythons(member: Member) -> None:
    assert member.project["license-files"] == ["LICENSE"]
    oldest = member.project["requires-python"].removeprefix(">=")
    assert f"Programming Language :: Python :: {oldest}" in member.project["classifiers"]


PYTHONS = ("3.11", "3.12", "3.13", "3.14")
"""The versions of Python that CI and `make test-pythons` can test."""


@pytest.mark.parametrize("member", PUBLISHED)
def test_each_distribution_can_be_found_and_judged(member: Member) -> None:
    """Each distribution's metadata names its Python versions, its type information, its operating system and its
    purpose. Users of a package index can then find and judge it."""
    classifiers = member.project["classifiers"]
    assert len(classifiers) == len(set(classifiers))
    assert not [one for one in classifiers if one.startswith("License ::")]  # `license` contains it
    prefix = "Programming Language :: Python :: 3."
    found = tuple(one.removeprefix(prefix[:-2]) for one in classifiers if one.startswith(prefix))
    assert found == PYTHONS
    assert "Typing :: Typed" in classifiers
    for start in ("Development Status :: ", "Intended Audience :: ", "Operating System :: "):
        assert any(one.startswith(start) for one in classifiers)
    assert "mqtt" in member.project["keywords"]
    assert (member.folder / "LICENSE").is_file()


def test_all_distributions_have_the_same_urls() -> None:
    """All distributions have the same URLs. The repository has no public address yet. As soon as one distribution
    states an address, all of them must.
    """
    found = [member.project.get("urls") for member in members() if member.name in IDS]
    assert all(urls == found[0] for urls in found)


IDS = {one.id for one in PUBLISHED}


def test_the_licence_is_the_same_everywhere() -> None:
    folders = [path for pattern in RELEASED for path in ROOT.glob(pattern)]
    found = {path.name for path in folders if (path / "pyproject.toml").exists()}
    assert {"core", "storage", "spark", "pipelines"} <= found
    for folder in folders:
        if (folder / "pyproject.toml").exists():
            assert (folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text(), folder.name


def test_the_extra_all_has_every_published_plugin() -> None:
    [core] = [member for member in members() if member.name == "hookmq"]
    wanted = [f"{one.id}>=0.1,<1" for one in PUBLISHED if one.id not in LIBRARIES]
    assert core.project["optional-dependencies"]["all"] == ["hookmq[speed]", *wanted]


def test_no_two_plugins_have_one_name() -> None:
    names = [
        n for m in members() for n in m.project.get("entry-points", {}).get("hookmq.plugins", {})
    ]
    assert len(names) == len(set(names))


def test_the_lock_file_knows_all_members() -> None:
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    assert set(lock["manifest"]["members"]) == {m.name for m in members()} | {"hookmq-workspace"}


def test_the_core_needs_what_it_needs() -> None:
    [core] = [member for member in members() if member.name == "hookmq"]
    needed = {re.split(r"[<>=!~;\[ ]", r)[0] for r in core.project["dependencies"]}
    assert needed == {"aiohttp", "importlib-metadata", "paho-mqtt", "pluggy", "pyyaml"}


def test_a_copy_of_the_skeleton_is_tested_without_a_warning(tmp_path: Path) -> None:
    copy = tmp_path / "mine"
    shutil.copytree(ROOT / "examples" / "plugins" / "skeleton", copy)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"]
    run = subprocess.run(words, cwd=copy, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stdout
    assert "arning" not in run.stdout + run.stderr
