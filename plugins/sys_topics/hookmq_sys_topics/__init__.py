"""Publish statistics below $SYS. The plugin is in `hookmq_sys_topics.plugin`."""
