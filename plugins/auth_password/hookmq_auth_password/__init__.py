"""User names and passwords for HookMQ, from a YAML file or mosquitto's password_file. The plugin is in `plugin`."""
