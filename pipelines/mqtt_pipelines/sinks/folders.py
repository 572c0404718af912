"""Choose folder names for the partitions of Parquet files.

Spark names a folder ``COLUMN=VALUE`` and stores the value nowhere else. If a value has more than about 240 bytes, the
folder cannot be created, and the query ends. An empty text and ``__HIVE_DEFAULT_PARTITION__`` become null. If all
values consist of digits, a reader takes them for numbers and reads ``001`` as 1. Here, the column's value therefore
stays in the files, and a separate column provides the folder names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SUFFIX: Final = "_folder"
"""The suffix that turns a column's name into the name of its folder column."""
PLAIN: Final = r"\A(?!(?i:nan|infinity)\z)[A-Za-z][A-Za-z0-9_.]{0,47}\z"
"""Matches text that can be used unchanged as a folder name: no reader mistakes it for a number, a time or null."""
SHOWN: Final = 32
"""Number of characters of any other text that the folder name keeps. A hash follows, which makes the name unique.
"""


def placed(frame: DataFrame, partition_by: Sequence[str]) -> tuple[DataFrame, list[str]]:
    """Return the frame with folder columns added, and the names of the columns to partition by.

    Integers, booleans and dates are short, so their values name the folders directly. All other columns stay in the
    files, and `NAME_folder` provides the folder names.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import BooleanType, DateType, IntegralType

    names = []
    for name in partition_by:
        if isinstance(frame.schema[name].dataType, IntegralType | BooleanType | DateType):
            names.append(name)
            continue
        names.append(column(name))
        frame = frame.withColumn(column(name), folder(f.col("`" + name.replace("`", "``") + "`")))
    return frame, names


def column(name: str) -> str:
    """Return the name of the column that provides the folder names for another column."""
    return f"{name}{SUFFIX}"


def folder(value: Column) -> Column:
    """Return a folder name for a value of any type. It has at most 65 ASCII characters. Equal values have equal names,
    and null has null.
    """
    from pyspark.sql import functions as f

    text = value.cast("string")
    shown = f.regexp_replace(f.substring(text, 1, SHOWN), "[^A-Za-z0-9_.]", "_")
    other = f.concat(shown, f.lit("-h"), f.substring(f.sha1(text.cast("binary")), 1, 24))
    return f.when(text.rlike(PLAIN), text).when(text.isNotNull(), other)
