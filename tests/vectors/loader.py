"""Read the packet vectors in this folder. README.md describes the rows."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hookmq.mqtt import packets
from hookmq.mqtt.packets import Packet, SubscribeRequest, WillFields
from hookmq.mqtt.properties import EMPTY, Properties

_HEX = frozenset(("payload", "password", "correlation_data", "authentication_data"))


@dataclass(frozen=True)
class Vector:
    """A row of a vector file. Exactly one of `packet` and `error` is set."""

    id: str
    version: int
    sender: str
    data: bytes
    packet: Packet | None
    canonical: bool
    error: int | None
    answer: int | None
    proves: tuple[str, ...]

    @property
    def servers(self) -> tuple[bool, ...]:
        """For each direction in which the packet may be sent, return whether the receiver is a server."""
        return {"client": (True,), "server": (False,), "both": (True, False)}[self.sender]


def load() -> list[Vector]:
    """Return every row of every file in order."""
    return [
        _vector(path.stem, row)
        for path in sorted(Path(__file__).parent.glob("*.json"))
        for row in json.loads(path.read_text(encoding="utf-8"))
    ]


def _vector(stem: str, row: dict[str, Any]) -> Vector:
    error = row.pop("error", None)
    packet = row.pop("packet", None)
    vector = Vector(
        id=f"{stem}: {row.pop('name')}",
        version=row.pop("version"),
        sender=row.pop("sender"),
        data=bytes.fromhex(row.pop("hex")),
        packet=None if packet is None else _packet(packet),
        canonical=row.pop("canonical", True),
        error=None if error is None else int(error, 16),
        answer=row.pop("answer", None),
        proves=tuple(row.pop("proves")),
    )
    if row or (vector.packet is None) == (vector.error is None):
        raise ValueError(f"{vector.id}: bad row, left over {sorted(row)}")
    return vector


def _packet(row: dict[str, Any]) -> Packet:
    fields = _fields(row)
    packet: Packet = getattr(packets, fields.pop("type"))(**fields)
    return packet


def _unhex(row: dict[str, Any]) -> dict[str, Any]:
    return {name: bytes.fromhex(v) if name in _HEX else v for name, v in row.items()}


def _fields(row: dict[str, Any]) -> dict[str, Any]:
    fields = _unhex(row)
    if "properties" in fields:
        fields["properties"] = _properties(fields["properties"])
    if "will" in fields:
        fields["will"] = WillFields(**_fields(fields["will"]))
    if "requests" in fields:
        fields["requests"] = tuple(SubscribeRequest(**r) for r in fields["requests"])
    for name in ("codes", "filters"):
        if name in fields:
            fields[name] = tuple(fields[name])
    return fields


def _properties(row: dict[str, Any]) -> Properties:
    values = _unhex(row)
    if "user_property" in values:
        values["user_property"] = tuple((name, text) for name, text in values["user_property"])
    return Properties(**values) if values else EMPTY
