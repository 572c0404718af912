"""The turns of plugin clients: when their packets are handled and their plugins' functions are called."""

from typing import TYPE_CHECKING

from hookmq.model.runtime import Runtime

if TYPE_CHECKING:
    from hookmq.broker.plugin_mailbox import PluginMailbox


class PluginTurns:
    """Runs the turns that plugin clients have asked for, in order. All turns run in a single runtime call, because
    a call per client would cost as much as a message.
    """

    __slots__ = ("_runtime", "_waiting")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._waiting: list[PluginMailbox] = []

    def add(self, client: "PluginMailbox") -> None:
        """Call `client.take_turn` in the next turn of the event loop."""
        if not self._waiting:
            self._runtime.call_soon(self._run)
        self._waiting.append(client)

    def _run(self) -> None:
        waiting, self._waiting = self._waiting, []
        done = 0
        try:
            for client in waiting:
                done += 1
                client.take_turn()
        finally:
            if done < len(waiting):  # a turn has failed; the others keep theirs
                if not self._waiting:
                    self._runtime.call_soon(self._run)
                self._waiting[:0] = waiting[done:]
