"""The stored state of an exactly-once bridge: which records the remote broker has, and under which packet ids.

A record's packet id is derived from its offset. If the driver dies after sending a PUBLISH, it later sends the PUBLISH
again, with the same packet id in the same session. The remote broker recognizes the packet id until it gets PUBREL.
Before the first PUBREL for a run of records is sent, the file therefore records that all of them have arrived.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from hookmq_toolkit.durable_files import write_atomically

IDS: Final = 65_534
"""The number of packet ids for records. The last packet id, 65,535, is reserved for the state topic."""


def packet_id(offset: int) -> int:
    """Return the packet id of the record at `offset`."""
    return offset % IDS + 1


@dataclass
class InFlight:
    """The target's position, and the records for which the remote broker may still be waiting for PUBREL.

    Records below `offset` have arrived. `sent` contains the offsets of the QoS 2 records whose PUBREL may not have been
    sent. Those below `offset` need only PUBREL. The others may or may not have arrived.
    """

    log_id: str
    offset: int = 0
    address: str = ""
    sent: tuple[int, ...] = ()

    @property
    def to_release(self) -> list[int]:
        """The offsets of the records that have arrived and still need PUBREL."""
        return [one for one in self.sent if one < self.offset]

    def save(self, path: Path, *, sync: bool) -> None:
        """Write the file. Blocks. Raises OSError."""
        write_atomically(path, json.dumps(asdict(self)).encode(), sync=sync)


def read_in_flight(path: Path) -> InFlight | None:
    """Read the file, or return None if it does not exist. Blocks. Raises OSError, and ValueError if it is damaged."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    try:
        return InFlight(**{**found, "sent": tuple(map(int, found["sent"]))})
    except (TypeError, KeyError) as error:
        raise ValueError(str(error)) from error
