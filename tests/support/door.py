"""A plugin that accepts every client and is registered as if it were installed, and configuration files that use it."""

import pathlib
from collections.abc import Callable
from typing import Any

from hookmq.plugin import Accept, Plugin, hookimpl

HEAD = "version: 1\nlisteners: [{name: tcp}]\n"


class Door(Plugin):
    @hookimpl
    def on_connect(self, client: Any) -> Accept | None:
        return Accept()

    @hookimpl
    async def on_published(self, message: Any) -> None:
        return None


class Point:
    def __init__(self, load: Callable[[], Any]) -> None:
        self.load = load


def write(folder: pathlib.Path, text: str) -> str:
    path = folder / "hookmq.yaml"
    path.write_text(HEAD + text)
    return str(path)
