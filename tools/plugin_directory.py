"""Print docs/reference/plugins.md, the page of all plugins in this repository, from their distributions' metadata.

python tools/plugin_directory.py > docs/reference/plugins.md
"""

import re
import tomllib
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from hookmq.hooks.specs import SPECS

ROOT = Path(__file__).parents[1]
FOLDERS = {"Plugins": "plugins", "Examples": "examples/plugins"}
"""The sections of the page, and their folders."""
HEAD = """\
| plugin | distribution | purpose | hooks | commands | settings |
|---|---|---|---|---|---|
"""
SETTINGS = ("Configuration", "Settings", "Rules", "Options")
"""The README headings that may describe the settings, in order of preference."""

INTRODUCTION = """\
# Plugins

This page is generated from the metadata of the distributions, and a test keeps it up to date. A plugin is inactive until
the configuration names it; the name is the value of `use:`. [Hooks](hooks.md) explains what each hook does. To write your
own plugin, start with [the tutorial](../tutorials/first-plugin.md). Commands such as `hookmq bench` are available
while their distribution is installed, without an entry in the configuration.
"""


class PluginRow(NamedTuple):
    """One plugin: its name, distribution, folder, one-sentence description, hooks and commands, and where its settings
    are described. A distribution with only commands is listed under the name of its folder.
    """

    name: str
    distribution: str
    folder: str
    summary: str
    hooks: tuple[str, ...]
    commands: tuple[str, ...]
    settings: str


def rows(folder: str, root: Path = ROOT) -> list[PluginRow]:
    """Return the plugins of all distributions in `folder`, sorted by name. Imports the plugins."""
    found = []
    for file in sorted((root / folder).glob("*/pyproject.toml")):
        project = tomllib.loads(file.read_text())["project"]
        place = file.parent.relative_to(root).as_posix()
        readme = (file.parent / project["readme"]).read_text()
        summary = project["description"].rstrip(".")
        commands = tuple(project["entry-points"].get("hookmq.commands", ()))
        plugins = project["entry-points"].get("hookmq.plugins", {file.parent.name: ""})
        for name, target in plugins.items():
            module, _, attribute = target.partition(":")
            kind = getattr(import_module(module), attribute) if target else None
            hooks = tuple(hook for hook in SPECS if callable(getattr(kind, hook, None)))
            at = settings(readme, name)
            found.append(PluginRow(name, project["name"], place, summary, hooks, commands, at))
    return sorted(found)


def settings(readme: str, name: str) -> str:
    """Return the anchor of the plugin `name`'s settings in its README, or "" for the whole page."""
    titles = re.findall(r"^##+ (.+)$", readme, re.M)
    title = next((one for one in (name, *SETTINGS) if one in titles), "")
    return f"#{title.lower().replace(' ', '-')}" if title else ""


def directory() -> str:
    """Return the page as Markdown."""
    text = INTRODUCTION
    for title, folder in FOLDERS.items():
        text += f"\n## {title}\n\n{HEAD}"
        for one in rows(folder):
            page = f"../../{one.folder}/README.md"
            hooks = ", ".join(f"`{hook}`" for hook in one.hooks)
            commands = ", ".join(f"`hookmq {command}`" for command in one.commands)
            text += (
                f"| [{one.name}]({page}) | `{one.distribution}` | {one.summary} | {hooks} | {commands} "
                f"| [settings]({page}{one.settings}) |\n"
            )
    return text


if __name__ == "__main__":
    print(directory(), end="")
