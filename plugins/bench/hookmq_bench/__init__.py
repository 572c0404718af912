"""`hookmq bench`: a load test of any MQTT broker. The command is `hookmq_bench.cli`."""
