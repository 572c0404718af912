"""Show the configuration in force, describe it as JSON Schema, or write one to start from."""

import argparse
import sys
from pathlib import Path

from hookmq.cli.source import add_source, config_of
from hookmq.errors import ConfigError

EXAMPLES = """\
actions:
  show        every value and where it came from, plugins' own included; secrets are masked
  schema      JSON Schema of the whole, installed plugins included
  init        the commented default configuration
  reference   the manual's page of all keys, in Markdown

examples:
  hookmq config init hookmq.yaml
  hookmq config show -c hookmq.yaml
  HOOKMQ__BROKER__MAX_QOS=1 hookmq config show
  hookmq config schema > hookmq.schema.json
      # yaml-language-server: $schema=./hookmq.schema.json     as first line of hookmq.yaml"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("action", choices=("show", "schema", "init", "reference"))
    parser.add_argument("file", nargs="?", help="init: write here instead of to standard output")
    add_source(parser)
    parser.add_argument(
        "--no-origins", action="store_true", help="show: leave out where values came from"
    )
    parser.add_argument("--force", action="store_true", help="init: overwrite the file")


def run(arguments: argparse.Namespace) -> int:
    """Do what was asked for."""
    if arguments.file is not None and arguments.action != "init":
        raise ConfigError(f"config {arguments.action} takes no file", hint="-c FILE names one")
    return {"show": _show, "schema": _schema, "init": _init, "reference": _reference}[
        arguments.action
    ](arguments)


def _show(arguments: argparse.Namespace) -> int:
    from hookmq.config.plugins import effective
    from hookmq.config.show import show

    print(show(effective(config_of(arguments)), origins=not arguments.no_origins), end="")
    return 0


def _schema(arguments: argparse.Namespace) -> int:
    import json

    from hookmq.config.schema import installed_plugins, schema

    found, failed = installed_plugins()
    for problem in failed:
        print(f"hookmq: left out: {problem}", file=sys.stderr)
    print(json.dumps(schema(found), indent=2, ensure_ascii=False))
    return 0


def _init(arguments: argparse.Namespace) -> int:
    from hookmq.config.model import default_text

    if arguments.file is None:
        print(default_text(), end="")
        return 0
    path = Path(arguments.file)
    try:
        with path.open("w" if arguments.force else "x", encoding="utf-8") as file:
            file.write(default_text())
    except FileExistsError:
        raise ConfigError(f"{path} exists", hint="--force overwrites it") from None
    print(f"wrote {path}; now: hookmq check -c {path}", file=sys.stderr)
    return 0


def _reference(arguments: argparse.Namespace) -> int:
    from hookmq.config.reference import reference

    print(reference(), end="")
    return 0
