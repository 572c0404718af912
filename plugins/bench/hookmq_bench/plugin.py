"""The entry point: it brings a command and adds nothing to a broker."""

from typing import Any

from hookmq.plugin import Plugin, hookimpl


class BenchPlugin(Plugin):
    """``hookmq bench``."""

    @staticmethod
    @hookimpl
    def register_cli(group: Any) -> None:
        """Adds ``hookmq bench``."""
        from hookmq_bench.cli import register

        register(group)
