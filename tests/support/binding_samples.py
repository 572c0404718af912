"""Sample dataclasses with every type that the configuration can bind, and a helper that binds them."""

import enum
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from hookmq.config.binding import ConfigBinder
from hookmq.config.diagnostics import ConfigProblems
from hookmq.config.units import Rate
from hookmq.config.yaml_document import parse
from hookmq.model.settings import Seconds, Size, setting


class Mood(enum.StrEnum):
    GOOD = "good"
    BAD = "bad"


@dataclass(frozen=True)
class Inner:
    path: str = "p"
    level: int = setting(1, "how deep", maximum=5)


@dataclass(frozen=True)
class Sample:
    flag: bool = False
    count: int = 0
    ratio: float = 0.0
    text: str = ""
    kind: Literal["a", "b", 3] = "a"
    mood: Mood = Mood.GOOD
    wait: Seconds = 1.0
    room: Size = 1
    rate: Rate = Rate(1, 1)
    rates: tuple[Rate, ...] = ()
    names: tuple[str, ...] = ()
    pair: tuple[int, str] = (0, "")
    items: list[int] = field(default_factory=list)
    chosen: frozenset[str] = frozenset()
    table: Mapping[str, Inner] = field(default_factory=dict)
    plain: dict[str, int] = field(default_factory=dict)
    inner: Inner = Inner()
    maybe: Inner | None = None
    either: int | str = 0
    many: tuple[str, ...] | str = ""
    limit: Annotated[float, "duration"] | None = None
    file: pathlib.Path = pathlib.Path()
    anything: Any = None
    hidden: int = field(default=7, metadata={"bind": False})


def bind(text: str, kind: Any = Sample, **environ: str) -> tuple[Any, list[str]]:
    problems = ConfigProblems()
    value = ConfigBinder(problems, environ).bind(parse(text, "f"), kind)
    return value, [str(error) for error in problems.errors]
