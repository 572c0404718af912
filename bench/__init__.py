"""Benchmarks that compare HookMQ with other MQTT brokers. See `python -m bench --help` and bench/README.md."""
