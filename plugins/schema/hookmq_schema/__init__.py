"""Check payloads by topic. The plugin is in `hookmq_schema.plugin`."""
