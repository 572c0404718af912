"""Check the lines of an export, so that an edited or truncated file fails at import rather than later in the broker."""

import base64
from collections.abc import Callable, Mapping
from math import isfinite, isnan
from typing import Any, Final

from hookmq.mqtt_api import MAX_BYTES, In, decode_section, validate_filter, validate_topic
from hookmq.plugin import ReasonCode
from hookmq.storage_api import MAX_STATE_KEY

_Rule = Callable[[Any], bool]
_INTEGER: Final = 1 << 63


def _text(value: Any) -> bool:
    if type(value) is not str:
        return False
    value.encode()  # raises for lone surrogates
    return True


def _number(value: Any) -> bool:
    return type(value) in (int, float) and not isnan(value)


def _integer(least: int, most: int) -> _Rule:
    return lambda value: type(value) is int and least <= value <= most


def _or_none(rule: _Rule) -> _Rule:
    return lambda value: value is None or rule(value)


def _one_of(*values: int) -> _Rule:
    return lambda value: type(value) is int and value in values


def _topic(value: Any) -> bool:
    if type(value) is not str:
        return False
    validate_topic(value, MAX_BYTES)
    return True


def _filter(value: Any) -> bool:
    if type(value) is not str:
        return False
    validate_filter(value, MAX_BYTES)
    return True


def _payload(value: Any) -> bool:
    return type(value) is str and base64.b64decode(value, validate=True) is not None


def _properties(value: Any) -> bool:
    decode_section(base64.b64decode(value, validate=True), In.PUBLISH)  # raises ProtocolError
    return True


def _identifiers(value: Any) -> bool:
    return type(value) is str and all(0 < int(one) < 1 << 28 for one in value.split(" "))


def _whole_numbers(value: Any) -> bool:
    return type(value) is dict and all(type(one) is int for one in value.values())


_CERTIFICATE: Final[Mapping[str, _Rule]] = {
    "common_name": _text,
    "subject": _text,
    "sans": lambda value: type(value) is list and all(map(_text, value)),
    "fingerprint": _text,
}


def _certificate(value: Any) -> bool:
    if type(value) is not dict:
        return False
    check(value, _CERTIFICATE)
    return True


def _code(value: Any) -> bool:
    return type(value) is int and ReasonCode(value).failed


_MESSAGE: Final[Mapping[str, _Rule]] = {
    "topic": _topic,
    "payload": _payload,
    "flags": _one_of(0, 1, 2, 4, 5, 6),
    "properties": _or_none(_properties),
    "sender": _or_none(_text),
    "origin": _text,
    "received_at": _number,
    "expires_at": _or_none(_number),
}
_WILL: Final[Mapping[str, _Rule]] = {"delay": _number, **_MESSAGE}


def _will(value: Any) -> bool:
    check(value, _WILL)
    return True


_CLIENT: Final[Mapping[str, _Rule]] = {
    "username": _or_none(_text),
    "identity": _or_none(_text),
    "claims": lambda value: type(value) is dict,
    "listener": _text,
    "mount_point": _text,
    "host": _text,
    "port": _integer(0, 65535),
    "transport": _text,
    "certificate": _or_none(_certificate),
    "vouched_by": _or_none(_text),
    "clean_start": lambda value: type(value) is bool,
    "keep_alive": _integer(0, 65535),
    "expires_at": _or_none(_number),
    "expiry_code": _code,
}


def _space(value: Any) -> bool:
    return _text(value) and value[:2] in ("s/", "t/") and len(value) > 2


RULES: Final[Mapping[str, Mapping[str, _Rule]]] = {
    "session": {
        "client_id": _text,
        "version": _one_of(3, 4, 5),
        "expiry": _number,
        "connected_at": _number,
        "ended_at": _or_none(_number),
        "will_at": _or_none(_number),
        **_CLIENT,
        "revoked": lambda value: type(value) is list and all(map(_text, value)),
        "limits": _whole_numbers,
        "will": _or_none(_will),
    },
    "subscription": {
        "client_id": _text,
        "filter": _filter,
        "topic_filter": _filter,
        "options": lambda value: type(value) is int and 0 <= value < 48 and value & 3 < 3,
        "identifier": _or_none(_integer(1, (1 << 28) - 1)),
        "share": _or_none(_text),
    },
    "received": {"client_id": _text, "packet_id": _integer(1, 65535)},
    "publisher": {
        "id": _integer(1, _INTEGER - 1),
        "client_id": _text,
        "version": _one_of(3, 4, 5),
        **_CLIENT,
    },
    "retained": {**_MESSAGE, "publisher": _or_none(_integer(1, _INTEGER - 1))},
    "plugin_state": {
        "space": _space,
        "key": lambda value: _text(value) and len(value.encode()) <= MAX_STATE_KEY,
        "value": _payload,
        "due": _or_none(lambda value: _number(value) and isfinite(value)),
    },
    "message": {"id": _integer(0, _INTEGER - 2), **_MESSAGE},
    # The column name `share_group` is part of the export format.
    "entry": dict(  # noqa: C408
        owner=_text,
        seq=_integer(-_INTEGER, _INTEGER - 1),
        message=_integer(0, _INTEGER - 2),
        qos=_one_of(0, 1, 2),
        size=_integer(0, _INTEGER - 1),
        retain=_one_of(0, 1),
        identifiers=_or_none(_identifiers),
        filter=_or_none(_text),
        share_group=_or_none(_text),
        sent=lambda value: type(value) is int and 0 <= value < 131072 and value != 65536,
    ),
}


def check(line: Mapping[str, Any], rules: Mapping[str, _Rule]) -> None:
    """Check a line's fields. Raise KeyError for a missing field, and ValueError or the rule's own error for an invalid
    value.
    """
    for name, right in rules.items():
        value = line[name]
        if not right(value):
            shown = repr(value)
            raise ValueError(f"{name}: invalid value {shown[:40]}{'…' if len(shown) > 40 else ''}")


class References:
    """The objects defined by the lines read so far. Detects duplicates and references to missing objects."""

    __slots__ = ("_clients", "_count", "_messages", "_publishers")

    def __init__(self) -> None:
        self._clients: set[str] = set()
        self._messages: set[int] = set()
        self._publishers: set[int] = set()
        self._count = dict.fromkeys(RULES, 0)

    def check(self, kind: str, line: Mapping[str, Any]) -> None:
        """Check a line's fields with `check`. Raise ValueError if the line refers to a missing object."""
        check(line, RULES[kind])
        self._count[kind] += 1
        if kind == "session":
            self._clients.add(line["client_id"])
        elif kind == "message":
            if line["id"] in self._messages:
                raise ValueError(f"message {line['id']} is a duplicate")
            self._messages.add(line["id"])
        elif kind == "entry":
            owner: str = line["owner"]
            if owner.startswith("c/"):
                self._known(owner[2:])
            elif not owner.startswith("g/"):
                raise ValueError(f"no owner {owner!r}")
            if line["message"] not in self._messages:
                raise ValueError(f"no message {line['message']}")
        elif kind == "publisher":
            self._publishers.add(line["id"])
        elif kind == "plugin_state":
            if (line["due"] is None) != line["space"].startswith("s/"):
                raise ValueError(f"due: {line['due']!r} in space {line['space']!r}")
        elif kind == "retained":
            if line["publisher"] is not None and line["publisher"] not in self._publishers:
                raise ValueError(f"no publisher {line['publisher']}")
        else:
            self._known(line["client_id"])

    def counts(self) -> dict[str, int]:
        """For each kind of object that has its own table, return the number of lines."""
        return {kind: count for kind, count in self._count.items() if kind != "message"}

    def _known(self, client_id: str) -> None:
        if client_id not in self._clients:
            raise ValueError(f"no session {client_id!r}")
