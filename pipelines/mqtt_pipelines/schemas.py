"""The columns of every table, with their names, types and meanings. No other module defines columns.

In every table with one row per message, (`log_id`, `partition`, `offset`) is the message's key.
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
    "log_id": StringType(),  # the log that the offsets belong to; a recreated log has another id
    "timestamp": BASE["timestamp"],  # the time when the broker received the message
}

RAW: Final = _schema({**BASE, **PROPERTIES, "headers": HEADERS, "log_id": StringType()})
"""The columns of a source: every column of ``format("mqtt")``."""

BRONZE: Final = _schema(
    {
        **BASE,
        **PROPERTIES,
        "headers": HEADERS,
        "log_id": StringType(),
        "ingest_date": DateType(),  # the date of `timestamp` in UTC, which partitions bronze
    }
)
"""Unmodified messages as received."""

SILVER_BEFORE: Final[dict[str, DataType]] = {
    "device": StringType(),
    "event_time": TimestampType(),
    "message_id": StringType(),  # null if the publisher set no id
}
"""Silver's columns before the payload's columns."""
SILVER_AFTER: Final[dict[str, DataType]] = {"client_id": BASE["client_id"], **_ORIGIN}
"""Silver's columns after the payload's columns."""


def silver(payload: StructType) -> StructType:
    """Return silver's columns. Each payload field becomes a column."""
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
        StructField("detail", StringType()),  # the field that is missing or has the wrong type
        *RAW.fields,
    ]
)
"""Complete messages that could not be parsed. They can be parsed again after you correct the configuration."""

GOLD: Final = _schema(
    {
        "device": StringType(),
        "metric": StringType(),  # the name of the column in silver
        "window_start": TimestampType(),
        "window_end": TimestampType(),
        "count": LongType(),  # the number of values that are not null
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
        "offline_at": TimestampType(),  # null while the device is online
        "seconds": DoubleType(),  # the duration of the session; null while the device is online
        "messages": LongType(),  # number of messages, without status messages
        # What ended the session: `lifecycle` is a status message or will, `gap` is silence, and null means it is
        # online.
        "how": StringType(),
    }
)
"""A row for each period in which a device was online."""

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
"""A row for each value that is unusual for its device."""

METRICS: Final = _schema(
    {
        "group_id": StringType(),
        "edge_node": StringType(),
        "message_type": StringType(),  # NBIRTH, DBIRTH, NDATA or DDATA
        "device": StringType(),  # null for the edge node itself
        "metric": StringType(),
        "event_time": TimestampType(),
        "datatype": StringType(),
        "value_long": LongType(),  # integers; a DateTime is in milliseconds since 1970
        "value_double": DoubleType(),  # Float and Double; UInt64 above 2^63
        "value_boolean": BooleanType(),
        "value_string": StringType(),  # String, Text and UUID; arrays, DataSet and Template as JSON
        "value_bytes": BinaryType(),  # Bytes and File, and the raw form of arrays
        "is_null": BooleanType(),
        "is_historical": BooleanType(),
        **_ORIGIN,
    }
)
"""A row for each metric of a Sparkplug B message."""
