"""Print the versions of HookMQ, Python, the event loop and the build."""

import argparse
import json
import platform
from importlib.util import find_spec

EXAMPLES = "examples:\n  hookmq version\n  hookmq version --json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the versions."""
    from importlib_metadata import entry_points, version

    from hookmq import BUILD
    from hookmq.hooks.specs import HOOK_API

    found = {
        "hookmq": version("hookmq"),
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "loop": "uvloop" if find_spec("uvloop") else "asyncio",
        "build": BUILD.kind,
        "build_reason": BUILD.reason,
        "plugins_api": HOOK_API,
        "platform": f"{platform.system()} {platform.machine()}",
    }
    for point in entry_points(group="hookmq.builds"):
        found[f"build_{point.name}"] = str(point.load())
    if arguments.json:
        print(json.dumps(found))
        return 0
    found["build"] += f" ({found.pop('build_reason')})"
    for name, value in found.items():
        print(f"{name.replace('_', ' '):<12} {value}")
    return 0
