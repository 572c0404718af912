"""The plugin: what the configuration's `use: auth_password` makes."""

from hookmq.plugin import Plugin


class AuthPasswordPlugin(Plugin):
    """User names and passwords for HookMQ, from a YAML file or mosquitto's password_file."""
