"""Reach Spark's Java classes by their full names.

`spark._jvm.org.apache...` asks Java about each part of a name. Java then searches all archives for a class named `org`,
which takes about a millisecond for each part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def java_class(spark: SparkSession, name: str) -> Any:
    """Return a class, to call its constructor or its static methods. A wrong name fails only when it is used."""
    from py4j.java_gateway import JavaClass  # type: ignore[import-untyped]

    gateway: Any = spark.sparkContext._gateway
    return JavaClass(name, gateway._gateway_client)


def java_object(spark: SparkSession, name: str) -> Any:
    """Return an object of Scala, to call its methods."""
    return getattr(java_class(spark, f"{name}$"), "MODULE$")


def java_array(spark: SparkSession, name: str) -> Any:
    """Return an empty array of objects of a class."""
    gateway: Any = spark.sparkContext._gateway
    return gateway.new_array(java_class(spark, name), 0)
