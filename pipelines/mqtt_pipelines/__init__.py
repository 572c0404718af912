"""Write MQTT messages to tables with Apache Spark, exactly once."""
