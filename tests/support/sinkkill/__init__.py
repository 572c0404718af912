"""Kill brokers and the processes of their sinks under load. Then compare the targets with a ledger."""
