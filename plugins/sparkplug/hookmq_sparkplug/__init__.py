"""Support Sparkplug B as a Sparkplug aware broker. The plugin is in `hookmq_sparkplug.plugin`."""
