"""Compare a batch's columns with a table's columns. A column can be equal, missing, new, or of another type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark_mqtt.errors import MqttError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

CURES = "cast the column in the pipeline, or write to another table"


def arrow(schema: StructType) -> pa.Schema:
    """Return a batch's columns as they are written to files. Times are in UTC microseconds. Raises MqttError for
    unsupported types.
    """
    import pyarrow as pa
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_type

    fields = []
    for column in schema.fields:
        try:
            kind = to_arrow_type(column.dataType, timezone="UTC")
        except PySparkException:
            raise MqttError(
                f"Column {column.name} is {column.dataType.simpleString()}, which tables cannot hold: cast it, to string "
                "for instance."
            ) from None
        fields.append(pa.field(column.name, plain(kind)))
    return pa.schema(fields)


def plain(kind: pa.DataType) -> pa.DataType:
    """Return a type without irrelevant details such as offset length, element names and nullability."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, plain(one.type)) for one in kind])
    if pa.types.is_map(kind):
        return pa.map_(plain(kind.key_type), plain(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_list_view(kind):
        return pa.list_(pa.field("element", plain(kind.value_type)))
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    return kind


def table(found: pa.Table) -> pa.Table:
    """Return a table with its types simplified for Spark."""
    import pyarrow as pa

    return found.cast(pa.schema([pa.field(one.name, plain(one.type)) for one in found.schema]))


def new(batch: pa.Schema, table: pa.Schema, name: str, policy: str) -> list[pa.Field]:
    """Return the columns that only the batch has. If only the table has a column, the new rows have null in it.

    Raises MqttError if types differ, or if there are new columns and `policy` is not ``add``.
    """
    for field in table:
        if field.name not in batch.names:
            if not field.nullable:
                raise MqttError(
                    f"{name} needs column {field.name}, which may not be null there, and the pipeline does not "
                    "make it: add it, or write to another table."
                )
            continue
        given, wanted = batch.field(field.name).type, plain(field.type)
        if given != wanted:
            raise MqttError(
                f"Column {field.name} of {name} is {wanted}, and the pipeline makes it {given}: {CURES}."
            )
    added = [field for field in batch if field.name not in table.names]
    if added and policy != "add":
        columns = ", ".join(f"{field.name} ({field.type})" for field in added)
        raise MqttError(
            f"{name} has no column {columns}: set `new_columns: add` for the table, which gives older rows null there, "
            "or drop the column in the pipeline."
        )
    return added


def partitions(given: Sequence[str], found: Sequence[str], batch: Sequence[str], name: str) -> None:
    """Check that the partition columns match the table and exist in the batch. Raises MqttError otherwise."""
    if given and list(given) != list(found):
        raise MqttError(
            f"{name} is partitioned by {', '.join(found) or 'nothing'}, and `partition_by` says "
            f"{', '.join(given)}: say the same, or write to another table."
        )
    for column in found:
        if column not in batch:
            raise MqttError(
                f"{name} is partitioned by {column}, which is none of the pipeline's columns: "
                f"{', '.join(batch)}."
            )
