"""A sink's cursor: the position up to which its messages are done, stored in a file."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from hookmq.plugin import StoreError
from hookmq_toolkit.durable_files import write_atomically

CURSOR: Final = "cursor"
"""The name of the cursor's file in a sink's folder."""


@dataclass(frozen=True)
class Cursor:
    """Every message below `offset` is done.

    `generation` increases when the log has lost messages that were done. The log then reuses their offsets for new
    messages, and the generation tells old and new apart. `seek` is True from an operator's seek until the next batch is
    written. During that time, the position held by the target is ignored.
    """

    log_id: str
    offset: int
    generation: int = 0
    seek: bool = False

    @property
    def name(self) -> str:
        """The log's id, as used in targets and record ids."""
        return f"{self.log_id}.{self.generation}" if self.generation else self.log_id


def read_cursor(folder: Path) -> Cursor | None:
    """Return the stored cursor, or None if there is none. Raises StoreError if it is damaged or cannot be read."""
    path = folder / CURSOR
    try:
        found = Cursor(**json.loads(path.read_bytes()))
        if not (
            isinstance(found.log_id, str) and isinstance(found.offset, int) and found.offset >= 0
        ):
            raise ValueError("wrong types")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    except (ValueError, TypeError):
        raise StoreError(f"{path} is damaged; remove it to write all messages again") from None
    return found


def write_cursor(folder: Path, cursor: Cursor, sync: bool = True) -> None:
    """Replace the stored cursor. Raises OSError."""
    write_atomically(folder / CURSOR, json.dumps(asdict(cursor)).encode(), sync=sync)
