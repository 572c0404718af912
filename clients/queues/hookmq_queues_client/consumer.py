"""Consume a queue's messages, over as many connections as it takes."""

import asyncio
import contextlib
import logging
import ssl
from datetime import datetime
from typing import Any, Final, Self

import paho.mqtt.client as paho

from hookmq_queues_client.connection import Connection, UserProperties
from hookmq_queues_client.errors import ConnectionLost, QueueClientError, Refused
from hookmq_queues_client.message import Message, read_message
from hookmq_queues_client.options import Options

log: Final = logging.getLogger("hookmq_queues_client")
Start = str | int | datetime
TEMPORARY: Final = frozenset({0x80, 0x88, 0x89, 0x8B, 0x97, 0x9F})
"""Reason codes after which another attempt may succeed: unspecified, unavailable, busy, shutting down, quota, rate."""


def is_lasting(error: BaseException) -> bool:
    """Return whether another attempt to connect or subscribe would fail the same way."""
    if isinstance(error, Refused):
        return error.code not in TEMPORARY
    passing = isinstance(error, (QueueClientError, OSError))
    return not passing or isinstance(error, ssl.SSLCertVerificationError)


class Consumer:
    """An asynchronous iterator over the messages for one group of a queue. It has its own connection.

    The consumer connects when you request the first message, and reconnects if the connection ends. The iteration then
    continues, and unsettled messages are delivered again. The consumer has at most `prefetch` unsettled messages. The
    iteration raises Refused if the broker refuses the client or the subscription.

    Close it with ``async with``, `aclose`, or with the client. Unsettled messages then go to other consumers.
    """

    def __init__(
        self,
        options: Options,
        client_id: str,
        filter: str,
        user_properties: UserProperties,
        prefetch: int,
    ) -> None:
        self._options = options
        self._client_id = client_id
        self._filter = filter
        self._user_properties = user_properties
        self._prefetch = prefetch
        self._connection: Connection | None = None
        self._running: asyncio.Task[None] | None = None
        self._arrived: asyncio.Queue[Message | None] = asyncio.Queue()
        self._error: Exception | None = None
        self._stopped = False
        self.closed = False
        """Whether `aclose` was called."""
        self._explicit = False
        """Whether the group settles by `$ack`, according to the last message received."""
        self._delay: float | None = None
        """How long to wait for the next connection, if `reconnect` was called."""

    def __aiter__(self) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.aclose()

    async def __anext__(self) -> Message:
        """Return the next message. Raises StopAsyncIteration after `stop` or `aclose`."""
        if self._running is None and not self._stopped:
            self._running = asyncio.create_task(self._run())
        while not self._stopped:
            message = await self._arrived.get()
            if message is not None:
                return message
            if self._error is not None:
                self._stopped = True
                raise self._error
        self._arrived.put_nowait(None)  # wake up other readers
        raise StopAsyncIteration

    async def stop(self) -> None:
        """End the iteration and take no more messages. Messages already returned can still be settled. The rest go to
        other consumers after `aclose`.
        """
        if self._stopped:
            return
        self._stopped = True
        self._arrived.put_nowait(None)
        connection = self._connection
        if connection is None or not connection.is_open:
            return
        if self._explicit:
            # Without its subscription, the client could not settle the messages that it holds.
            connection.takes_more = False
        else:
            with contextlib.suppress(QueueClientError, TimeoutError):
                async with asyncio.timeout(self._options.timeout):
                    await connection.unsubscribe(self._filter)

    async def aclose(self) -> None:
        """End the iteration and the connection. Unsettled messages go to other consumers."""
        self.closed = True
        await self.stop()
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        if self._connection is not None:
            await self._connection.close()

    async def reconnect(self, delay: float = 0.0) -> None:
        """End the connection, and reconnect after `delay` seconds. Unsettled messages go back to the queue. Use this in
        groups that settle by PUBACK, where single messages cannot be given back.
        """
        self._delay = delay
        if self._connection is not None and not self._stopped:
            await self._connection.close()

    async def _run(self) -> None:
        failures = 0
        clock = asyncio.get_running_loop().time
        while not self._stopped:
            try:
                began = clock()
                why = await self._consume()
                if clock() - began > self._options.reconnect.maximum:
                    failures = 0  # it was not one of several failures in a row
            except Exception as error:
                if is_lasting(error):
                    self._error = error
                    self._arrived.put_nowait(None)
                    return
                why = f"{error!r}" if isinstance(error, OSError) else str(error)
            failures += 1
            delay, self._delay = self._delay, None
            if delay is None:
                delay = self._options.reconnect.delay(failures)
            if not self._stopped:
                log.warning("consumer of %s: %s; next attempt in %.1f s", self._filter, why, delay)
                await asyncio.sleep(delay)

    async def _consume(self) -> str:
        """Consume over one connection until it ends. Return why it ended."""

        def received(message: paho.MQTTMessage) -> None:
            made = read_message(message, connection)
            if made is None:
                log.warning("ignored a message on %s that is not from a queue", message.topic)
                connection.ack(message.mid)
            else:
                self._explicit = made.explicit
                self._arrived.put_nowait(made)

        connection = Connection(self._options, self._client_id, self._prefetch, received)
        self._connection = connection
        try:
            await connection.open()
            async with asyncio.timeout(self._options.timeout):
                await connection.subscribe(self._filter, self._user_properties)
            log.info("consumer of %s: connected to %s", self._filter, self._options.address)
            return await asyncio.shield(connection.ended)
        except ConnectionLost as error:
            return str(error)
        finally:
            if not self._stopped:
                self._forget()
                await connection.close()

    def _forget(self) -> None:
        """Forget the messages that have not been returned yet, because the broker will deliver them again."""
        while not self._arrived.empty():
            self._arrived.get_nowait()
