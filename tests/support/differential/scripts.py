"""The scripts of all modules, by name."""

from differential import connecting, malformed, messages, sessions, subscriptions
from differential.playing import Script


def scripts() -> dict[str, Script]:
    """Return every script. The first word of a name is the script's module."""
    return {
        f"{module.__name__.rpartition('.')[2]}: {name}": script
        for module in (connecting, sessions, messages, subscriptions, malformed)
        for name, script in module.SCRIPTS.items()
    }
