"""The locations of values in a file, and an error that contains all mistakes in a configuration."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import NamedTuple

from hookmq.model.errors import ConfigError

KeyPath = tuple[str | int, ...]
"""The keys and list positions that lead from the top of a document to a value."""


class SourcePlace(NamedTuple):
    """The location at which a value was set. `line` and `column` start at 1; 0 means that `source` has no lines."""

    source: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source

    @property
    def brief(self) -> str:
        """The source and the line, without the column."""
        return f"{self.source}:{self.line}" if self.line else self.source


NOWHERE = SourcePlace("")


class ConfigErrors(ConfigError):
    """Several mistakes, ordered by location. The text has one line for each."""

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        one = errors[0]
        super().__init__(
            one.message, source=one.source, line=one.line, column=one.column, hint=one.hint
        )
        self.errors = tuple(errors)

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)


def dotted(path: KeyPath) -> str:
    """Format a path as text: ``("listeners", 0, "bind")`` becomes ``listeners[0].bind``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def nearest(word: str, known: Sequence[str]) -> str:
    """Return a hint: the known word most similar to `word`, or a short list of known words. Return
    '' if neither helps.
    """
    close = get_close_matches(word.lower(), known, 1, 0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return "known: " + ", ".join(known) if 0 < len(known) <= 12 else ""


@dataclass(slots=True)
class ConfigProblems:
    """Collects mistakes, so that one run reports all of them."""

    errors: list[ConfigError] = field(default_factory=list)

    def add(self, place: SourcePlace, path: KeyPath, message: str, hint: str = "") -> None:
        """Record a mistake at `place`. `path` leads to the key."""
        text = f"{dotted(path)}: {message}" if path else message
        self.errors.append(
            ConfigError(text, source=place.source, line=place.line, column=place.column, hint=hint)
        )

    def check(self) -> None:
        """Raise one `ConfigError` with all recorded mistakes, if there are any."""
        if self.errors:
            errors = sorted(self.errors, key=lambda error: (error.line, error.column))
            raise errors[0] if len(errors) == 1 else ConfigErrors(errors)
