"""The plugin: what the configuration's `use: auth_jwt` makes."""

from hookmq.plugin import Plugin


class AuthJwtPlugin(Plugin):
    """JSON Web Tokens as identity, permissions and limits of HookMQ's clients."""
