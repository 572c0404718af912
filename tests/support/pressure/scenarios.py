"""The overload scenarios that `make overload` runs."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from pressure.hostile import amplification, hostile
from pressure.overload import Outcome, flood, slow_disk, slow_plugin, slow_readers, storm

Scenario = Callable[[Path, float, float], Coroutine[Any, Any, Outcome]]
SCENARIOS: dict[str, Scenario] = {
    "flood": flood, "slow-readers": slow_readers, "slow-disk": slow_disk, "slow-plugin": slow_plugin, "storm": storm,
    "amplification": amplification, "hostile": hostile,
}  # fmt: skip
