"""Public: the building blocks of HookMQ's commands, for the commands that plugins add.

A command is an entry point in the ``hookmq.commands`` group. `hookmq.cli.commands` describes its function.

Everything in ``__all__`` stays compatible within a major version of `HOOK_API`, like `hookmq.plugin`.
"""

from hookmq.cli.config_args import ChosenConfig, ChosenPlugin, add_source, chosen, plugin_of
from hookmq.cli.options import (
    PROPERTIES,
    ConnectTarget,
    Will,
    add_connection,
    count,
    qos,
    seconds,
    target_of,
)

__all__ = [
    "PROPERTIES",
    "ChosenConfig",
    "ChosenPlugin",
    "ConnectTarget",
    "Will",
    "add_connection",
    "add_source",
    "chosen",
    "count",
    "plugin_of",
    "qos",
    "seconds",
    "target_of",
]  # fmt: skip
