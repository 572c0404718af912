"""Publish which clients are connected. The plugin is in `hookmq_presence.plugin`."""
