"""The entry point: it brings a command and adds nothing to a broker."""

from hookmq.plugin import Plugin


class BenchPlugin(Plugin):
    """``hookmq bench``."""
