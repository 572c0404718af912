"""Ask each plugin of a chain separately, for tools that explain decisions."""

from collections.abc import Callable
from functools import partial
from typing import Any

from hookmq.hooks.chain import Calls
from hookmq.hooks.verdicts import Accept, Allow, Deny, PluginDecision

Decided = Callable[[Accept | Allow | Deny, str], None]
Ask = Callable[[Calls, Decided], object]
"""Runs a chain, and passes on the verdict and the plugin that gave it ('' for the default)."""
Explained = tuple[PluginDecision, ...]


class Survey:
    """Asks every plugin of a chain, and passes all decisions to `done`.

    `default` is the verdict if all plugins abstain. It is then the last decision, with an empty plugin id.
    """

    __slots__ = ("_calls", "_default", "_done", "_missing", "_verdicts")

    def __init__(
        self, calls: Calls, default: Accept | Allow | Deny, done: Callable[[Explained], None]
    ) -> None:
        self._calls = calls
        self._default = default
        self._done = done
        self._missing = len(calls)
        self._verdicts: list[Any] = [None] * len(calls)

    def run(self, ask: Ask) -> None:
        """Ask all plugins. Plugins that need time decide concurrently."""
        if not self._calls:
            self._finish()
        for index, call in enumerate(self._calls):
            ask((call,), partial(self._decided, index))

    def _decided(self, index: int, verdict: Accept | Allow | Deny, by: str) -> None:
        if by:  # otherwise the plugin abstained, and the verdict is the default
            self._verdicts[index] = verdict
        self._missing -= 1
        if not self._missing:
            self._finish()

    def _finish(self) -> None:
        found = [
            PluginDecision(call.plugin_id, verdict)
            for call, verdict in zip(self._calls, self._verdicts, strict=True)
        ]
        if all(verdict is None for verdict in self._verdicts):
            found.append(PluginDecision("", self._default))
        self._done(tuple(found))
