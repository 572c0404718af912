"""The plugin's entry point. It adds a command and does not affect a broker."""

from hookmq.plugin import CommandGroup, Plugin, hookimpl


class BenchPlugin(Plugin):
    """A plugin that adds the ``hookmq bench`` command."""

    @staticmethod
    @hookimpl
    def register_cli(group: CommandGroup) -> None:
        """Add ``hookmq bench`` to the command group."""
        from hookmq_bench.cli import register

        register(group)
