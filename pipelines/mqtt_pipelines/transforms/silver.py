"""Silver: messages that were understood, typed, each once."""

from dataclasses import dataclass, field
from typing import Literal

from mqtt_pipelines.settings import Seconds, required, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """``silver.device``: where the device's name stands; one of them."""

    topic_level: int | None = setting(None, "the topic's level, counted from 0", maximum=65535)
    field: str = setting("", "a field of the payload")
    client_id: bool = setting(False, "the publisher's client id")

    def __post_init__(self) -> None:
        if (self.topic_level is not None) + bool(self.field) + self.client_id != 1:
            raise ValueError("give one of topic_level, field and client_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTime:
    """``silver.event_time``: when it happened, as the payload says; without it the time at which the broker got it."""

    field: str = setting("", "a field of the payload; empty: the broker's time")
    unit: Literal["s", "ms", "us", "text"] = setting(
        "ms", "since 1970 in seconds, milliseconds, microseconds; or text as 2026-11-20T12:00:00Z"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Silver:
    """``silver``: how payloads are read, which messages are the same, how late one may be."""

    schema: str = required("the payload's fields in DDL: `celsius double not null, battery int`")
    device: Device = field(metadata={"help": "where the device's name stands"})
    event_time: EventTime = EventTime()
    message_id: str = setting("message-id", "the user property that is the same when sent again")
    deduplicate: tuple[str, ...] = setting(
        ("message_id",),
        "columns in which two messages must agree to be one; a message without message_id is like none. Empty: all stay",
    )
    late: Seconds = setting(600.0, "how long after its event the broker may get a message")
    ahead: Seconds = setting(60.0, "how far a device's clock may be ahead of the broker's")
    slack: Seconds = setting(60.0, "how far one partition may be read ahead of another")

    @property
    def watermark(self) -> float:
        """Seconds that state is kept for: no message that is on time is older than the newest by more than this."""
        return self.late + self.ahead + self.slack
