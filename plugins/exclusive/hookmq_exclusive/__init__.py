"""Reserve a topic for one subscriber at a time. The plugin is in `hookmq_exclusive.plugin`."""
