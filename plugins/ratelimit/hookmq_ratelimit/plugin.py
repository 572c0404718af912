"""The plugin: what the configuration's `use: ratelimit` makes."""

from hookmq.plugin import Plugin


class RateLimitPlugin(Plugin):
    """Rate limits, quotas and bans for HookMQ's clients."""
