"""Where in a plugin's code an error was raised: what the log says of a failure besides its words."""

import inspect
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

_CORE: Final = str(Path(__file__).parents[1])
_LIBRARY: Final = str(Path(inspect.__file__).parent)
_MACHINERY: Final = (_CORE, "hookmq/", "<", _LIBRARY)
"""How the names of files begin that call hooks: the core (relative when compiled), the lambdas that adapt hooks, and the
standard library, whose threads and tasks lie in between."""
_INSTALLED: Final = ("/site-packages/", "/dist-packages/")


class Place(NamedTuple):
    """A line of code."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def place_of(error: BaseException) -> Place | None:
    """The innermost line of the plugin's own package on the way to `error`, else the innermost line of all; None if
    `error` was never raised."""
    places = list(_places(error.__traceback__))
    while len(places) > 1 and _is_machinery(places[0].file):
        del places[0]
    if not places:
        return None
    package = places[0].file.rpartition("/")[0]
    return next(place for place in reversed(places) if place.file.startswith(package))


def at(error: BaseException) -> str:
    """`` (FILE:LINE)``, to be put behind an error's words; empty if there is no place to name."""
    place = place_of(error)
    return f" ({place})" if place is not None else ""


def _places(trace: TracebackType | None) -> "list[Place]":
    places = []
    while trace is not None:
        places.append(Place(trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    return places


def _is_machinery(file: str) -> bool:
    return file.startswith(_MACHINERY) and not any(part in file for part in _INSTALLED)
