"""Write security events. The plugin is in `hookmq_security_log.plugin`."""
