"""Store on disk whether a sink is paused or disabled, so that a restart does not change it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hookmq.plugin import StoreError

from hookmq_toolkit.durable_files import write_atomically

CONTROL: Final = "control"
"""The name of the file in a sink's folder."""


@dataclass(frozen=True, slots=True)
class ControlState:
    """The stored state of a sink.

    - `paused`: whether an operator paused the sink.
    - `disabled`: why the sink has disabled itself, or '' if it has not.
    - `failing_since`: when the target began to fail, in epoch seconds; None if it works or the time is unknown.
    """

    paused: bool = False
    disabled: str = ""
    failing_since: float | None = None


def read_control(folder: Path) -> ControlState:
    """Return the stored state, or the default if there is no file. This call blocks. Raises StoreError."""
    path = folder / CONTROL
    try:
        found = json.loads(path.read_bytes())
        since = found.get("failing_since")
        return ControlState(
            bool(found["paused"]),
            str(found.get("disabled", "")),
            None if since is None else float(since),
        )
    except FileNotFoundError:
        return ControlState()
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    except (AttributeError, ValueError, TypeError, KeyError):
        raise StoreError(f"{path} is damaged; remove it to resume the sink") from None


def write_control(folder: Path, state: ControlState) -> None:
    """Replace the stored state. This call blocks. Raises OSError."""
    known: dict[str, object] = {"paused": state.paused}
    if state.disabled:
        known["disabled"] = state.disabled
    if state.failing_since is not None:
        known["failing_since"] = state.failing_since
    write_atomically(folder / CONTROL, json.dumps(known).encode())
