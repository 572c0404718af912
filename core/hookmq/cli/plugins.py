"""List the plugins of a configuration, or all installed ones, and explain which of them run for a hook."""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hookmq.cli.config_args import add_source, config_of
from hookmq.model.errors import ConfigError

if TYPE_CHECKING:
    from hookmq.hooks.manager import Hooks

EXAMPLES = """\
actions:
  list           the plugins of the configuration, in the order in which they are called (default)
  explain HOOK   the plugins called for a hook, with their order and timeouts

examples:
  hookmq plugins --installed
  hookmq plugins -c hookmq.yaml
  hookmq plugins explain authorize -c hookmq.yaml"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("action", nargs="?", choices=("list", "explain"), default="list")
    parser.add_argument("hook", nargs="?", help="explain: the hook, such as authorize")
    add_source(parser)
    parser.add_argument("--installed", action="store_true", help="list all installed plugins")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """List the plugins, or explain a hook."""
    if arguments.action == "explain":
        return _explain(arguments)
    if arguments.hook is not None:
        raise ConfigError(f"unexpected argument {arguments.hook!r}")
    if arguments.installed:
        rows = _installed()
        empty = "no plugins are installed"
    else:
        rows = _configured(_hooks(arguments))
        empty = "the configuration has no plugins; --installed lists those you can add"
    _print(rows, arguments.json, empty)
    return 0


def _hooks(arguments: argparse.Namespace) -> "Hooks":
    from hookmq.config.plugins import build
    from hookmq.hooks.manager import Hooks

    return Hooks(build(config_of(arguments)))


def _installed() -> list[dict[str, Any]]:
    from hookmq.config.plugins import accepts
    from hookmq.hooks.discovery import installed, load
    from hookmq.hooks.specs import HOOK_API, SPECS
    from hookmq.model.errors import PluginError

    rows = []
    found = installed()
    for one in found:
        api, hooks, problem = "", [], ""
        try:
            kind = load(one)
            api = kind.requires_api
            hooks = [name for name in SPECS if callable(getattr(kind, name, None))]
            if not accepts(api, HOOK_API):
                problem = f"requires plugin API {api}; this HookMQ has {HOOK_API}"
        except PluginError as error:
            problem = error.message
        if sum(other.name == one.name for other in found) > 1:
            problem = "two distributions have a plugin of this name"
        row = {"name": one.name, "distribution": one.distribution, "version": one.version}
        rows.append({**row, "api": api, "hooks": hooks, "problem": problem})
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
            **_scope(one.entry.listeners, one.entry.filters),
            "required": one.entry.required,
        }
        for one in hooks.plugins
    ]


def _scope(listeners: Sequence[str] | None, filters: Sequence[str] | None) -> dict[str, Any]:
    return {
        "listeners": "all" if listeners is None else list(listeners),
        "filters": "all" if filters is None else list(filters),
    }


def _explain(arguments: argparse.Namespace) -> int:
    from hookmq.config.diagnostics import nearest
    from hookmq.hooks.specs import SPECS

    if arguments.hook is None:
        raise ConfigError("a hook is required", hint=", ".join(SPECS))
    spec = SPECS.get(arguments.hook)
    if spec is None:
        hint = nearest(arguments.hook, list(SPECS))
        raise ConfigError(f"unknown hook {arguments.hook!r}", hint=hint)
    rows = [dataclasses.asdict(row) for row in _hooks(arguments).explain(spec.name)]
    if not arguments.json:
        timeout = "" if spec.timeout is None else f", must answer within {spec.timeout:g} s"
        print(f"{spec.signature}: {spec.kind}{timeout}")
        rows = [{**row, **_scope(row["listeners"], row["filters"])} for row in rows]
    _print(rows, arguments.json, "no plugin of the configuration implements this hook")
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
