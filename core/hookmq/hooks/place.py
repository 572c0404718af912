"""Find where in a plugin's code an error was raised."""

import inspect
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

_CORE: Final = str(Path(__file__).parents[1])
_LIBRARY: Final = str(Path(inspect.__file__).parent)
_CALLERS: Final = (f"{_CORE}/", "hookmq/", "<")
"""Path prefixes of code that calls hooks: the core's own, which is relative if compiled, and that of the lambdas that
adapt hooks."""
_TESTING: Final = "/hookmq_testing/"
"""Path fragment of the testing kit, which also calls hooks."""
_INSTALLED: Final = ("/site-packages/", "/dist-packages/")
"""Package folders inside the standard library folder. The rest of the standard library may call hooks in threads."""


class CodePlace(NamedTuple):
    """A file and line number."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def place_of(error: BaseException) -> CodePlace | None:
    """Return the innermost line of an error's traceback that is in the plugin's own package.

    If no line is in a plugin, return the innermost line. Return None if `error` was never raised.
    """
    places = list(_places(error.__traceback__))
    while len(places) > 1 and _is_machinery(places[0].file):
        del places[0]
    if not places:
        return None
    package = places[0].file.rpartition("/")[0]
    return next(place for place in reversed(places) if place.file.startswith(package))


def at(error: BaseException) -> str:
    """Return `` (FILE:LINE)`` for the end of an error message, or "" if the location is unknown."""
    place = place_of(error)
    return f" ({place})" if place is not None else ""


def _places(trace: TracebackType | None) -> "list[CodePlace]":
    places = []
    while trace is not None:
        places.append(CodePlace(trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    return places


def _is_machinery(file: str) -> bool:
    if file.startswith(_CALLERS) or _TESTING in file:
        return True
    return file.startswith(_LIBRARY) and not any(part in file for part in _INSTALLED)
