"""Find the plugin instance that a command uses."""

import argparse

from hookmq.cli_api import chosen
from hookmq.plugin import ConfigError

from hookmq_webhook.plugin import WebhookPlugin


def instance_of(arguments: argparse.Namespace) -> WebhookPlugin:
    """Return the instance that `arguments` names or, without a name, the only configured one. Raises ConfigError."""
    config = chosen(arguments, WebhookPlugin)
    found = [one.plugin for one in config.plugins if arguments.id in (None, one.id)]
    if not found:
        what = f"plugin with the id {arguments.id!r}" if arguments.id else "plugin webhook"
        raise ConfigError(f"{config.source} has no {what}")
    if len(found) > 1:
        names = ", ".join(one.id for one in found)
        raise ConfigError(f"several plugins webhook: {names}", hint="choose one with --id")
    return found[0]
