"""Check user names and passwords against a YAML file or mosquitto's password_file. The plugin is in `plugin`."""
