"""Run commands in tests."""

from collections.abc import Sequence

from hookmq.cli import Parser, main

__all__ = ["Parser", "run_command"]


def run_command(words: Sequence[str]) -> int:
    """Run ``hookmq`` with the given arguments in this process, and return its exit code. This call blocks.

    Commands that plugins add are found through their entry points. An error prints one message to stderr, as in a
    terminal; set the environment variable ``HOOKMQ_DEBUG`` to raise it instead.
    """
    return main(words)
