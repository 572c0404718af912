"""Which instance of the plugin a command is about."""

import argparse
from pathlib import Path
from typing import Any, Protocol

from hookmq.cli.source import config_of
from hookmq.errors import ConfigError

from hookmq_webhook.config import WebhookConfig
from hookmq_webhook.requests import RequestMaker


class Instance(Protocol):
    """The plugin, as far as it is of use here."""

    config: WebhookConfig
    requests: RequestMaker
    id: str

    @property
    def dead_folder(self) -> Path | None: ...


def instance_of(arguments: argparse.Namespace) -> Instance:
    """The instance that the configuration has, or the one that was named. Raises ConfigError."""
    from hookmq.config.plugins import build

    config = config_of(arguments)
    built = [one.plugin for one in build(config) if isinstance(one.plugin, arguments.kind)]
    found: list[Any] = [one for one in built if arguments.id in (None, one.id)]
    if not found:
        what = f"plugin with the id {arguments.id!r}" if arguments.id else "plugin webhook"
        raise ConfigError(f"{config.source} has no {what}")
    if len(found) > 1:
        names = ", ".join(one.id for one in found)
        raise ConfigError(f"there are several: name one of {names} with --id")
    one: Instance = found[0]
    return one
