"""Every mistake of a file in one error."""

from typing import Final

from hookmq.plugin import ConfigError

MOST: Final = 100
"""Mistakes told of one file."""


class FileError(ConfigError):
    """What is wrong with a file: the first mistake, and `errors` with all of them."""

    def __init__(self, errors: tuple[ConfigError, ...]) -> None:
        first = errors[0]
        super().__init__(
            first.message,
            source=first.source,
            line=first.line,
            column=first.column,
            hint=first.hint,
        )
        self.errors = errors

    def __str__(self) -> str:
        more = len(self.errors) - 1
        return f"{super().__str__()}{f'; {more} more' if more else ''}"


class Problems:
    """Mistakes, as they are found."""

    def __init__(self) -> None:
        self._found: list[ConfigError] = []

    def add(self, error: ConfigError) -> None:
        """Note a mistake; of too many the first."""
        if len(self._found) < MOST:
            self._found.append(error)

    def check(self) -> None:
        """Raise FileError if there is one."""
        if self._found:
            raise FileError(tuple(self._found))
