"""The promises that plugins await. Each gets a result or an error, even if the store fails or the broker ends."""

from typing import Any, Final

from hookmq.model.errors import PluginError
from hookmq.model.runtime import Promise, Runtime

_FEW: Final = 64
"""Above this number of listed promises, those with a result are removed."""


class PluginPromises:
    """Creates promises for plugins, and lists those without a result. After `fail`, every promise has an error."""

    __slots__ = ("_look_at", "_made", "_reason", "_runtime")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._made: list[tuple[str, Promise]] = []
        self._look_at = _FEW
        self._reason = ""

    def __len__(self) -> int:
        """Return the number of promises without a result."""
        return sum(not promise.done() for _, promise in self._made)

    def make(self, plugin: str) -> Promise:
        """Return a promise for the plugin with this id. After `fail`, the promise already has the error."""
        promise = self._runtime.promise()
        if self._reason:
            _refuse(promise, plugin, self._reason)
            return promise
        made = self._made
        made.append((plugin, promise))
        if len(made) >= self._look_at:
            made = self._made = [one for one in made if not one[1].done()]
            self._look_at = max(_FEW, 2 * len(made))
        return promise

    def fail(self, reason: str) -> None:
        """Set an error with `reason` on every promise without a result, and on all later ones. Only the first reason
        is used.
        """
        if self._reason:
            return
        self._reason = reason
        made, self._made = self._made, []
        for plugin, promise in made:
            if not promise.done():
                _refuse(promise, plugin, reason)


def _refuse(promise: Promise, plugin: str, reason: str) -> None:
    promise.set_exception(PluginError(plugin, reason))
    # Few plugins await `state.put`. asyncio would report each of the others as an exception that was never retrieved.
    retrieve: Any = getattr(promise, "exception", None)
    if retrieve is not None:
        retrieve()
