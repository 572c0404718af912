"""A command imports its own distribution, but no plugin and no large library."""

import json
import subprocess
import sys

from workspace import members

POINTS = [member.project.get("entry-points", {}) for member in members()]
COMMANDS = {name for points in POINTS for name in points.get("hookmq.commands", {})}
PLUGINS = {
    target.partition(":")[0]
    for points in POINTS
    for target in points.get("hookmq.plugins", {}).values()
}
"""The modules of all plugins' classes."""
LARGE = {"aiohttp", "cryptography", "jwt", "opentelemetry", "pyarrow", "websockets"}
"""Libraries that take longer to import than the whole command line."""
CODE = """\
import json, sys
from hookmq.cli import main
code = main(sys.argv[1:])
print(json.dumps([code, *sys.modules]), file=sys.stderr)
"""


def imported(*words: str) -> tuple[set[str], str]:
    """Run ``hookmq`` and return the modules that it imported, and its output.

    The compiled build has one more module, into which mypyc puts all the others.
    """
    run = subprocess.run(
        [sys.executable, "-c", CODE, *words], capture_output=True, text=True, check=True
    )
    code, *modules = json.loads(run.stderr)
    assert code == 0
    return set(modules) - {"hookmq__mypyc"}, run.stdout


def test_a_command_imports_its_own_distribution_only() -> None:
    found, out = imported("admin", "--help")
    assert "Inspect and change a running broker." in out
    assert {one.split(".")[0] for one in found if one.startswith("hookmq_")} <= {
        "hookmq_admin",
        "hookmq_toolkit",
    }
    assert not found & (PLUGINS | LARGE)


def test_the_help_imports_commands_but_no_plugins() -> None:
    """The help imports the commands but no plugins. The output on stderr must be JSON, so there must be no warning
    about a broken command.
    """
    found, out = imported("--help")
    listed = out.partition("\ncommands of plugins:\n")[2].partition("\n\n")[0]
    assert {line.split()[0] for line in listed.splitlines()} == COMMANDS
    assert not found & (PLUGINS | LARGE)


def test_our_own_commands_import_no_plugins() -> None:
    for words in (("serve", "--help"), ("completion", "--words", "s")):
        found, _ = imported(*words)
        assert not [one for one in found if one.startswith("hookmq_")]
        assert not found & LARGE
