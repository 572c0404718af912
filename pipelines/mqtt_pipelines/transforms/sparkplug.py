"""Sparkplug B: one row for each metric, named according to the birth message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from mqtt_pipelines import schemas
from mqtt_pipelines.settings import setting
from mqtt_pipelines.transforms import tahu
from mqtt_pipelines.transforms.stateful import Fold, Output, Value, fold, in_order

REASONS: Final = {
    "bad_topic": "it is under the namespace, but no topic of Sparkplug",
    "bad_payload": "it is not a Sparkplug B payload; `detail` gives the reason",
    "unknown_metric": "a metric has no name, and no birth said what its alias is; `detail` has the alias",
    "bad_value": "a metric's value is not of its data type; `detail` has its name",
}
"""The reasons for dead letters."""

BIRTHS: Final = ("NBIRTH", "DBIRTH")
_NODE: Final = ("NBIRTH", "NDATA")
_DEVICE: Final = ("DBIRTH", "DDATA")
_OTHERS: Final = ("NDEATH", "NCMD", "DDEATH", "DCMD", "STATE")
"""Valid message types that this job ignores."""
_FLAT: Final = (
    ("event_at", LongType()), ("is_null", BooleanType()), ("is_historical", BooleanType()), ("metric", StringType()),
    ("datatype", StringType()), ("value_long", LongType()), ("value_double", DoubleType()),
    ("value_boolean", BooleanType()), ("value_string", StringType()), ("value_bytes", BinaryType()),
)  # fmt: skip
_MADE: Final = StructType(
    [
        StructField("log_id", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("at", LongType()),
        StructField("topic", StringType()),
        StructField("reason", StringType()),
        StructField("detail", StringType()),
        *(StructField(name, kind) for name, kind in _FLAT),
    ]
)
_LAST: Final = 253_402_300_800_000_000
"""The year 10000, in µs since 1970."""
_WHOLE: Final = tuple(
    name for name in schemas.RAW.names if name not in ("log_id", "partition", "offset", "topic")
)
"""Additional columns for a dead letter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sparkplug:
    """``sparkplug:`` which topics carry Sparkplug B messages."""

    namespace: str = setting("spBv1.0", "the first level of Sparkplug topics")

    def __post_init__(self) -> None:
        if not self.namespace or set("/+#") & set(self.namespace):
            raise ValueError("namespace: expected one level of a topic")


def metrics(raw: DataFrame, by: Sparkplug) -> DataFrame:
    """Turn rows of `schemas.RAW` into rows of `schemas.METRICS`. Each edge node's births and data are handled in the
    log's order.

    If any metric in a message cannot be parsed, the message yields no rows and becomes one of the `dead_letters`.
    """
    return metrics_of(fold(_addressed(raw, by), ["group_id", "edge_node"], Node(), _MADE))


def dead_letters(raw: DataFrame, by: Sparkplug) -> DataFrame:
    """Turn the rows of `schemas.RAW` that `metrics` could not parse into rows of `schemas.DEAD_LETTER`."""
    return dead_letters_of(both(raw, by))


def both(raw: DataFrame, by: Sparkplug) -> DataFrame:
    """Parse the rows of `schemas.RAW` once. Pass the result to `metrics_of` and `dead_letters_of`."""
    whole = StructType(
        [*_MADE.fields, *(schemas.RAW[name] for name in _WHOLE if name != "timestamp")]
    )
    return fold(_addressed(raw, by, whole=True), ["group_id", "edge_node"], Node(_WHOLE), whole)


def metrics_of(made: DataFrame) -> DataFrame:
    """Return the rows of `schemas.METRICS` from the result of `both`."""
    return (
        made.where("reason is null")
        .withColumns(_levels())
        .withColumns(
            {
                "event_time": f.timestamp_micros("event_at"),
                "timestamp": f.timestamp_micros("at"),
            }
        )
        .select(*schemas.METRICS.names)
    )


def dead_letters_of(made: DataFrame) -> DataFrame:
    """Return the rows of `schemas.DEAD_LETTER` from the result of `both`."""
    return (
        made.where("reason is not null")
        .withColumn("timestamp", f.timestamp_micros("at"))
        .select("reason", "detail", *schemas.RAW.names)
    )


def _levels() -> dict[str, Column]:
    levels = f.split("topic", "/")
    return {
        "group_id": f.get(levels, f.lit(1)),
        "message_type": f.get(levels, f.lit(2)),
        "edge_node": f.get(levels, f.lit(3)),
        "device": f.get(levels, f.lit(4)),
    }


def _addressed(raw: DataFrame, by: Sparkplug, whole: bool = False) -> DataFrame:
    """Return the Sparkplug messages that may contain metrics, together with their edge nodes."""
    levels = f.split("topic", "/")
    group, kind = f.get(levels, f.lit(1)), f.get(levels, f.lit(2))
    other = kind.isin(*_OTHERS) | (group == "STATE")
    found = raw.where(f.col("topic").startswith(by.namespace + "/")).where(
        ~f.coalesce(other, f.lit(False))
    )
    names = ["log_id", "partition", "offset", "topic", "payload"]
    more = [name for name in _WHOLE if name not in ("payload", "timestamp")] if whole else []
    return found.select(
        f.coalesce(group, f.lit("")).alias("group_id"),
        f.coalesce(f.get(levels, f.lit(3)), f.lit("")).alias("edge_node"),
        f.unix_micros("timestamp").alias("at"),
        *names,
        *more,
    )


class _Mistake(Exception):
    """Raised if a message must become a dead letter."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


class Node(Fold):
    """A fold that keeps an edge node's births: the metrics of the node and of its devices, by alias and by name.

    `whole` lists the message columns that are copied to a dead letter.
    """

    def __init__(self, whole: Sequence[str] = ()) -> None:
        self.whole = tuple(name for name in whole if name != "timestamp")

    def begin(self) -> Any:
        """Return the initial state, which is empty. For each device ('' is the node itself), the state maps aliases to
        names and types, and names to types.
        """
        return {}

    def rows(self, key: Sequence[Any], state: Any, rows: list[Value]) -> Iterator[Output]:
        """Parse messages; see `Fold`."""
        nothing = (None,) * len(self.whole)
        for row in in_order(rows):
            place = (row["log_id"], row["partition"], row["offset"], row["at"], row["topic"])
            try:
                for made in self._message(state, row):
                    yield (*place, None, None, *made, *nothing)
            except _Mistake as mistake:
                whole = [row[name] for name in self.whole]
                yield (
                    *place,
                    mistake.reason,
                    mistake.detail or None,
                    *(None,) * len(_FLAT),
                    *whole,
                )

    def _message(self, state: Any, row: Value) -> list[Output]:
        kind, device = _parsed(row["topic"])
        try:
            payload = tahu.decode(bytes(row["payload"] or b""))
        except ValueError as error:
            raise _Mistake("bad_payload", str(error)) from None
        # A birth that cannot be parsed does not change the state.
        known = _born(payload) if kind in BIRTHS else state.get(device)
        found = [_metric(one, payload, known, row["at"]) for one in payload.metrics]
        if kind == "NBIRTH":
            state.clear()  # the node's devices must also be born again
        if kind in BIRTHS:
            state[device] = known
        return found


def _parsed(topic: str) -> tuple[str, str]:
    """Return a message's type and its device."""
    levels = topic.split("/")
    kind = levels[2] if len(levels) > 2 else ""
    fits = (len(levels) == 4 and kind in _NODE) or (len(levels) == 5 and kind in _DEVICE)
    if not fits or not all(levels):
        raise _Mistake("bad_topic")
    return kind, levels[4] if kind in _DEVICE else ""


def _name(one: Any) -> str:
    try:
        return tahu.text(one.name)
    except ValueError as error:
        raise _Mistake("bad_payload", f"a metric's name is {error}") from None


def _born(payload: Any) -> Any:
    aliases, types = {}, {}
    for one in payload.metrics:
        name, datatype = _name(one), tahu.type_name(one.datatype)
        types[name] = datatype
        if one.HasField("alias"):
            aliases[str(one.alias)] = [name, datatype]
    return {"aliases": aliases, "types": types}


def _metric(one: Any, payload: Any, known: Any, at: int) -> Output:
    name, datatype = _called(one, known)
    if one.HasField("timestamp"):
        at = one.timestamp * 1000
    elif payload.HasField("timestamp"):
        at = payload.timestamp * 1000
    if not 0 <= at < _LAST:
        raise _Mistake("bad_value", f"{name}: its timestamp is out of range")
    empty = one.is_null or one.WhichOneof("value") is None
    try:
        value = tahu.Value() if empty else tahu.value(one, datatype)
    except ValueError as error:
        raise _Mistake("bad_value", f"{name}: {error}") from None
    return (at, empty, one.is_historical, name, datatype, *value)


def _called(one: Any, known: Any) -> tuple[str, str]:
    """Return a metric's name and data type."""
    own = tahu.type_name(one.datatype) if one.HasField("datatype") else ""
    if name := _name(one):
        types = known["types"] if known is not None else {}
        return name, own or types.get(name, "Unknown")
    if not one.HasField("alias"):
        raise _Mistake("unknown_metric", "neither name nor alias")
    found = known["aliases"].get(str(one.alias)) if known is not None else None
    if found is None:
        raise _Mistake("unknown_metric", f"alias {one.alias}")
    return found[0], own or found[1]
