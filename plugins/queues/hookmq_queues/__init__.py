"""Durable queues. The plugin is in `hookmq_queues.plugin`."""
