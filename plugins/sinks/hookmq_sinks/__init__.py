"""The `sinks` plugin, which writes messages to other systems. `hookmq_sinks.driver` describes the contract for
drivers.
"""
