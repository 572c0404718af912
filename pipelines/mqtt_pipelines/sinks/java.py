"""Access Spark's Java classes by their full names.

`spark._jvm.org.apache...` asks Java about each part of a name, such as `org`. Each time, Java searches all archives for
a class with that name, which takes about a millisecond.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def java_class(spark: SparkSession, name: str) -> Any:
    """Return a Java class so that its constructor or static methods can be called.

    A wrong name causes an error only when the class is used.
    """
    from py4j.java_gateway import JavaClass  # type: ignore[import-untyped]

    gateway: Any = spark.sparkContext._gateway
    return JavaClass(name, gateway._gateway_client)


def java_object(spark: SparkSession, name: str) -> Any:
    """Return a Scala singleton object so that its methods can be called."""
    return getattr(java_class(spark, f"{name}$"), "MODULE$")


def java_array(spark: SparkSession, name: str) -> Any:
    """Return an empty Java array whose elements are objects of the class `name`."""
    gateway: Any = spark.sparkContext._gateway
    return gateway.new_array(java_class(spark, name), 0)
