"""List the plugins a configuration uses, or all that are installed, and explain what runs for a hook."""

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hookmq.cli.source import add_source, config_of
from hookmq.errors import ConfigError

if TYPE_CHECKING:
    from hookmq.hooks.manager import Hooks

EXAMPLES = """\
actions:
  list           the plugins of the configuration, in the order of their calls (the default)
  explain HOOK   what is called for a hook, in which order, with which timeouts

examples:
  hookmq plugins --installed
  hookmq plugins -c hookmq.yaml
  hookmq plugins explain authorize -c hookmq.yaml"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("action", nargs="?", choices=("list", "explain"), default="list")
    parser.add_argument("hook", nargs="?", help="explain: the hook, such as authorize")
    add_source(parser)
    parser.add_argument("--installed", action="store_true", help="list what is installed")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """List or explain."""
    if arguments.action == "explain":
        return _explain(arguments)
    if arguments.hook is not None:
        raise ConfigError(f"plugins list takes no {arguments.hook!r}")
    if arguments.installed:
        rows = _installed()
        empty = "no plugins are installed"
    else:
        rows = _configured(_hooks(arguments))
        empty = "the configuration names no plugins; --installed lists what there is"
    _print(rows, arguments.json, empty)
    return 0


def _hooks(arguments: argparse.Namespace) -> "Hooks":
    from hookmq.config.plugins import build
    from hookmq.hooks.manager import Hooks

    return Hooks(build(config_of(arguments)))


def _installed() -> list[dict[str, Any]]:
    from hookmq.config.plugins import accepts
    from hookmq.errors import PluginError
    from hookmq.hooks.discovery import installed, load
    from hookmq.hooks.specs import HOOK_API, SPECS

    rows = []
    found = installed()
    for one in found:
        row: dict[str, Any] = {
            "name": one.name,
            "distribution": one.distribution,
            "version": one.version,
            "api": "",
            "hooks": [],
            "problem": "",
        }
        try:
            kind = load(one)
            row["api"] = kind.requires_api
            row["hooks"] = [name for name in SPECS if callable(getattr(kind, name, None))]
            if not accepts(kind.requires_api, HOOK_API):
                row["problem"] = f"works with API {kind.requires_api}, this is {HOOK_API}"
        except PluginError as error:
            row["problem"] = error.message
        if sum(other.name == one.name for other in found) > 1:
            row["problem"] = "two distributions offer this name"
        rows.append(row)
    return rows


def _configured(hooks: "Hooks") -> list[dict[str, Any]]:
    return [
        {
            "id": one.id,
            "use": one.entry.use,
            "distribution": one.distribution,
            "version": one.version,
            "hooks": [
                name
                for name, found in hooks.registry.items()
                if any(implemented.instance is one for implemented in found)
            ],
            "listeners": list(one.entry.listeners) if one.entry.listeners is not None else "all",
            "filters": list(one.entry.filters) if one.entry.filters is not None else "all",
            "required": one.entry.required,
        }
        for one in hooks.plugins
    ]


def _explain(arguments: argparse.Namespace) -> int:
    import dataclasses

    from hookmq.config.problems import nearest
    from hookmq.hooks.specs import SPECS

    if arguments.hook is None:
        raise ConfigError("explain which hook?", hint=", ".join(SPECS))
    spec = SPECS.get(arguments.hook)
    if spec is None:
        hint = nearest(arguments.hook, list(SPECS))
        raise ConfigError(f"there is no hook {arguments.hook!r}", hint=hint)
    rows = [dataclasses.asdict(row) for row in _hooks(arguments).explain(spec.name)]
    if arguments.json:
        _print(rows, True, "")
        return 0
    timeout = "" if spec.timeout is None else f", answers within {spec.timeout:g} s"
    print(f"{spec.signature}: {spec.kind}{timeout}")
    for row in rows:
        row["listeners"] = "all" if row["listeners"] is None else list(row["listeners"])
        row["filters"] = "all" if row["filters"] is None else list(row["filters"])
    _print(rows, False, "no plugin of the configuration implements it")
    return 0


def _print(rows: Sequence[dict[str, Any]], as_json: bool, empty: str) -> None:
    if as_json:
        print(json.dumps(list(rows), indent=2))
    elif not rows:
        print(empty)
    else:
        names = [
            name for name in rows[0] if any(row[name] not in ("", [], (), None, 0) for row in rows)
        ]
        cells = [names, *([_cell(row[name]) for name in names] for row in rows)]
        widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
        for line in cells:
            text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            print(text.rstrip())


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "-"
    return "-" if value is None else str(value)
