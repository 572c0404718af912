"""Gold: what each device's values were, by windows of event time."""

from dataclasses import dataclass

from mqtt_pipelines.settings import Seconds, required, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Gold:
    """``gold``: which values, and how long a window is."""

    metrics: tuple[str, ...] = required("columns of silver, numbers")
    window: Seconds = setting(60.0, "how long a window is", minimum=1)
