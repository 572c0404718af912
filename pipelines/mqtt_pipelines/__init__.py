"""MQTT into tables with Apache Spark, exactly once."""
