"""Find the plugin instance that a command uses."""

import argparse
from pathlib import Path
from typing import Any, Final, Protocol

from hookmq.cli_api import chosen
from hookmq.plugin import ConfigError

from hookmq_webhook.config import WebhookConfig
from hookmq_webhook.requests import RequestMaker

INSTANCE_HELP: Final = "plugin id, if several plugins are of this kind"


class Instance(Protocol):
    """The parts of the plugin that commands use."""

    config: WebhookConfig
    requests: RequestMaker
    id: str

    @property
    def dead_folder(self) -> Path | None: ...


def instance_of(arguments: argparse.Namespace) -> Instance:
    """Return the instance that `arguments` name or, without a name, the only one configured. Raises ConfigError."""
    config = chosen(arguments, arguments.kind)
    found: list[Any] = [one.plugin for one in config.plugins if arguments.id in (None, one.id)]
    if not found:
        what = f"plugin with the id {arguments.id!r}" if arguments.id else "plugin webhook"
        raise ConfigError(f"{config.source} has no {what}")
    if len(found) > 1:
        names = ", ".join(one.id for one in found)
        raise ConfigError(f"several plugins webhook: {names}", hint="choose one with --id")
    one: Instance = found[0]
    return one
