"""Read each query's position from its Spark checkpoint. Checkpoints are small files, so Spark itself is not needed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pyspark_mqtt.errors import MqttError
from pyspark_mqtt.offsets import Offsets

from mqtt_pipelines.sinks.parts import filesystem


@dataclass(frozen=True, slots=True)
class Committed:
    """The last batch that a query has completed."""

    batch: int
    offsets: Offsets | None
    """The query's next offsets in the broker's log, or None if it has another source."""


def queries(root: str) -> list[str]:
    """Return the names of the queries that have checkpoints below `root`. This call blocks."""
    from pyarrow import fs

    system, path = _reach(root)
    found = system.get_file_info(fs.FileSelector(path, allow_not_found=True))
    return sorted(
        one.base_name
        for one in found
        if one.is_file is False and _is_file(system, f"{one.path}/metadata")
    )


def committed(folder: str) -> Committed | None:
    """Return the last batch that a checkpoint records as completed, or None if there is none. This call blocks. Raises
    MqttError if the folder is not a checkpoint.
    """
    system, path = _reach(folder)
    batch = _latest(system, f"{path}/commits")
    if batch < 0:
        return None
    name = f"{path}/offsets/{batch}"
    try:
        with system.open_input_stream(name) as file:
            lines = file.read().decode().splitlines()
        found = [json.loads(line) for line in lines[2:] if line != "-"]
    except (OSError, ValueError) as error:
        raise MqttError(
            f"{name} is not an offset log of Spark ({error}): is {folder} a query's checkpoint?"
        ) from None
    # A query whose plan names its source twice, such as silver, has the same offsets twice.
    same = bool(found) and all(one == found[0] for one in found)
    if same and isinstance(found[0], dict) and "log_id" in found[0]:
        return Committed(batch, Offsets.of(found[0]))
    return Committed(batch, None)


def _reach(folder: str) -> tuple[Any, str]:
    if folder.startswith("file:"):
        folder = "/" + folder.removeprefix("file:").lstrip("/")
    return filesystem(folder.rstrip("/"), {})


def _latest(system: Any, path: str) -> int:
    from pyarrow import fs

    found = system.get_file_info(fs.FileSelector(path, allow_not_found=True))
    return max((int(one.base_name) for one in found if one.base_name.isdecimal()), default=-1)


def _is_file(system: Any, path: str) -> bool:
    return bool(system.get_file_info(path).is_file)
