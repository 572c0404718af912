"""A source's settings."""

from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache, cached_property
from importlib.metadata import entry_points
from typing import Any, Final, Literal

from hookmq.config_api import bind_values
from hookmq.plugin import ConfigError, Seconds, Size, setting

from hookmq_sinks.names import NAME
from hookmq_sinks.source import Source

GROUP: Final = "hookmq.sink_sources"


@cache
def find_source(name: str) -> type[Source]:
    """Return the class of a source. Raises ConfigError if it is not installed or not a source."""
    found = list(entry_points(group=GROUP, name=name))
    if not found:
        names = sorted({one.name for one in entry_points(group=GROUP)})
        close = get_close_matches(name, names, 1)
        hint = f"did you mean {close[0]}?" if close else f"installed: {', '.join(names)}"
        raise ConfigError(f"driver: {name!r} is not an installed source", hint=hint)
    try:
        kind = found[0].load()
    except Exception as error:
        raise ConfigError(f"driver: {name} cannot be loaded: {error}") from error
    if not (isinstance(kind, type) and issubclass(kind, Source)):
        raise ConfigError(f"driver: {found[0].value} is not a subclass of Source")
    return kind


@dataclass(frozen=True)
class SourceConfig:
    """A source's settings."""

    name: str = field(metadata={"help": "its name and that of its folder: letters, digits, _ . -"})
    driver: str = field(metadata={"help": "the kind of origin, such as mqtt"})
    origin: Any = field(
        default=None,
        metadata={
            "help": "the settings of the origin",
            "chosen_by": ("driver", lambda name: find_source(name).Settings),
        },
    )
    identity: str = setting(
        "", "identity with which messages are published here; default: source: and the name"
    )
    retry_first: Seconds = setting(
        0.5, "delay before connecting again; it doubles each time", minimum=0.01
    )
    retry_longest: Seconds = setting(60.0, "longest delay", minimum=0.01)
    on_refused: Literal["dead_letter", "skip"] = setting(
        "dead_letter",
        "what happens to messages that can never be published: they are stored with the reason, or only counted",
    )
    dead_letter_bytes: Size = setting(
        64 << 20, "largest size of the dead letters; the oldest are removed", minimum=1 << 16
    )

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ConfigError(f"name: {self.name!r} is not a name; use letters, digits, _ . -")
        if self.retry_longest < self.retry_first:
            raise ConfigError("retry_longest: less than retry_first")
        if not isinstance(self.origin, self.kind.Settings):
            bound: Any = bind_values(self.kind.Settings, self.origin or {})
            object.__setattr__(self, "origin", bound)

    @cached_property
    def kind(self) -> type[Source]:
        """The class of the source. Raises ConfigError."""
        return find_source(self.driver)

    @property
    def publisher(self) -> str:
        """The client identity under which messages are published to this broker."""
        return self.identity or f"source:{self.name}"
