"""The plugin: what the configuration's `use: auth_http` makes."""

from hookmq.plugin import Plugin


class AuthHttpPlugin(Plugin):
    """Authentication and authorization of HookMQ's clients by an HTTP service."""
