"""Test the line protocol. A small parser, based on the protocol's description, reads the lines back."""

import re
from contextlib import suppress
from typing import Any

from hookmq_sinks.driver import RecordError
from hookmq_sinks.drivers.line_protocol import field_value, line, mistake
from hypothesis import given
from hypothesis import strategies as st

SPECIAL = st.sampled_from('\\,= "#\n')
LETTERS = st.characters(exclude_categories=["Cs"]) | SPECIAL
NAMES = st.text(LETTERS, min_size=1, max_size=8)
"""Texts with many special characters."""
GOOD = NAMES.filter(lambda text: not mistake(text, "name"))
VALUES = st.one_of(
    st.text(LETTERS, max_size=12),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False, allow_infinity=False),
)
KINDS: Any = {str: "string", bool: "boolean", int: "integer", float: "float"}


class Parser:
    """Reads one line. A backslash escapes the next character only if that character is special."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def name(self, special: str) -> str:
        """Read up to the next unescaped character in `special`."""
        found = ""
        while self.at < len(self.text) and self.text[self.at] not in special:
            if self.text[self.at] == "\\" and self.text[self.at + 1] in special:
                self.at += 1
            found += self.text[self.at]
            self.at += 1
        return found

    def take(self, wanted: str) -> bool:
        """Skip the next character if it is `wanted`. Return whether it was."""
        here = self.text[self.at : self.at + 1] == wanted
        self.at += here
        return here

    def value(self) -> Any:
        """Read a field's value."""
        if not self.take('"'):
            word = re.compile(r"[^, ]+").match(self.text, self.at)
            assert word
            self.at = word.end()
            if word[0] in ("true", "false"):
                return word[0] == "true"
            return int(word[0][:-1]) if word[0].endswith("i") else float(word[0])
        found = ""
        while not self.take('"'):
            if self.text[self.at] == "\\" and self.text[self.at + 1] in '"\\':
                self.at += 1
            found += self.text[self.at]
            self.at += 1
        return found

    def point(self) -> tuple[str, dict[str, str], dict[str, Any], int]:
        """Read the whole line."""
        assert self.text[0] not in "# "
        measurement = self.name(", ")
        tags: dict[str, str] = {}
        while self.take(","):
            name = self.name(",= ")
            assert self.take("=")
            tags[name] = self.name(",= ")
        assert self.take(" ")
        fields: dict[str, Any] = {}
        while True:
            name = self.name(",= ")
            assert self.take("=")
            fields[name] = self.value()
            if not self.take(","):
                break
        assert self.take(" ")
        return measurement, tags, fields, int(self.text[self.at :])


@given(
    GOOD.filter(lambda text: not text.startswith("#")),
    st.dictionaries(GOOD, GOOD, max_size=3),
    st.dictionaries(GOOD, VALUES, min_size=1, max_size=3),
    st.integers(-(1 << 63), 1 << 63),
)
def test_a_line_is_read_as_it_was_meant(
    measurement: str, tags: dict[str, str], fields: dict[str, Any], time: int
) -> None:
    values = {name: field_value(name, one, KINDS[type(one)]) for name, one in fields.items()}
    made = line(measurement, tags, values, time).decode()
    assert Parser(made).point() == (measurement, tags, fields, time)


@given(NAMES, NAMES)
def test_a_line_is_one_line_whatever_its_names_are(measurement: str, value: str) -> None:
    with suppress(RecordError):
        made = line(measurement, {"t": value}, {"n": "1i"}, 0).decode()
        assert "\n" not in made
        assert Parser(made).point() == (measurement, {"t": value}, {"n": 1}, 0)
