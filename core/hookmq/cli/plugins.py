"""List the plugins of a configuration or all installed ones, explain which run for a hook, or write a new plugin."""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from hookmq.cli.config_args import add_source, config_of
from hookmq.model.errors import ConfigError

if TYPE_CHECKING:
    from hookmq.hooks.manager import Hooks

EXAMPLES = """\
actions:
  list           the plugins of the configuration, in the order in which they are called (default)
  explain HOOK   the plugins called for a hook, with their order and timeouts
  new NAME       write the project of a new plugin, with tests and workflows

examples:
  hookmq plugins --installed
  hookmq plugins -c hookmq.yaml
  hookmq plugins explain authorize -c hookmq.yaml
  hookmq plugins new doorbell --kind observe --author 'Ada Lovelace <ada@example.org>'"""

KINDS: Final = ("decide", "transform", "observe", "provide", "gateway")
"""The kinds of plugins that `new` can create."""
_NEW: Final = ("kind", "directory", "author", "licence")
"""Options of `new`."""
GROUP: Final = "hookmq.new_plugin"
"""The entry point group of the function that writes a project. That function is in hookmq-testing, which keeps the core
small."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("action", nargs="?", choices=("list", "explain", "new"), default="list")
    parser.add_argument(
        "name",
        nargs="?",
        help="explain: the hook, such as authorize; new: the name of the plugin, such as doorbell",
    )
    add_source(parser)
    parser.add_argument("--installed", action="store_true", help="list all installed plugins")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add = parser.add_argument_group("new").add_argument
    add("--kind", choices=KINDS, help="what the plugin does at first; required")
    add("--directory", metavar="DIR", help="folder to write, new or empty (default: hookmq-NAME)")
    add("--author", metavar="NAME", help="author, such as 'Ada Lovelace <ada@example.org>'")
    add("--licence", metavar="ID", help="Apache-2.0 (default), BSD-3-Clause or MIT")


def run(arguments: argparse.Namespace) -> int:
    """List the plugins, explain a hook, or create a new plugin."""
    if arguments.action == "new":
        return _new(arguments)
    for option in _NEW:
        if getattr(arguments, option) is not None:
            raise ConfigError(f"--{option} is for `hookmq plugins new`")
    if arguments.action == "explain":
        return _explain(arguments)
    if arguments.name is not None:
        raise ConfigError(f"unexpected argument {arguments.name!r}")
    if arguments.installed:
        rows = _installed()
        empty = "no plugins are installed"
    else:
        rows = _configured(_hooks(arguments))
        empty = "the configuration has no plugins; --installed lists those you can add"
    _print(rows, arguments.json, empty)
    return 0


def _new(arguments: argparse.Namespace) -> int:
    import importlib_metadata

    from hookmq.mqtt.errors import HookMQError

    if arguments.name is None:
        raise ConfigError("a name for the plugin is required", hint="hookmq plugins new doorbell")
    if arguments.kind is None:
        raise ConfigError("--kind is required", hint=", ".join(KINDS))
    found = list(importlib_metadata.entry_points(group=GROUP, name="create"))
    if not found:
        raise HookMQError(
            "`hookmq plugins new` needs hookmq-testing, which is not installed "
            "(in a checkout: uv pip install ./testing)"
        )
    given = {
        name: getattr(arguments, name) for name in _NEW if getattr(arguments, name) is not None
    }
    folder, written = found[0].load()(arguments.name, **given)
    print(f"wrote {len(written)} files to {folder}:")
    for path in written:
        print(f"  {path}")
    print(f"next: cd {folder}, then follow README.md, section Development")
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

    if arguments.name is None:
        raise ConfigError("a hook is required", hint=", ".join(SPECS))
    spec = SPECS.get(arguments.name)
    if spec is None:
        hint = nearest(arguments.name, list(SPECS))
        raise ConfigError(f"unknown hook {arguments.name!r}", hint=hint)
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
