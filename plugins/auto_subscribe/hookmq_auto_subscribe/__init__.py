"""Subscribe clients to topics when they connect. The plugin is in `hookmq_auto_subscribe.plugin`."""
