"""The directory of plugins matches the metadata of the workspace's distributions."""

from pathlib import Path

import pytest
from plugin_directory import FOLDERS, directory, rows, settings
from workspace import ROOT, members

PAGE = ROOT / "docs" / "reference" / "plugins.md"


def test_the_page_of_plugins_is_up_to_date() -> None:
    wanted = "run: python tools/plugin_directory.py > docs/reference/plugins.md"
    assert PAGE.read_text("utf-8") == directory(), wanted


def test_every_plugin_of_the_workspace_is_listed() -> None:
    offered = {
        name
        for member in members()
        for name in member.project.get("entry-points", {}).get("hookmq.plugins", {})
    } | {"bench"}
    listed = [one.name for folder in FOLDERS.values() for one in rows(folder)]
    assert sorted(listed) == sorted(offered)


def test_a_new_folder_is_found_with_its_hooks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "plugins" / "bell"
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "hookmq-bell"\ndescription = "Rings."\nreadme = "README.md"\n'
        '[project.entry-points."hookmq.plugins"]\nbell = "hookmq_bell_of_a_test:Bell"\n'
        '[project.entry-points."hookmq.commands"]\nbell = "nothing_is_imported:f"\nring = "nothing:f"\n'
    )
    (folder / "README.md").write_text("# hookmq-bell\n\n## Settings\n")
    (folder / "hookmq_bell_of_a_test.py").write_text(
        "class Bell:\n    def on_publish(self): ...\n    def on_connect(self): ...\n    def ring(self): ...\n"
    )
    monkeypatch.syspath_prepend(folder)
    [row] = rows("plugins", tmp_path)
    assert row == (
        "bell",
        "hookmq-bell",
        "plugins/bell",
        "Rings",
        ("on_connect", "on_publish"),
        ("bell", "ring"),
        "#settings",
    )


def test_the_settings_are_under_the_best_heading() -> None:
    readme = "# a\n## Rules\n## Configuration\n## a_filter\n"
    assert settings(readme, "a") == "#configuration"
    assert settings(readme, "a_filter") == "#a_filter"
    assert settings("# a\n", "a") == ""
