"""Determine when each device was online, based on status messages, wills and silence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import LongType, StringType, StructField, StructType

from mqtt_pipelines import schemas
from mqtt_pipelines.settings import Seconds, required, setting
from mqtt_pipelines.transforms import filters
from mqtt_pipelines.transforms.parse import Device
from mqtt_pipelines.transforms.stateful import Fold, Output, Value, fold

OFFLINE, ONLINE, MESSAGE = range(3)
_MADE: Final = StructType(
    [
        StructField("device", StringType()),
        StructField("online_at", LongType()),
        StructField("offline_at", LongType()),
        StructField("messages", LongType()),
        StructField("how", StringType()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifecycle:
    """``presence.lifecycle:`` messages that say that a device is online or offline, such as its will."""

    topics: tuple[str, ...] = required("topic filters of status messages: `devices/+/status`")
    online: tuple[str, ...] = setting(
        ("online",), "payloads that say that the device is online; case is ignored"
    )
    offline: tuple[str, ...] = setting(("offline",), "payloads that say that the device is offline")
    field: str = setting("", "the JSON field with the status; empty: the whole payload")
    device: Device | None = setting(
        None, "where to find the device's name in these messages, if it differs from others"
    )

    def __post_init__(self) -> None:
        if not self.topics:
            raise ValueError("topics: expected one topic filter at least")
        for one in self.topics:
            filters.pattern(one)


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
    """``presence:`` where to find the device's name, and how long a silent device counts as online."""

    device: Device = field(
        metadata={"help": "where to find the device's name; `field` is not allowed here"}
    )
    gap: Seconds = setting(
        300.0, "a device that is silent for longer is offline; 0: only `lifecycle` decides"
    )
    lifecycle: Lifecycle | None = setting(
        None, "status messages; without them only silence decides"
    )
    slack: Seconds = setting(60.0, "how far one partition may be read ahead of another")

    def __post_init__(self) -> None:
        if not self.gap and self.lifecycle is None:
            raise ValueError("gap: 0 needs lifecycle")
        for one in (self.device, self.lifecycle and self.lifecycle.device):
            if one and one.field:
                raise ValueError("device: give topic_level or client_id; payloads are not read")


def presence(raw: DataFrame, by: Presence) -> DataFrame:
    """Turn rows of `schemas.RAW` into rows of `schemas.PRESENCE`, one for each period in which a device was online. All
    times come from the broker's clock.

    A stream yields a row once the session has ended and all earlier events have arrived. It therefore waits for `slack`
    and, after a silence, also for `gap`. A batch yields all sessions up to its newest message. In unfinished sessions,
    `offline_at` is null.
    """
    events = raw.select(
        _device(by).alias("device"),
        _kind(by).alias("kind"),
        "timestamp",
        f.unix_micros("timestamp").alias("at"),
        "log_id",
        "partition",
        "offset",
    ).where("kind is not null and device is not null and device != ''")
    if raw.isStreaming:
        events = events.withWatermark("timestamp", f"{int(by.slack * 1000)} milliseconds")
    made = fold(events, ["device"], Sessions(int(by.gap * 1e6)), _MADE, "timestamp")
    length = (f.col("offline_at") - f.col("online_at")) / 1e6
    return made.select(
        "device",
        f.timestamp_micros("online_at").alias("online_at"),
        f.timestamp_micros("offline_at").alias("offline_at"),
        length.alias("seconds"),
        "messages",
        "how",
    ).select(*schemas.PRESENCE.names)


def _named(one: Device) -> Column:
    if one.client_id:
        return f.col("client_id")
    return f.get(f.split("topic", "/"), f.lit(one.topic_level))


def _device(by: Presence) -> Column:
    own = _named(by.device)
    if by.lifecycle is None or by.lifecycle.device is None:
        return own
    said = filters.matches(f.col("topic"), by.lifecycle.topics)
    return f.when(said, _named(by.lifecycle.device)).otherwise(own)


def _kind(by: Presence) -> Column:
    """Return what kind of message this is. Return null for a status message that means neither online nor offline."""
    if by.lifecycle is None:
        return f.lit(MESSAGE)
    text = f.col("payload").cast("string")
    if by.lifecycle.field:
        text = f.get_json_object(text, f"$['{by.lifecycle.field}']")
    text = f.lower(f.btrim(text, f.lit(" \t\r\n\0")))
    said = (
        f.when(text.isin([one.lower() for one in by.lifecycle.online]), ONLINE)
        .when(text.isin([one.lower() for one in by.lifecycle.offline]), OFFLINE)
        .otherwise(None)
    )
    status = filters.matches(f.col("topic"), by.lifecycle.topics)
    return f.when(status, said).otherwise(MESSAGE)


class Sessions(Fold):
    """A fold that determines the sessions of one device.

    Events wait until all earlier events have arrived, and are then handled in order. How they are divided into batches
    therefore makes no difference. `gap` is in µs; 0 means no gap.
    """

    times = True

    def __init__(self, gap: int) -> None:
        self.gap = gap

    def begin(self) -> Any:
        """Return the initial state. It holds the waiting events as [at, log_id, partition, offset, kind], and the
        session as [online_at, last, messages].
        """
        return {"events": [], "open": None}

    def rows(self, key: Sequence[Any], state: Any, rows: list[Value]) -> Iterator[Output]:
        """Add events; see `Fold`."""
        state["events"] += [
            [row["at"], row["log_id"] or "", row["partition"], row["offset"], row["kind"]]
            for row in rows
        ]
        return iter(())

    def due(self, state: Any) -> int | None:
        """Return when to call `wake`; see `Fold`."""
        times = [event[0] for event in state["events"]]
        if state["open"] is not None and self.gap:
            times.append(state["open"][1] + self.gap)
        return min(times, default=None)

    def forgotten(self, state: Any) -> bool:
        """Return whether the state is empty; see `Fold`."""
        return state["open"] is None and not state["events"]

    def wake(self, key: Sequence[Any], state: Any, until: int) -> Iterator[Output]:
        """Handle waiting events; see `Fold`."""
        events = sorted(state["events"])
        ready = [event for event in events if event[0] < until]
        state["events"] = events[len(ready) :]
        for at, _, _, _, kind in ready:
            yield from self._silent(key, state, at)
            if kind == OFFLINE:
                yield from self._close(key, state, at, "lifecycle")
                continue
            if state["open"] is None and (kind == ONLINE or self.gap):
                state["open"] = [at, at, 0]
            if state["open"] is not None:
                state["open"][1] = at
                state["open"][2] += kind == MESSAGE
        yield from self._silent(key, state, until)

    def _silent(self, key: Sequence[Any], state: Any, at: int) -> Iterator[Output]:
        session = state["open"]
        if session is not None and self.gap and at - session[1] > self.gap:
            yield from self._close(key, state, session[1], "gap")

    def _close(
        self, key: Sequence[Any], state: Any, at: int | None, how: str | None
    ) -> Iterator[Output]:
        session, state["open"] = state["open"], None
        if session is not None:
            yield (key[0], session[0], at, session[2], how)

    def end(self, key: Sequence[Any], state: Any, until: int) -> Iterator[Output]:
        """Yield the remaining rows, including those for unfinished sessions; see `Fold`."""
        yield from self.wake(key, state, until + 1)
        yield from self._close(key, state, None, None)
