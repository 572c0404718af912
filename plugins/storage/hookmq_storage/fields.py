"""What the lines of an export may hold. What is written otherwise, cut off or put together by hand is told before a
broker meets it, not by it."""

import base64
from collections.abc import Callable, Mapping
from math import isnan
from typing import Any, Final

from hookmq.codec.primitives import Reader
from hookmq.codec.properties import read_properties
from hookmq.properties import In
from hookmq.reason import ReasonCode
from hookmq.topics import MAX_BYTES, validate_filter, validate_topic

_Rule = Callable[[Any], bool]
_INTEGER: Final = 1 << 63


def _text(value: Any) -> bool:
    if type(value) is not str:
        return False
    value.encode()  # no lone surrogates
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
    data = base64.b64decode(value, validate=True)
    reader = Reader(data)
    read_properties(reader, In.PUBLISH, len(data) + 1)
    return reader.pos == len(data)


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
    "message": {"id": _integer(0, _INTEGER - 2), **_MESSAGE},
    "entry": {
        "owner": _text,
        "seq": _integer(-_INTEGER, _INTEGER - 1),
        "message": _integer(0, _INTEGER - 2),
        "qos": _one_of(0, 1, 2),
        "size": _integer(0, _INTEGER - 1),
        "retain": _one_of(0, 1),
        "identifiers": _or_none(_identifiers),
        "filter": _or_none(_text),
        "share_group": _or_none(_text),
        "sent": lambda value: type(value) is int and 0 <= value < 131072 and value != 65536,
    },
}


def check(line: Mapping[str, Any], rules: Mapping[str, _Rule]) -> None:
    """Raise ValueError, or what the rule raised, for what cannot be; KeyError where something is missing."""
    for name, right in rules.items():
        value = line[name]
        if not right(value):
            shown = repr(value)
            raise ValueError(f"{name} cannot be {shown[:40]}{'…' if len(shown) > 40 else ''}")


class References:
    """What the lines so far are about, to tell those that point nowhere and those that come twice."""

    __slots__ = ("_clients", "_count", "_messages", "_publishers")

    def __init__(self) -> None:
        self._clients: set[str] = set()
        self._messages: set[int] = set()
        self._publishers: set[int] = set()
        self._count = dict.fromkeys(RULES, 0)

    def check(self, kind: str, line: Mapping[str, Any]) -> None:
        """Raise as `check` does, and ValueError for a line about what is not there."""
        check(line, RULES[kind])
        self._count[kind] += 1
        if kind == "session":
            self._clients.add(line["client_id"])
        elif kind == "message":
            if line["id"] in self._messages:
                raise ValueError(f"message {line['id']} comes twice")
            self._messages.add(line["id"])
        elif kind == "entry":
            owner: str = line["owner"]
            if owner.startswith("c/"):
                self._known(owner[2:])
            elif not owner.startswith("g/"):
                raise ValueError(f"there is no owner {owner!r}")
            if line["message"] not in self._messages:
                raise ValueError(f"there is no message {line['message']}")
        elif kind == "publisher":
            self._publishers.add(line["id"])
        elif kind == "retained":
            if line["publisher"] is not None and line["publisher"] not in self._publishers:
                raise ValueError(f"there is no publisher {line['publisher']}")
        else:
            self._known(line["client_id"])

    def counts(self) -> dict[str, int]:
        """Lines of each kind that become rows of their own."""
        return {kind: count for kind, count in self._count.items() if kind != "message"}

    def _known(self, client_id: str) -> None:
        if client_id not in self._clients:
            raise ValueError(f"there is no session {client_id!r}")
