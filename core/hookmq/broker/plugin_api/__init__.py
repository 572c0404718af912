"""The handle through which a plugin calls the broker."""

from hookmq.broker.plugin_api.handle import PluginBroker

__all__ = ["PluginBroker"]
