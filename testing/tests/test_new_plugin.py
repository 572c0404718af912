"""Test `hookmq plugins new` with each kind of plugin."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from hookmq.cli import main
from hookmq.cli.plugins import KINDS as OFFERED
from hookmq.config.plugins import FIRST_PARTY
from hookmq.plugin import ConfigError, Plugin
from hookmq_testing import Harness, make_plugin
from hookmq_testing.new_plugin import KINDS, LICENCES, LONGEST, NewPlugin, create

ROOT = Path(__file__).parents[2]
ADA = "Ada Lovelace <ada@example.org>"
EVERY = pytest.mark.parametrize("kind", KINDS)


@EVERY
@pytest.mark.parametrize("name", ["doorbell", "door_bell2", "x" * LONGEST])
def test_the_texts_of_a_project(kind: str, name: str) -> None:
    plugin = NewPlugin(name, kind, ADA)
    texts = plugin.project()
    assert not [path for path, text in texts.items() if "@@" in text]
    project = tomllib.loads(texts["pyproject.toml"])["project"]
    assert project["name"] == f"hookmq-{name.replace('_', '-')}"
    assert project["authors"] == [{"name": "Ada Lovelace", "email": "ada@example.org"}]
    assert (project["license"], project["license-files"]) == ("Apache-2.0", ["LICENSE"])
    assert project["dependencies"] == ["hookmq>=0.1,<1"]
    assert "Typing :: Typed" in project["classifiers"]
    [(entry, target)] = project["entry-points"]["hookmq.plugins"].items()
    module, _, kind_name = target.partition(":")
    assert (entry, module) == (name, f"hookmq_{name}")
    tree = ast.parse(texts[f"{module}/__init__.py"])
    assert kind_name in [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    assert texts[f"{module}/py.typed"] == ""
    ast.parse(texts[f"tests/test_{name}.py"])
    assert texts["LICENSE"] == (ROOT / "LICENSE").read_text()


@EVERY
def test_the_workflows_test_and_publish(kind: str) -> None:
    texts = NewPlugin("door_bell", kind).project()
    test = yaml.safe_load(texts[".github/workflows/test.yml"])
    assert len(test["jobs"]["test"]["strategy"]["matrix"]["hookmq"]) == 2
    publish = yaml.safe_load(texts[".github/workflows/publish.yml"])["jobs"]
    assert publish["publish"]["permissions"] == {"id-token": "write"}
    assert publish["publish"]["steps"][-1]["uses"] == "pypa/gh-action-pypi-publish@release/v1"
    assert "${{ matrix.hookmq }}" in texts[".github/workflows/test.yml"]


@EVERY
def test_the_readme_has_a_configuration_and_every_setting(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = create(f"read_{kind}", kind, str(tmp_path / "new"))
    readme = (folder / "README.md").read_text()
    [block] = re.findall(r"```yaml\n(.*?)```", readme, re.S)
    [entry] = yaml.safe_load(block)["plugins"]
    monkeypatch.syspath_prepend(folder)
    module = import_module(f"hookmq_read_{kind}")
    plugin: type[Plugin] = getattr(module, f"Read{kind.capitalize()}Plugin")
    assert entry["use"] == f"read_{kind}"
    fields = set(plugin.Config.__dataclass_fields__)
    assert set(entry["config"]) <= fields
    assert set(re.findall(r"^\| `(\w+)` \|", readme, re.M)) == fields
    make_plugin(plugin, entry["config"])


def test_only_a_gateway_describes_a_protocol() -> None:
    texts = {kind: NewPlugin("bell", kind).project()["README.md"] for kind in KINDS}
    assert [kind for kind, text in texts.items() if "## Protocol" in text] == ["gateway"]
    assert "\n\n\n" not in "".join(texts.values())


def test_the_session_in_the_readme_of_a_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The README shows the lines that a device sends to the gateway, and those that it receives."""
    folder, _ = create("shown_lines", "gateway", str(tmp_path / "new"))
    [block] = re.findall(r"```text\n(.*?)```", (folder / "README.md").read_text(), re.S)
    monkeypatch.syspath_prepend(folder)
    module = import_module("hookmq_shown_lines")
    client_id, *shown = block.splitlines()
    sent: list[str] = []

    async def send(line: str) -> None:
        sent.append(line)

    gate = make_plugin(module.ShownLinesPlugin, id="gate")
    with Harness([gate], config={"auth": {"default": "allow"}}) as harness:
        broker, run = harness.handle("gate"), harness.clock.run
        work = module.Device.connect(broker, "devices", client_id, None, send, lambda: None)
        device = run(work)
        harness.clock.spawn(device.receive(), lambda result, error: None)
        for line in shown:
            if line.startswith("> "):
                harness.connect().publish(f"devices/{client_id}/set", line[2:].encode())
                harness.settle()
            elif line.split(" ")[0] not in ("ok", "error"):
                run(device.line(line))
    assert sent == [line for line in shown if line.split(" ")[0] in ("ok", "error", ">")]
    assert {line.split(" ")[0] for line in sent} == {"ok", "error", ">"}


@EVERY
def test_ruff_accepts_the_shortest_and_the_longest_name(kind: str, tmp_path: Path) -> None:
    for name in ("x", "abcdefghij_klmnopqrs_tuvwxyz_12"[:LONGEST]):
        create(name, kind, str(tmp_path / name))
    ruff = [sys.executable, "-m", "ruff"]
    for words in (
        [*ruff, "check", "--no-cache", "."],
        [*ruff, "format", "--no-cache", "--diff", "."],
    ):
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("licence", LICENCES)
def test_the_licence_names_its_holder_and_year(licence: str) -> None:
    text = NewPlugin("bell", "decide", ADA, licence, 2030).project()["LICENSE"]
    assert ("2030" in text and "Ada Lovelace" in text) is (licence != "Apache-2.0")
    anonymous = NewPlugin("bell", "decide", "", licence, 2030).project()
    assert "authors" not in tomllib.loads(anonymous["pyproject.toml"])["project"]
    assert ("the authors of hookmq-bell" in anonymous["LICENSE"]) is (licence != "Apache-2.0")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"name": "Door-Bell"}, "'Door-Bell' is not a name for a plugin.*such as door_bell"),
        ({"name": "door__bell"}, "such as door_bell"),
        ({"name": "1door"}, "starting with a letter"),
        ({"name": ""}, "is not a name"),
        ({"name": "x" * (LONGEST + 1)}, f"at most {LONGEST}"),
        ({"name": "../x"}, "is not a name"),
        ({"name": "hookmq_door"}, "leave out hookmq.*such as door"),
        ({"name": "storage"}, "one of HookMQ's own plugins"),
        ({"kind": "think"}, "unknown kind 'think'.*known: decide"),
        ({"licence": "GPL"}, "unknown licence 'GPL'.*known: Apache-2.0"),
        ({"author": "<ada@example.org>"}, "is not an author"),
        ({"author": "Ada\n[evil]"}, "is not an author"),
    ],
)
def test_a_wrong_value_is_refused_and_nothing_is_written(
    given: dict[str, str], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        create(**{"name": "bell", "kind": "decide", "directory": str(tmp_path / "new"), **given})
    assert not (tmp_path / "new").exists()


def test_quotes_in_an_author_stay_quoted() -> None:
    text = NewPlugin("bell", "decide", 'Ada "the first" Lovelace').project()["pyproject.toml"]
    assert tomllib.loads(text)["project"]["authors"] == [{"name": 'Ada "the first" Lovelace'}]


def test_only_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    folder, written = create("bell", "decide", str(tmp_path / "empty"))
    found = [one.relative_to(folder).as_posix() for one in folder.rglob("*") if one.is_file()]
    assert sorted(found) == written
    with pytest.raises(ConfigError, match="exists and is not empty"):
        create("bell", "decide", str(tmp_path / "empty"))
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="exists and is not a folder"):
        create("bell", "decide", str(tmp_path / "file"))


def test_every_plugin_of_the_project_has_a_name_that_is_taken() -> None:
    assert {"storage", "webhook"} <= FIRST_PARTY.keys()


def test_the_command_offers_these_kinds_and_writes_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tuple(KINDS) == OFFERED
    monkeypatch.chdir(tmp_path)
    assert (
        main(
            [
                "plugins",
                "new",
                "door_bell",
                "--kind",
                "observe",
                "--author",
                ADA,
                "--licence",
                "MIT",
            ]
        )
        == 0
    )
    shown = capsys.readouterr().out
    assert shown.startswith("wrote 9 files to hookmq-door-bell:\n  .github/workflows/publish.yml\n")
    assert "Ada Lovelace" in (tmp_path / "hookmq-door-bell" / "LICENSE").read_text()
    assert main(["plugins", "new", "door_bell", "--kind", "observe"]) == 2
    assert "hookmq-door-bell exists and is not empty (use --directory)" in capsys.readouterr().err
