"""`hookmq bench`: a load test for any MQTT broker. `hookmq_bench.cli` defines the command."""
