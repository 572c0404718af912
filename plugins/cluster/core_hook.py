"""The core's build hook. A checkout has it in core/, and an sdist next to this file."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "core"))
sys.path.insert(0, str(Path(__file__).resolve().parent))
from hatch_build import CompiledHook

__all__ = ["CompiledHook"]
