"""Authorize clients by rules in one file. The plugin is in `hookmq_acl_file.plugin`."""
