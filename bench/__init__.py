"""Benchmarks of HookMQ against other MQTT brokers: `python -m bench --help`; see bench/README.md."""
