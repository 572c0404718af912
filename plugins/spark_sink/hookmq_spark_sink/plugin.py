"""The plugin: what the configuration's `use: spark_sink` makes."""

from hookmq.plugin import Plugin


class SparkSinkPlugin(Plugin):
    """Messages of HookMQ in a log that Apache Spark reads by offset, exactly once."""
