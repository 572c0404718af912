"""Show the effective configuration, describe it as a JSON Schema, or write an initial one."""

import argparse
import sys
from pathlib import Path

from hookmq.cli.config_args import add_source, config_of
from hookmq.model.errors import ConfigError

EXAMPLES = """\
actions:
  show        print every setting, those of plugins too, and where it was set; secrets are masked
  schema      print a JSON Schema that covers the installed plugins
  init        write the default configuration, with comments
  reference   print the reference of all settings as Markdown

examples:
  hookmq config init hookmq.yaml
  hookmq config show -c hookmq.yaml
  HOOKMQ__BROKER__MAX_QOS=1 hookmq config show
  hookmq config schema > hookmq.schema.json
      # yaml-language-server: $schema=./hookmq.schema.json     as the first line of hookmq.yaml"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("action", choices=("show", "schema", "init", "reference"))
    parser.add_argument("file", nargs="?", help="init: write this file instead of standard output")
    add_source(parser)
    parser.add_argument(
        "--no-origins", action="store_true", help="show: omit where settings were set"
    )
    parser.add_argument("--force", action="store_true", help="init: overwrite the file")


def run(arguments: argparse.Namespace) -> int:
    """Run the chosen action."""
    action = arguments.action
    if action == "init":
        return _init(arguments)
    if arguments.file is not None:
        raise ConfigError(f"config {action} takes no file", hint="use -c FILE")
    if action == "show":
        from hookmq.config.plugins import effective
        from hookmq.config.show import show

        print(show(effective(config_of(arguments)), origins=not arguments.no_origins), end="")
    elif action == "schema":
        import json

        from hookmq.config.schema import installed_plugins, schema

        found, failed = installed_plugins()
        for problem in failed:
            print(f"hookmq: left out: {problem}", file=sys.stderr)
        print(json.dumps(schema(found), indent=2, ensure_ascii=False))
    else:
        from hookmq.config.reference import reference

        print(reference(), end="")
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
    print(f"wrote {path}; validate it with: hookmq check -c {path}", file=sys.stderr)
    return 0
