"""Columns of every table: names, types, and what they mean. The one place where they are written down.

A message's key is (`log_id`, `partition`, `offset`) in every table that has one row per message.
"""

from typing import Final

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from pyspark_mqtt.schema import BASE, HEADERS, PROPERTIES


def _schema(columns: dict[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


_ORIGIN: Final[dict[str, DataType]] = {
    "topic": BASE["topic"],
    "partition": BASE["partition"],
    "offset": BASE["offset"],
    "log_id": StringType(),  # of the log that offsets count in: made anew, it is another
    "timestamp": BASE["timestamp"],  # when the broker got it
}

RAW: Final = _schema({**BASE, **PROPERTIES, "headers": HEADERS, "log_id": StringType()})
"""What a source gives: every column of ``format("mqtt")``."""

BRONZE: Final = _schema(
    {
        **BASE,
        **PROPERTIES,
        "headers": HEADERS,
        "log_id": StringType(),
        "ingest_date": DateType(),  # of `timestamp`, in UTC: what bronze is partitioned by
    }
)
"""Messages as they came: nothing is parsed, nothing is left out."""

SILVER_BEFORE: Final[dict[str, DataType]] = {
    "device": StringType(),
    "event_time": TimestampType(),
    "message_id": StringType(),  # null where the publisher gave none
}
"""Silver's columns before those of the payload."""
SILVER_AFTER: Final[dict[str, DataType]] = {"client_id": BASE["client_id"], **_ORIGIN}
"""Silver's columns after those of the payload."""


def silver(payload: StructType) -> StructType:
    """Messages that were understood, each once: the payload's fields are columns."""
    return StructType(
        [
            *_schema(SILVER_BEFORE).fields,
            *(StructField(field.name, field.dataType) for field in payload.fields),
            *_schema(SILVER_AFTER).fields,
        ]
    )


DEAD_LETTER: Final = StructType(
    [
        StructField("reason", StringType()),  # one of transforms.parse.REASONS
        StructField("detail", StringType()),  # the field that was missing or of another type
        *RAW.fields,
    ]
)
"""Messages that were not understood, whole: enough to run them again when the configuration has learnt more."""

GOLD: Final = _schema(
    {
        "device": StringType(),
        "metric": StringType(),  # the name of silver's column
        "window_start": TimestampType(),
        "window_end": TimestampType(),
        "count": LongType(),  # of values that are not null
        "min": DoubleType(),
        "avg": DoubleType(),
        "max": DoubleType(),
    }
)
"""A row for each device, metric and window of event time."""

PRESENCE: Final = _schema(
    {
        "device": StringType(),
        "online_at": TimestampType(),
        "offline_at": TimestampType(),  # null while it is online
        "seconds": DoubleType(),  # between them; null while it is online
        "messages": LongType(),  # without those that say that it came or went
        "how": StringType(),  # `lifecycle`: it said goodbye or its will did; `gap`: it fell silent; null: it is online
    }
)
"""A row for each time that a device was online."""

ALERTS: Final = _schema(
    {
        "device": StringType(),
        "metric": StringType(),
        "event_time": TimestampType(),
        "value": DoubleType(),
        "expected": DoubleType(),
        "score": DoubleType(),
        **_ORIGIN,
    }
)
"""A row for each value that is far from what the device sends otherwise."""

METRICS: Final = _schema(
    {
        "group_id": StringType(),
        "edge_node": StringType(),
        "message_type": StringType(),  # NBIRTH, DBIRTH, NDATA or DDATA
        "device": StringType(),  # null for the edge node itself
        "metric": StringType(),
        "event_time": TimestampType(),
        "datatype": StringType(),
        "value_long": LongType(),  # integers; DateTime as milliseconds since 1970
        "value_double": DoubleType(),  # Float and Double; UInt64 beyond 2^63
        "value_boolean": BooleanType(),
        "value_string": StringType(),  # String, Text, UUID; arrays, DataSet and Template as JSON
        "value_bytes": BinaryType(),  # Bytes, File, and what arrays came as
        "is_null": BooleanType(),
        "is_historical": BooleanType(),
        **_ORIGIN,
    }
)
"""A row for each metric of a Sparkplug B message."""
