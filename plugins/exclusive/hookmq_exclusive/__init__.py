"""Give a topic to one subscriber at a time. The plugin is in `hookmq_exclusive.plugin`."""
