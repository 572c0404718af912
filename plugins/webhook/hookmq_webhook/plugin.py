"""The plugin: what the configuration's `use: webhook` makes."""

from hookmq.plugin import Plugin


class WebhookPlugin(Plugin):
    """What happens in HookMQ reaches HTTP services: in order, signed, and kept until it arrived."""
