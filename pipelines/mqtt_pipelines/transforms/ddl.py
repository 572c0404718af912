"""Check DDL before Spark starts, so that `check` finds the most common mistakes. Only Spark can check it completely."""

import re
from difflib import get_close_matches
from typing import Final

_WORDS: Final = """
    boolean tinyint byte smallint short int integer bigint long float real double decimal dec numeric date time
    timestamp timestamp_ntz timestamp_ltz string char character varchar binary array map struct variant interval void
    geometry geography
"""
TYPES: Final = frozenset(_WORDS.split())
"""The words with which a type may begin."""

_PIECE: Final = re.compile(r"`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|[<(]|[>)]|,|[^`'<>(),]+|.", re.DOTALL)
_FIELD: Final = re.compile(r"\s*(?:`(?:[^`]|``)+`|\w+)(?:\s*:\s*|\s+)(\w+)")


def mistake(schema: str) -> str | None:
    """Describe an obvious mistake in the fields of `schema`, such as an empty field, a missing type or an unknown type.
    Return None if there is none. Spark may still refuse the schema.
    """
    for number, one in enumerate(_fields(schema), 1):
        if not one.strip():
            return f"field {number} is empty: expected fields such as `celsius double, at bigint`"
        found = _FIELD.match(one)
        if found is None:
            return f"expected a name and a type such as `celsius double`, found {one.strip()!r}"
        if (word := found[1].lower()) not in TYPES:
            near = get_close_matches(word, TYPES, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            return f"{found[1]!r} in {one.strip()!r} is not a Spark type{hint}"
    return None


def _fields(schema: str) -> list[str]:
    """Split `schema` at commas that are not within brackets or quotes."""
    fields, depth = [""], 0
    for piece in _PIECE.findall(schema):
        if piece == "," and not depth:
            fields.append("")
            continue
        depth += (piece in "<(") - (piece in ">)")
        fields[-1] += piece
    return fields
