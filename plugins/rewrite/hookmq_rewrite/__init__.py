"""Rewrite topics and topic filters. The plugin is in `hookmq_rewrite.plugin`."""
