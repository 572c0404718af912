"""Kill brokers with sinks, and the sinks' processes, under load. Then compare the targets with a ledger."""
