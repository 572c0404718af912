"""A NATS client that reconnects: subscriptions, messages, and requests with answers."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from math import inf
from threading import Thread
from typing import Any, Final
from urllib.parse import urlsplit

from hookmq.plugin import HookMQError, Runtime
from hookmq_toolkit.network_errors import network_reason

from hookmq_cluster.engine_errors import EngineError, ServerRefused
from hookmq_cluster.nats_connection import NatsConnection, NatsOptions
from hookmq_cluster.nats_protocol import publish

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 2.0
"""Seconds between two rounds of attempts to connect, from the first to the longest pause."""

READ: Final = 5.0
"""Seconds for reading the files of the options."""

Handler = Callable[[str, str, bytes, bytes], None]
"""Called for each message: subject, subject for the answer, header, data."""
Answer = Callable[[bytes, bytes | None], None]
"""Called for each answer: header, data. The data is None if the connection was lost; nothing follows then."""


def _in_thread(call: Callable[[], NatsOptions]) -> asyncio.Future[NatsOptions]:
    """Call `call` in a thread that does not keep the process alive, because a file on a lost disk may block for ever."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[NatsOptions] = loop.create_future()

    def run() -> None:
        try:
            finish = partial(future.set_result, call())
        except Exception as error:
            finish = partial(future.set_exception, error)
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(finish)

    Thread(target=run, name="hookmq-nats-files", daemon=True).start()
    return future


class NatsClient:
    """Keeps one connection to any of several servers.

    `check` is called with the INFO of each server that is connected to. If it returns a text, the server is not used, for
    that reason. No method raises an exception if the network fails. Messages that are sent without a connection are lost.

    Before each attempt to connect, `reread` is called in a thread. It returns the options for the attempt, or raises
    HookMQError if its files cannot be used; the last options are used then.
    """

    def __init__(
        self,
        options: NatsOptions,
        runtime: Runtime,
        check: Callable[[dict[str, Any]], str],
        reread: Callable[[], NatsOptions] | None = None,
    ) -> None:
        self.info: dict[str, Any] = {}
        self._options = options
        self._runtime = runtime
        self._check = check
        self._reread = reread
        self._reading: asyncio.Future[NatsOptions] | None = None
        """The files are being read."""
        self._pause = FIRST_PAUSE
        self._connected_at = 0.0
        self._connection: NatsConnection | None = None
        self._watching: list[Callable[[bool], None]] = []
        self._subscriptions: dict[int, tuple[str, Handler]] = {}
        self._number = 0
        self._inbox = f"_INBOX.{runtime.token(12)}."
        self._answers: dict[str, Answer] = {}
        self._token = 0
        self._out: list[bytes] = []
        self._written = False
        self._closed = False
        self._task: asyncio.Task[None] | None = None
        self._server = ""
        """The server of the last connection."""
        self._ended: asyncio.Event | None = None
        self.subscribe(self._inbox + "*", self._answered)

    # the connection ----------------------------------------------------------------------------------------------

    async def open(self, seconds: float) -> None:
        """Connect, and keep connected from now on.

        Raises EngineError if no server can be used within `seconds`, which may be infinite. Raises ServerRefused at once
        if a server refuses the user, or has the wrong version or settings, and no other one can be used.
        """
        failures: dict[str, Exception] = {}
        try:
            async with asyncio.timeout(seconds if seconds < inf else None):
                await self._connect(failures, True)
        except TimeoutError:
            raise EngineError(f"cannot connect to NATS: {_text(failures) or 'no answer'}") from None
        self._task = asyncio.create_task(self._keep())
        self._task.add_done_callback(self._kept)

    def close(self) -> None:
        """Send everything, then close the connection."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        self._flush()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        self._lose_answers()

    def connected(self) -> bool:
        """Return whether there is a connection, on which something arrived in the last seconds."""
        return self._connection is not None

    def silence(self) -> str:
        """Return why a request may have no answer."""
        return self._denied() or "no server answered"

    def denies(self, subject: str) -> bool:
        """Return whether the server has just said that this user may not make a request to `subject`."""
        denied = self._denied()
        return f'"{subject}"' in denied or self._inbox in denied

    def _denied(self) -> str:
        return self._connection.denied if self._connection is not None else ""

    def on_connection(self, call: Callable[[bool], None]) -> None:
        """Call `call` with False when the connection is lost, and with True when it is back."""
        self._watching.append(call)

    # messages ----------------------------------------------------------------------------------------------------

    def write(self, data: bytes, now: bool = False) -> None:
        """Send bytes of the protocol, at the end of this turn or `now`."""
        self._out.append(data)
        if now:
            self._flush()
        elif not self._written:
            self._written = True
            self._runtime.call_soon(self._end_turn)

    def full(self) -> bool:
        """Return whether too much is waiting to be sent."""
        return self._connection is not None and self._connection.full

    def subscribe(self, subject: str, handler: Handler) -> int:
        """Subscribe, and again after each reconnection. Return a number for `unsubscribe`."""
        self._number += 1
        self._subscriptions[self._number] = (subject, handler)
        if self._connection is not None:
            self.write(b"SUB %b %d\r\n" % (subject.encode(), self._number))
        return self._number

    def unsubscribe(self, number: int) -> None:
        """End a subscription. Its handler is not called any more."""
        if self._subscriptions.pop(number, None) is not None and self._connection is not None:
            self.write(b"UNSUB %d\r\n" % number)

    def expect(self, answer: Answer) -> str:
        """Return a subject for answers to one request. `answer` is called until `forget`."""
        self._token += 1
        subject = f"{self._inbox}{self._token}"
        self._answers[subject] = answer
        return subject

    def forget(self, subject: str) -> None:
        """Ignore further answers."""
        self._answers.pop(subject, None)

    def request(self, subject: str, data: bytes, answer: Answer) -> str:
        """Send a request, and call `answer` for each answer until `forget`, which takes the returned subject."""
        reply = self.expect(answer)
        self.write(publish(subject, data, reply))
        return reply

    # parts -------------------------------------------------------------------------------------------------------

    def _servers(self) -> list[tuple[str, str]]:
        servers = [(server, "") for server in self._options.servers]
        servers += [one for one in self.found().items() if one[0] not in self._options.servers]
        # The nodes of a cluster should not all use the same server.
        order = [(self._runtime.random(), one) for one in servers]
        return [one for _, one in sorted(order)]

    async def _connect(self, failures: dict[str, Exception], give_up: bool) -> None:
        """Try all servers until one is connected. Put the last failure of each into `failures`, and log them once.

        With `give_up`, raise ServerRefused if a server cannot be used without a change.
        """
        logged: dict[str, str] = {}
        while not await self._round(failures):
            if give_up and any(isinstance(one, ServerRefused) for one in failures.values()):
                raise ServerRefused(f"cannot connect to NATS: {_text(failures)}")
            shown = {server: str(one) for server, one in failures.items()}
            if shown != logged:
                logged = shown
                self._runtime.log("warning", "cluster.nats_unreachable", servers=logged)
            await self._rest()

    async def _round(self, failures: dict[str, Exception]) -> bool:
        """Try each server once. Return whether one is connected."""
        await self._read_options(failures)
        for server, hostname in self._servers():
            connection = NatsConnection(self._options, self._runtime, self._deliver, self._lost)
            try:
                await connection.open(server, hostname)
                problem = self._check(connection.info)
                if problem:
                    connection.close()
                    raise ServerRefused(problem)
            except EngineError as error:
                failures[server] = error
            except (OSError, TimeoutError) as error:
                failures[server] = EngineError(network_reason(error))
            else:
                self._use(connection, server)
                return True
        return False

    async def _read_options(self, failures: dict[str, Exception]) -> None:
        """Read the files of the options again. Keep the last ones while that fails."""
        if self._reread is None:
            return
        if self._reading is None:
            self._reading = _in_thread(self._reread)
        await asyncio.wait([self._reading], timeout=READ)
        if not self._reading.done():
            failures["options"] = EngineError(f"files could not be read within {READ:g} s")
            return
        reading, self._reading = self._reading, None
        try:
            self._options = reading.result()
            failures.pop("options", None)
        except HookMQError as error:
            failures["options"] = error

    async def _keep(self) -> None:
        """Reconnect for ever."""
        while True:
            self._ended = asyncio.Event()
            if self._connection is not None:
                await self._ended.wait()
            if self._runtime.now() - self._connected_at > LONGEST_PAUSE:
                self._pause = FIRST_PAUSE
            else:  # the server closes connections that it has accepted
                await self._rest()
            await self._connect({}, False)

    async def _rest(self) -> None:
        """Wait until the next attempt."""
        await asyncio.sleep(self._pause * (0.5 + self._runtime.random()))
        self._pause = min(self._pause * 2, LONGEST_PAUSE)

    def _kept(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._runtime.log("error", "cluster.nats_lost", traceback=task.exception())

    def found(self) -> dict[str, str]:
        """Return the servers that the last one announced, each with the name in its certificate."""
        scheme, hostname = urlsplit(self._server).scheme, urlsplit(self._server).hostname or ""
        return {
            f"{scheme}://{address}": hostname
            for address in self.info.get("connect_urls") or ()
            if isinstance(address, str)
        }

    def _use(self, connection: NatsConnection, server: str) -> None:
        self._connection = connection
        self._connected_at = self._runtime.now()
        self._server = server
        self.info = connection.info
        # Anything written without a connection is lost.
        self._out = [
            b"SUB %b %d\r\n" % (subject.encode(), number)
            for number, (subject, _) in self._subscriptions.items()
        ]
        self._flush()
        self._runtime.log(
            "info", "cluster.nats_connected", server=server, version=self.info.get("version")
        )
        self._tell(True)

    def _lost(self, reason: str) -> None:
        self._connection = None
        self._out.clear()
        if self._closed:
            return
        self._runtime.log("warning", "cluster.nats_disconnected", reason=reason)
        self._lose_answers()
        self._tell(False)
        if self._ended is not None:
            self._ended.set()

    def _lose_answers(self) -> None:
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            self._safely(answer, b"", None)

    def _tell(self, connected: bool) -> None:
        for call in list(self._watching):
            self._safely(call, connected)

    def _end_turn(self) -> None:
        self._written = False
        self._flush()

    def _flush(self) -> None:
        out, self._out = self._out, []
        if out and self._connection is not None:
            self._connection.write(out[0] if len(out) == 1 else b"".join(out))

    def _deliver(self, number: int, subject: str, answer: str, header: bytes, data: bytes) -> None:
        subscription = self._subscriptions.get(number)
        if subscription is not None:
            self._safely(subscription[1], subject, answer, header, data)

    def _answered(self, subject: str, _answer: str, header: bytes, data: bytes) -> None:
        answer = self._answers.get(subject)
        if answer is not None:
            answer(header, data)

    def _safely(self, call: Callable[..., None], *args: Any) -> None:
        """Call code of others. Its errors must not end the connection."""
        try:
            call(*args)
        except Exception as error:
            self._runtime.log("error", "cluster.engine_callback_failed", traceback=error)


def _text(failures: Mapping[str, Exception]) -> str:
    return "; ".join(f"{server}: {reason}" for server, reason in failures.items())
