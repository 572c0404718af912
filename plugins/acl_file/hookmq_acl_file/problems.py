"""Collect all mistakes in a file, and report them in one error."""

from typing import Final

from hookmq.plugin import ConfigError

MOST: Final = 100
"""Maximum number of mistakes reported for one file."""


class FileError(ConfigError):
    """The mistakes in a file. The error itself describes the first mistake, and `errors` contains all of them."""

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
    """Collects the mistakes in a file."""

    def __init__(self) -> None:
        self._found: list[ConfigError] = []

    def add(self, error: ConfigError) -> None:
        """Add a mistake. Only the first `MOST` are kept."""
        if len(self._found) < MOST:
            self._found.append(error)

    def check(self) -> None:
        """Raise a FileError if any mistakes were added."""
        if self._found:
            raise FileError(tuple(self._found))
