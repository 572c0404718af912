"""Record which packets reached a connection in which phase."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from hookmq.broker.connection_state import Phase
from hookmq.broker.dispatch import DISPATCH
from hookmq.mqtt.reason_codes import PacketType

Cell = tuple[Phase, PacketType]

CELLS: Final[tuple[Cell, ...]] = tuple((phase, kind) for phase in Phase for kind in PacketType)
"""Every cell of the connection's state table, including illegal packets."""

UNREACHABLE: Final[dict[Cell, str]] = {
    (Phase.RELAYED, kind): "a relayed connection passes bytes on, and no packet is read"
    for kind in PacketType
}
"""Cells that no run can reach, with the reason."""


class Coverage:
    """How often each cell was reached."""

    def __init__(self) -> None:
        self.cells: Counter[Cell] = Counter()

    def add(self, others: Iterable[tuple[Cell, int]]) -> None:
        """Add the cells that another run reached."""
        for cell, count in others:
            self.cells[cell] += count

    def missing(self) -> list[Cell]:
        """Return the cells that should have been reached but were not."""
        return [cell for cell in CELLS if not self.cells[cell] and cell not in UNREACHABLE]

    def __str__(self) -> str:
        lines = ["phase      " + " ".join(f"{kind.name[:8]:>8}" for kind in PacketType)]
        for phase in Phase:
            row = []
            for kind in PacketType:
                count = self.cells[phase, kind]
                mark = "" if (phase, kind) in DISPATCH else "."
                row.append(f"{f'{count}{mark}':>8}")
            lines.append(f"{phase.name:<10} " + " ".join(row))
        return "\n".join(lines) + "\n(a dot marks what the protocol does not allow)"
