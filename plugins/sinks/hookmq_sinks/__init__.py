"""The `sinks` plugin writes messages to other systems. See `hookmq_sinks.driver` for the contract of drivers."""
