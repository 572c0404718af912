"""``hookmq admin config`` and ``reload``: show, check and reload the configuration of a running broker."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hookmq.plugin import ConfigError

from hookmq_admin.api_client import ApiClient
from hookmq_admin.tables import print_table, shown


def register(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the commands with `command`."""
    config = command("config", "Print the configuration without secrets, or check a file", _config)
    words = config.add_argument_group("check a file, and compare it with the running configuration")
    words.add_argument("check", nargs="?", choices=("check",), help="the word check")
    words.add_argument("file", nargs="?", metavar="FILE", help="the file; - reads stdin")
    command("reload", "Reload the configuration and print the changes", _reload)


def _config(api: ApiClient, arguments: argparse.Namespace) -> Any:
    if arguments.check is not None:
        return _check(api, arguments)
    found = api.ask("GET", "/configuration")
    if arguments.json:
        return found
    sys.stdout.write(found["yaml"])
    return None


def _check(api: ApiClient, arguments: argparse.Namespace) -> int:
    """Print the mistakes in a file, or the changes that loading it would make. Return 2 if there are mistakes, as
    ``hookmq check`` does.
    """
    name = arguments.file
    if name is None:
        raise ConfigError("hookmq admin config check: the name of a file is missing")
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name}: {error}") from error
    found = api.ask("POST", "/configuration/check", body={"yaml": text})
    if arguments.json:
        print(json.dumps(found, indent=2))
    elif found["valid"]:
        _print_changes(found["changes"])
    for one in () if arguments.json else found["mistakes"]:
        place = f"{name}:{one['line']}:{one['column']}" if one["line"] else name
        hint = f" ({shown(one['hint'])})" if one["hint"] else ""
        print(f"{place}: {shown(one['message'])}{hint}", file=sys.stderr)
    return 0 if found["valid"] else 2


def _reload(api: ApiClient, arguments: argparse.Namespace) -> Any:
    found = api.ask("POST", "/configuration/reload")
    if arguments.json:
        return found
    _print_changes(found)
    return None


def _print_changes(found: Any) -> None:
    rows = [{**one, "when": "now"} for one in found["applied"]]
    rows += [{**one, "when": "after a restart"} for one in found["needs_restart"]]
    if rows:
        print_table(rows, ("path", "old", "new", "when"))
    else:
        print("no changes")
