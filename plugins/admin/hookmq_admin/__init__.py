"""A REST API for the operators of a broker. The plugin is in `hookmq_admin.plugin`."""
