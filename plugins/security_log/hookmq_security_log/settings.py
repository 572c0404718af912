"""The settings of `use: security_log`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from hookmq.mqtt_api import validate_filter
from hookmq.plugin import ConfigError, ProtocolError, Seconds, Size, setting

MEBIBYTE: Final = 1024 * 1024


@dataclass(frozen=True)
class AlertSettings:
    """`alert:` decides when an address is reported as ``attack_suspected``."""

    events: int = setting(20, "number of hostile events of one address", minimum=1)
    period: Seconds = setting(60.0, "time in which they must happen", minimum=1)


@dataclass(frozen=True)
class FlappingSettings:
    """`flapping:` decides when a session is reported as ``client_flapping``."""

    takeovers: int = setting(5, "number of takeovers that are not reported", minimum=1)
    period: Seconds = setting(60.0, "time in which they are counted", minimum=1)


@dataclass(frozen=True)
class WatchSettings:
    """`watch:` lists the topics that are reported as ``topic_watched``."""

    subscribe: tuple[str, ...] = setting(
        ("#",), "a subscription that includes all topics of one of these filters is reported"
    )
    publish: tuple[str, ...] = setting(
        (), "messages to topics that match one of these filters are reported"
    )

    def __post_init__(self) -> None:
        for name in ("subscribe", "publish"):
            for filter in getattr(self, name):
                try:
                    validate_filter(filter)
                except ProtocolError as error:
                    raise ConfigError(f"watch.{name}: {filter!r}: {error.detail}") from None


@dataclass(frozen=True)
class SecurityLogConfig:
    """Settings of `use: security_log`."""

    log: bool = setting(True, "write the events to the broker's log, as `security.event`")
    file: str = setting("", "file for the events, one line of JSON each", path=True)
    max_bytes: Size = setting(16 * MEBIBYTE, "size at which the file is rotated", minimum=65536)
    files: int = setting(4, "number of rotated files that are kept", minimum=1, maximum=100)
    topics: bool = setting(False, "publish each event to `$SYS/security/EVENT`")
    burst: int = setting(
        5, "events of one name and address that are written one by one in each period", minimum=1
    )
    period: Seconds = setting(
        10.0, "time after which the repeated events of an address are written as one", minimum=1
    )
    max_rate: int = setting(100, "records a second in all; further ones are counted", minimum=1)
    max_sources: int = setting(
        10_000, "addresses, and sessions, that are remembered", minimum=100, maximum=1_000_000
    )
    alert: AlertSettings = setting(AlertSettings(), "when an address is reported")
    flapping: FlappingSettings = setting(FlappingSettings(), "when a session is reported")
    watch: WatchSettings = setting(WatchSettings(), "topics that are reported")

    def __post_init__(self) -> None:
        kinds: Mapping[str, Any] = {
            "alert": AlertSettings, "flapping": FlappingSettings, "watch": WatchSettings,
        }  # fmt: skip
        for name, kind in kinds.items():
            value = getattr(self, name)
            if isinstance(value, Mapping):
                object.__setattr__(self, name, kind(**value))
