"""Messages of HookMQ in a log that Apache Spark reads by offset, exactly once.

The plugin is `hookmq_spark_sink.plugin`.
"""
