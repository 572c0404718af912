"""hatchling's build hook for platform wheels. It runs only if the environment has ``HATCH_BUILD_HOOKS_ENABLE=1``.

A plugin can use it too. Its pyproject.toml names the modules to compile; see `compiling.Project`.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).resolve().parent))  # build frontends do not add it
import compiling


class CompiledHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the compiled modules to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the modules before the wheel is written. Do nothing for an editable wheel, which contains no code."""
        if version != "standard":
            return
        if lack := compiling.missing():
            sys.exit(f"Cannot compile: {lack}")
        project = compiling.Project(Path(self.root))
        self.scratch = tempfile.TemporaryDirectory(prefix=f"{project.name}-")
        made = project.compile_into(Path(self.scratch.name))
        build_data["force_include"][str(made)] = f"{project.name}/_compiled/{compiling.tag()}"
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Clean up after the wheel has been written."""
        if version == "standard":
            self.scratch.cleanup()
