"""Access rules for HookMQ in one file, in YAML or in mosquitto's acl_file format: `hookmq_acl_file.plugin`."""
