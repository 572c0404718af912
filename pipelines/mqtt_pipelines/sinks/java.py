"""Reach Spark's Java classes by their full names.

`spark._jvm.org.apache...` asks Java about each part of a name. For each part, Java searches all archives for a class of
that name, such as `org`. This takes about a millisecond.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def java_class(spark: SparkSession, name: str) -> Any:
    """Return a Java class, for calling its constructor or static methods.

    A wrong name fails only when the class is used.
    """
    from py4j.java_gateway import JavaClass  # type: ignore[import-untyped]

    gateway: Any = spark.sparkContext._gateway
    return JavaClass(name, gateway._gateway_client)


def java_object(spark: SparkSession, name: str) -> Any:
    """Return a Scala singleton object, for calling its methods."""
    return getattr(java_class(spark, f"{name}$"), "MODULE$")


def java_array(spark: SparkSession, name: str) -> Any:
    """Return an empty Java array for objects of the class `name`."""
    gateway: Any = spark.sparkContext._gateway
    return gateway.new_array(java_class(spark, name), 0)
