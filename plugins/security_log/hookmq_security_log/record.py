"""Turn an event into a record with ECS field names, and a record into a line of JSON."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

from hookmq.server_api import parse_address

from hookmq_security_log.catalog import ALERT, ECS, KINDS

LONGEST: Final = 256
"""Maximum length of a text in a record, in characters. A client can send names of up to 65,535 bytes."""
Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SecurityEvent:
    """One event. `host` and `port` are the client's. `fields` contains further ECS fields, and never a None value."""

    action: str
    time: float
    message: str
    host: str = ""
    port: int = 0
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """The key that groups repeated events: an IPv4 address, a /64 IPv6 network, or the host."""
        return source_of(self.host)


@lru_cache(4096)
def source_of(host: str) -> str:
    """Return the key for a host. IPv6 hosts are grouped by /64 network, because an attacker usually controls a whole
    one.
    """
    address = parse_address(host)
    if address is None:
        return host
    if address.version == 4:
        return str(address)
    return f"{type(address)(int(address) >> 64 << 64)}/64"


def split_peer(peer: str) -> tuple[str, int]:
    """Return the host and port of ``HOST:PORT`` or ``[HOST]:PORT``, with port 0 if there is none."""
    host, colon, port = peer.rpartition(":")
    if not colon or not port.isdecimal() or (":" in host and not host.startswith("[")):
        return peer.strip("[]"), 0
    return host.strip("[]"), int(port)


def record_of(event: SecurityEvent, repeated: int = 0, since: float = 0.0) -> Record:
    """Return the record for an event. Fields chosen by a client come last, so a pattern anchored at the start of the
    line cannot match them.

    If `repeated` is not 0, the record stands for that many similar events since `since`, and `event` is the last of
    them.
    """
    kind = KINDS[event.action]
    record: Record = {
        "@timestamp": stamp(event.time),
        "log.level": kind.level,
        "event.action": event.action,
        "event.kind": "alert" if event.action == ALERT else "event",
        "event.category": [kind.category],
        "event.type": list(kind.types),
        "event.outcome": kind.outcome,
    }
    address = parse_address(event.host)
    if address is not None:
        record["source.ip"] = str(address)
    elif event.host:
        record["source.address"] = short(event.host)
    if event.port:
        record["source.port"] = event.port
    if repeated:
        record["event.start"] = stamp(since)
        record["event.end"] = stamp(event.time)
        record["hookmq.repeated"] = repeated
    record["event.module"] = "hookmq"
    record["event.dataset"] = "hookmq.security"
    record["ecs.version"] = ECS
    record["network.protocol"] = "mqtt"
    for name, value in event.fields.items():
        if value is not None and value != "":
            record[name] = short(value) if isinstance(value, str) else value
    record["message"] = short(event.message)
    return record


def line_of(record: Record) -> str:
    """Return a record as one line of ASCII. Control characters, quotes and all non-ASCII text are escaped as in JSON.

    A name chosen by a client therefore cannot start a new line or change how a terminal displays it.
    """
    return json.dumps(record, ensure_ascii=True, separators=(",", ":"), default=str)


def stamp(time: float) -> str:
    """Format a time in epoch seconds as RFC 3339 in UTC, with milliseconds."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def short(text: str) -> str:
    """Return `text`, cut off with an ellipsis if it is long."""
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "\u2026"
