"""The parameters and bodies of requests to the read API. Each function raises Refusal for invalid input."""

import json
from collections.abc import Callable
from typing import Final

from aiohttp import web
from hookmq.plugin import HookMQError, ProtocolError

from hookmq_spark_sink import block
from hookmq_spark_sink.config import NAME
from hookmq_spark_sink.reading import Matcher
from hookmq_spark_sink.refusal import Refusal

NEWEST: Final = "HookMQ-Block-Version"
"""The request header that names the newest block version that a client supports."""
_MAX_FILTERS: Final = 64
MAX_NUMBER: Final = (1 << 63) - 1
"""The largest offset."""


def known(request: web.Request, *names: str) -> dict[str, list[str]]:
    """Return the query parameters. Raises Refusal for a parameter that is not in `names` or that is repeated. Only
    `topics` may be repeated.
    """
    found: dict[str, list[str]] = {}
    for name, value in request.query.items():
        if name not in names:
            expected = ", ".join(names) or "none"
            raise Refusal(
                400,
                "bad_request",
                f"unknown parameter {name}; expected: {expected}",
                parameter=name,
            )
        if name in found and name != "topics":
            raise Refusal(400, "bad_request", f"{name} is given twice", parameter=name)
        found.setdefault(name, []).append(value)
    return found


def number(query: dict[str, list[str]], name: str) -> int | None:
    """Return a number from 0 on, or None if the parameter is missing."""
    if name not in query:
        return None
    text = query[name][0]
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= MAX_NUMBER):
        raise Refusal(400, "bad_request", f"{name}: {text[:40]!r} is not a number", parameter=name)
    return int(text)


def needed(query: dict[str, list[str]], name: str) -> int:
    """Return a number from 0 on. Raises Refusal if the parameter is missing."""
    found = number(query, name)
    if found is None:
        raise Refusal(400, "bad_request", f"{name} is missing", parameter=name)
    return found


def columns(given: list[str] | None) -> frozenset[int] | None:
    """Return the numbers of the columns that the client wants, or None for all."""
    if given is None:
        return None
    names = given[0].split(",")
    for name in names:
        if name not in block.COLUMNS:
            known = ", ".join(block.COLUMNS)
            raise Refusal(
                400,
                "bad_request",
                f"no column {name[:40]!r}; expected: {known}",
                parameter="columns",
            )
    return frozenset(block.COLUMNS[name] for name in names)


def newest(request: web.Request) -> int:
    """Return the newest block version that the client supports, which is version 1 if the header is missing."""
    given = request.headers.get(NEWEST, "1")
    if not (given.isascii() and given.isdigit() and len(given) < 10 and int(given) >= 1):
        message = f"{NEWEST}: {given[:40]!r} is not the version of a block"
        raise Refusal(400, "bad_request", message, parameter=NEWEST)
    return int(given)


def match(given: list[str] | None) -> Callable[[bytes], bool] | None:
    """Return a function that matches topics with the given filters, or None without filters."""
    if given is None:
        return None
    if len(given) > _MAX_FILTERS:
        raise Refusal(400, "bad_request", f"more than {_MAX_FILTERS} filters", parameter="topics")
    try:
        return Matcher(given)
    except (ProtocolError, HookMQError) as error:
        raise Refusal(400, "bad_request", f"topics: {error}", parameter="topics") from None


def consumer_name(request: web.Request) -> str:
    """Return the name of the consumer in the path."""
    name = request.match_info["consumer"]
    if not NAME.fullmatch(name):
        message = "a consumer's name: 1 to 128 letters, digits, _ . -"
        raise Refusal(400, "bad_request", message, parameter="consumer")
    return name


async def commit_body(request: web.Request) -> tuple[str, dict[int, int]]:
    """Return the id of the log and the offset for each partition."""
    message = 'the body is {"log_id": "...", "offsets": {"0": 1}}'
    refusal = Refusal(400, "bad_request", message, parameter="body")
    try:
        body = json.loads(await request.read())
        log_id, offsets = body["log_id"], body["offsets"]
        if set(body) != {"log_id", "offsets"} or not isinstance(log_id, str) or not offsets:
            raise refusal
        found: dict[int, int] = {}
        for place, offset in offsets.items():
            if not (place.isascii() and place.isdigit()) or len(place) > 9:
                raise refusal
            if type(offset) is not int or not 0 <= offset <= MAX_NUMBER:
                raise refusal
            found[int(place)] = offset
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise refusal from None
    return log_id, found


async def report_body(request: web.Request) -> tuple[str, int, int]:
    """Return the query, the batch and the number of dead letters."""
    message = 'the body is {"query": "...", "batch": 0, "dead_letters": 0}'
    refusal = Refusal(400, "bad_request", message, parameter="body")
    try:
        body = json.loads(await request.read())
        query, batch, dead_letters = body["query"], body["batch"], body["dead_letters"]
        if set(body) != {"query", "batch", "dead_letters"}:
            raise refusal
    except (ValueError, KeyError, TypeError, RecursionError):
        raise refusal from None
    if not isinstance(query, str) or not 0 < len(query) <= 128:
        raise refusal
    for number in (batch, dead_letters):
        if type(number) is not int or not 0 <= number <= MAX_NUMBER:
            raise refusal
    return query, batch, dead_letters
