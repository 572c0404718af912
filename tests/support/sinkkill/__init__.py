"""Kill brokers with sinks and the processes of their sinks under load, and compare the targets with a ledger."""
