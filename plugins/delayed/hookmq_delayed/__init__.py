"""Publish messages after a delay. The plugin is in `hookmq_delayed.plugin`."""
