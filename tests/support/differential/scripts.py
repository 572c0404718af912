"""The scripts of all modules, by name."""

from differential import connecting, malformed, messages, sessions, subscriptions
from differential.playing import Script


def scripts() -> dict[str, Script]:
    """Return every script by name. The first word of a script's name is the module that defines it."""
    return {
        f"{module.__name__.rpartition('.')[2]}: {name}": script
        for module in (connecting, sessions, messages, subscriptions, malformed)
        for name, script in module.SCRIPTS.items()
    }
