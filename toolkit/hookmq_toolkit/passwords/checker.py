"""Verify passwords. Simultaneous identical checks share one hash computation."""

from collections.abc import Callable
from functools import partial

from hookmq.plugin import Cancel, Promise, Runtime

from hookmq_toolkit.passwords.pool import Pool


class _Flight:
    __slots__ = ("cancel", "waiting")

    def __init__(self) -> None:
        self.cancel: Cancel | None = None
        self.waiting: list[Promise] = []


class Checker:
    """Verifies passwords in a `Pool`.

    If a thousand clients with the same user name and password reconnect, only one hash is computed. The same is true if
    a thousand connections send the same wrong password.
    """

    def __init__(self, runtime: Runtime, pool: Pool) -> None:
        self._runtime = runtime
        self._pool = pool
        self._flights: dict[bytes, _Flight] = {}

    async def ask(self, key: bytes, host: str, verify: Callable[[], bool]) -> bool:
        """Call `verify` in a thread and return its result. If a call with the same `key` is running, wait for that call
        instead.

        A call that has not started is cancelled once nothing is waiting for it. Raises Busy, and whatever
        `verify` raises.
        """
        flight = self._flights.get(key)
        if flight is None:
            flight = _Flight()
            flight.cancel = self._pool.submit(host, verify, partial(self._landed, key, flight))
            self._flights[key] = flight
        promise = self._runtime.promise()
        flight.waiting.append(promise)
        try:
            result, error = await promise
        finally:
            self._left(key, flight, promise)
        if error is not None:
            raise error
        return bool(result)

    def _left(self, key: bytes, flight: _Flight, promise: Promise) -> None:
        if promise not in flight.waiting:
            return
        flight.waiting.remove(promise)
        if not flight.waiting and self._flights.get(key) is flight:
            del self._flights[key]
            if flight.cancel is not None:
                flight.cancel()

    def _landed(
        self, key: bytes, flight: _Flight, result: object, error: BaseException | None
    ) -> None:
        del self._flights[key]
        waiting, flight.waiting = flight.waiting, []
        for promise in waiting:
            if not promise.done():
                # Set the error as a result, because asyncio logs exceptions that are never retrieved.
                promise.set_result((result, error))
