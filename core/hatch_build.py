"""The platform wheel: hatchling's hook, off unless ``HATCH_BUILD_HOOKS_ENABLE=1`` is in the environment."""

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).resolve().parent))  # build frontends do not
import compiling


class CompiledHook(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles the hot path into the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Before a wheel is written. An editable one holds nothing, so nothing is compiled for it."""
        if version != "standard":
            return
        if lack := compiling.missing():
            sys.exit(f"Cannot compile: {lack}")
        self.scratch = tempfile.TemporaryDirectory(prefix="hookmq-")
        made = compiling.compile_into(Path(self.scratch.name))
        build_data["force_include"][str(made)] = f"hookmq/_compiled/{compiling.tag()}"
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """After it was written."""
        if version == "standard":
            self.scratch.cleanup()
