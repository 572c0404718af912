"""The columns of ``format("mqtt")`` and the options that add columns. Column names follow Kafka and Bahir."""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_mqtt.errors import OptionError
from pyspark_mqtt.options import Options

HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
)
BASE: dict[str, DataType] = {
    "topic": StringType(),
    "payload": BinaryType(),
    "qos": IntegerType(),
    "retain": BooleanType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "client_id": StringType(),
}
PROPERTIES: dict[str, DataType] = {
    "content_type": StringType(),
    "response_topic": StringType(),
    "correlation_data": BinaryType(),
}
READABLE: dict[str, DataType] = {**BASE, **PROPERTIES, "headers": HEADERS, "log_id": StringType()}
"""All columns. ``log_id``, the id of the log that the offsets belong to, is read only if ``.schema`` includes it."""

WRITABLE: dict[str, tuple[type[DataType], ...]] = {
    "topic": (StringType,),
    "payload": (BinaryType, StringType),
    "value": (BinaryType, StringType),
    "qos": (IntegerType, LongType),
    "retain": (BooleanType,),
    "content_type": (StringType,),
    "response_topic": (StringType,),
    "correlation_data": (BinaryType,),
    "headers": (ArrayType,),
    "message_id": (StringType,),
    "partition": (IntegerType, LongType),
    "offset": (LongType, IntegerType),
}
_UNUSED = {"timestamp", "client_id", "key", "log_id"}
"""Columns of received messages that are ignored when the rows are published."""


@dataclass(frozen=True)
class Column:
    """A column that readers can return."""

    name: str
    nullable: bool = True
    element_nullable: bool = True
    """Whether an element may be null; used for ``headers``."""
    key_nullable: bool = True
    value_nullable: bool = True


def schema(options: Options) -> StructType:
    """Return the columns that a reader returns by default."""
    chosen = dict(BASE)
    if options.flag("includeProperties"):
        chosen |= PROPERTIES
    if options.flag("includeHeaders"):
        chosen["headers"] = HEADERS
    return StructType([StructField(name, kind) for name, kind in chosen.items()])


def columns(given: StructType) -> tuple[Column, ...]:
    """Return the columns of a requested schema: any known columns, in any order. Only these are sent over the
    network.

    Raises OptionError for the first column that is unknown or has the wrong type.
    """
    chosen = []
    for field in given.fields:
        kind = READABLE.get(field.name)
        if kind is None:
            raise OptionError(
                f"Column {field.name} is not one of mqtt's: {', '.join(READABLE)}. Leave .schema(...) out, or "
                "name some of these."
            )
        if _shape(field.dataType) != _shape(kind):
            raise OptionError(
                f"Column {field.name} of mqtt is {kind.simpleString()}, not {field.dataType.simpleString()}: "
                "leave .schema(...) out and cast the column."
            )
        if isinstance(field.dataType, ArrayType) and isinstance(
            field.dataType.elementType, StructType
        ):
            pair = field.dataType.elementType.fields
            chosen.append(
                Column(
                    field.name,
                    field.nullable,
                    field.dataType.containsNull,
                    pair[0].nullable,
                    pair[1].nullable,
                )
            )
        else:
            chosen.append(Column(field.name, field.nullable))
    if not chosen:
        raise OptionError(
            "A schema without columns was asked for: name some of " + ", ".join(READABLE) + "."
        )
    return tuple(chosen)


def _shape(kind: DataType) -> str:
    return kind.simpleString()


def check_written(given: StructType, options: Options) -> None:
    """Raise OptionError unless the columns of a DataFrame can be published."""
    names = [field.name for field in given.fields]
    for field in given.fields:
        if field.name in _UNUSED:
            continue
        kinds = WRITABLE.get(field.name)
        if kinds is None:
            raise OptionError(
                f"Column {field.name} is not one that is published: {', '.join(WRITABLE)}. Drop it, or put it into "
                "payload, for instance with to_json(struct(...))."
            )
        if not isinstance(field.dataType, kinds) or (
            field.name == "headers" and _shape(field.dataType) != _shape(HEADERS)
        ):
            wanted = " or ".join(kind.typeName() for kind in kinds)
            raise OptionError(
                f"Column {field.name} is {field.dataType.simpleString()}, and must be "
                f"{HEADERS.simpleString() if field.name == 'headers' else wanted}: cast it."
            )
    if ("payload" in names) == ("value" in names):
        raise OptionError(
            "The DataFrame needs a column payload (or value, as for Kafka), binary or string; "
            f"it has {_list(names)}."
        )
    if "topic" not in names and not options.text("topic"):
        raise OptionError(
            f'The DataFrame has no column topic ({_list(names)}): add one, or .option("topic", ...).'
        )


def _list(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
