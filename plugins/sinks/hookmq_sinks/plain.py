"""Convert bound settings to JSON values. `hookmq.config_api.bind_values` can turn them back into equal settings."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any


def plain_value(value: Any) -> Any:
    """Convert a setting's value to a JSON value. Paths become absolute. The result contains secrets, so never display
    it.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {
            one.name: plain_value(getattr(value, one.name))
            for one in fields(value)
            if one.init and not one.name.startswith("_") and one.metadata.get("bind", True)
        }
    if isinstance(value, Path):
        return str(value.absolute())
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain_value(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain_value(one) for one in value]
    return value
