"""Store HookMQ's messages in a log that Apache Spark reads by offset, exactly once.

The plugin class is in `hookmq_spark_sink.plugin`.
"""
