"""Print the versions of HookMQ, of Python and of what decides how fast it runs."""

import argparse
import platform
from importlib.util import find_spec

EXAMPLES = "examples:\n  hookmq version\n  hookmq version --json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def versions() -> dict[str, str]:
    """What there is to tell, by name."""
    from importlib_metadata import version

    from hookmq import BUILD
    from hookmq.hooks.specs import HOOK_API

    return {
        "hookmq": version("hookmq"),
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "loop": "uvloop" if find_spec("uvloop") else "asyncio",
        "build": BUILD.kind,
        "build_reason": BUILD.reason,
        "plugins_api": HOOK_API,
        "platform": f"{platform.system()} {platform.machine()}",
    }


def run(arguments: argparse.Namespace) -> int:
    """Print them."""
    found = versions()
    if arguments.json:
        import json

        print(json.dumps(found))
    else:
        found["build"] += f" ({found.pop('build_reason')})"
        for name, value in found.items():
            print(f"{name.replace('_', ' '):<13}{value}")
    return 0
