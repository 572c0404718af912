"""Where a value stands, and every mistake of a configuration in one error."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import NamedTuple

from hookmq.errors import ConfigError

Path = tuple[str | int, ...]
"""Keys and list positions from the top of a document."""


class Place(NamedTuple):
    """Where a value was written. `line` and `column` count from 1; 0 means that `source` has no lines."""

    source: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source

    @property
    def brief(self) -> str:
        """The source and line alone."""
        return f"{self.source}:{self.line}" if self.line else self.source


NOWHERE = Place("")


class ConfigErrors(ConfigError):
    """Every mistake that was found, in the order of their places; the text has one line for each."""

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        first = errors[0]
        super().__init__(
            first.message,
            source=first.source,
            line=first.line,
            column=first.column,
            hint=first.hint,
        )
        self.errors = tuple(errors)

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)


def dotted(path: Path) -> str:
    """``listeners[0].bind`` of ``("listeners", 0, "bind")``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def nearest(word: str, known: Sequence[str]) -> str:
    """A hint that names the known word most like `word`, or lists a few; empty when there is nothing to say."""
    close = get_close_matches(word.lower(), known, 1, 0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    if 0 < len(known) <= 12:
        return "known: " + ", ".join(known)
    return ""


@dataclass(slots=True)
class Problems:
    """Collects mistakes so that one run shows them all."""

    errors: list[ConfigError] = field(default_factory=list)

    def add(self, place: Place, path: Path, message: str, hint: str = "") -> None:
        """Note a mistake at `place`; `path` names the key."""
        text = f"{dotted(path)}: {message}" if path else message
        self.errors.append(
            ConfigError(text, source=place.source, line=place.line, column=place.column, hint=hint)
        )

    def check(self) -> None:
        """Raise one `ConfigError` that tells every mistake noted so far; nothing when there is none."""
        if self.errors:
            errors = sorted(self.errors, key=lambda error: (error.line, error.column))
            raise errors[0] if len(errors) == 1 else ConfigErrors(errors)
