"""The plugin: what the configuration's `use: acl_file` makes."""

from hookmq.plugin import Plugin


class AclFilePlugin(Plugin):
    """Access rules for HookMQ in one file, in YAML or in mosquitto's acl_file format."""
