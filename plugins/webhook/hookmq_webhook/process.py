"""Run the sending process of a broker. All instances of the plugin share it."""

from typing import Any, Final, Protocol

from hookmq.plugin import Runtime
from hookmq_toolkit.child_process import ChildProcess

MODULE: Final = "hookmq_webhook.child"
_shared: "dict[int, SenderProcess]" = {}
"""The processes by the identity of their broker's runtime."""


class User(Protocol):
    """An instance that uses the process."""

    def open_again(self) -> None:
        """A new process has started, and knows nothing yet."""

    def take_call(self, method: str, values: Any, fields: dict[str, Any]) -> None:
        """The process calls a method of `hookmq_webhook.engine.Host`, without waiting for a result."""

    async def answer(self, method: str, values: Any) -> Any:
        """The process requests something."""

    def note_end(self) -> None:
        """The process has ended."""

    def log(self, level: str, event: str, /, **fields: object) -> None:
        """Log an event."""


class SenderProcess:
    """The sending process of one broker. It runs while it has users."""

    def __init__(self, runtime: Runtime) -> None:
        self.users: dict[str, User] = {}
        self.child = ChildProcess(MODULE, self._begin, self._take, self._ended, answer=self._answer)
        self._runtime = runtime

    @property
    def restarts(self) -> int:
        """Number of processes that were started to replace one that died."""
        return self.child.restarts

    def add(self, id: str, user: User) -> None:
        """Send the events of another instance too. The first one starts the process."""
        self.users[id] = user
        if self.child.running:
            user.open_again()
        else:
            self._runtime.spawn(self._start(), lambda _, error: None)

    async def _start(self) -> None:
        self.child.start()

    async def remove(self, id: str) -> None:
        """Forget an instance. The last one ends the process."""
        self.users.pop(id, None)
        if not self.users:
            _shared.pop(_key(self._runtime), None)
            await self.child.stop()

    def _begin(self) -> None:
        for user in tuple(self.users.values()):
            user.open_again()

    def _take(self, value: Any) -> None:
        id, method, values, fields = value
        user = self.users.get(id)
        if user is not None:
            user.take_call(method, values, fields)

    async def _answer(self, request: Any) -> Any:
        id, method, values = request
        return await self.users[id].answer(method, values)

    def _ended(self, code: int | None, reason: str, seconds: float) -> None:
        users = tuple(self.users.values())
        if not users:
            return
        if reason == "stuck":
            users[0].log("error", "webhook.sender_stuck", seconds=seconds)
            return
        if code is None:
            users[0].log("error", "webhook.sender_not_started", reason=reason)
        else:
            users[0].log("warning", "webhook.sender_died", code=code, again_in=seconds)
        for user in users:
            user.note_end()


def _key(runtime: Runtime) -> int:
    return id(runtime)


def sender_process(runtime: Runtime) -> SenderProcess:
    """Return the sending process of the broker with this runtime. It is not started yet."""
    found = _shared.get(_key(runtime))
    if found is None:
        found = _shared[_key(runtime)] = SenderProcess(runtime)
    return found


__all__ = ["MODULE", "SenderProcess", "User", "sender_process"]
