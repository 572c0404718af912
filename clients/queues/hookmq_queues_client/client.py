"""The client, which publishes to queues and creates consumers."""

import asyncio
import math
import ssl
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Self
from uuid import uuid4

from hookmq_queues_client.connection import Connection, publish_properties
from hookmq_queues_client.consumer import Consumer, is_lasting
from hookmq_queues_client.errors import BrokerUnavailable, ConnectionLost, QueueClientError
from hookmq_queues_client.options import Backoff, Options, parse_options

RESERVED: Final = frozenset({"message-id", "delay", "deliver-at", "priority", "key"})
"""Headers that the arguments of `Queue.publish` set."""


class Client:
    """A client for one broker's queues. Close it with ``async with`` or `aclose`.

    It connects when it first publishes, and reconnects as needed. Each consumer has its own connection, whose client id
    is this client's id with a number appended.

    `url` is ``mqtt://[USER[:PASSWORD]@]HOST[:PORT]``, or mqtts for TLS; without `tls`, the system's certificates are
    trusted. `keepalive` and `timeout` are in seconds. `timeout` limits how long a request may take, including
    reconnections. Raises ValueError for an invalid argument.
    """

    def __init__(
        self,
        url: str,
        *,
        username: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
        client_id: str | None = None,
        keepalive: int = 30,
        timeout: float = 30.0,
        reconnect: Backoff | None = None,
    ) -> None:
        self.options: Options = parse_options(
            url, username=username, password=password, tls=tls, keepalive=keepalive, timeout=timeout, reconnect=reconnect
        )  # fmt: skip
        self.client_id = client_id or f"queues-{uuid4().hex[:12]}"
        self._consumers: list[Consumer] = []
        self._numbers = 0
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the consumers and all connections."""
        self._closed = True
        await asyncio.gather(*(one.aclose() for one in self._consumers))
        if self._connection is not None:
            await self._connection.close()

    def queue(self, name: str) -> "Queue":
        """Return the queue `name`. It need not exist yet. Raises ValueError for an invalid name."""
        if not name or set(name) & set("/+#\0"):
            raise ValueError(f"a queue's name has no /, + or #, and is not empty: {name!r}")
        return Queue(self, name)

    def add_consumer(
        self, filter: str, properties: list[tuple[str, str]], prefetch: int
    ) -> Consumer:
        """Return a new consumer. Closing the client also closes the consumer. `Queue.consume` calls this."""
        self._check_open()
        self._numbers += 1
        client_id = f"{self.client_id}-{self._numbers}"
        self._consumers = [one for one in self._consumers if not one.closed]
        consumer = Consumer(self.options, client_id, filter, properties, prefetch)
        self._consumers.append(consumer)
        return consumer

    async def publish(
        self, topic: str, payload: bytes, user_properties: list[tuple[str, str]], expiry: int | None
    ) -> None:
        """Publish, and republish after each reconnection, until PUBACK arrives. `Queue.publish` calls this."""
        self._check_open()
        properties = publish_properties(user_properties, expiry)
        failure: list[str] = []
        try:
            async with asyncio.timeout(self.options.timeout):
                while True:
                    connection = await self._connected(failure)
                    try:
                        return await connection.publish(topic, payload, properties)
                    except ConnectionLost as error:
                        failure[:] = [str(error)]
        except TimeoutError:
            why = f": {failure[0]}" if failure else ""
            raise BrokerUnavailable(
                f"the broker at {self.options.address} did not accept the message within {self.options.timeout:g} s{why}"
            ) from None

    async def _connected(self, failure: list[str]) -> Connection:
        """Return the open connection for publishing, or a new one. The last error is added to `failure`."""
        async with self._connecting:
            failures = 0
            while self._connection is None or not self._connection.is_open:
                self._check_open()
                connection = Connection(self.options, self.client_id)
                try:
                    await connection.open()
                    self._connection = connection
                    return connection
                except Exception as error:
                    if is_lasting(error):
                        raise
                    failure[:] = [str(error) or repr(error)]
                    failures += 1
                    await asyncio.sleep(self.options.reconnect.delay(failures))
            return self._connection

    def _check_open(self) -> None:
        if self._closed:
            raise QueueClientError("the client is closed")


class Queue:
    """One of a broker's queues, as returned by `Client.queue`."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name

    async def publish(
        self,
        payload: bytes | str,
        *,
        topic: str = "",
        key: str | None = None,
        priority: int | None = None,
        delay: float | None = None,
        ttl: float | None = None,
        message_id: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Publish a message, and return once the broker has stored it.

        `topic` is the rest of the topic after ``$queue/NAME/``. `delay` and `ttl` are in seconds; a `ttl` is rounded up.
        Messages with the same `key` keep their order in a queue that orders by key. `priority` is from 0 to 9.

        If the connection ends before PUBACK, the message is published again. A queue with a `dedupe_window` then
        recognizes its `message_id`, which is random by default. Set it yourself if repeated calls should also be
        harmless.

        Raises QueueFull, UnknownQueue, NotAuthorized or another Refused; BrokerUnavailable after the client's timeout,
        when it is unknown whether the message was stored; and ValueError for an invalid argument.
        """
        own = [("message-id", message_id or uuid4().hex)]
        if key is not None:
            own.append(("key", key))
        if priority is not None:
            if not 0 <= priority <= 9:
                raise ValueError(f"priority must be from 0 to 9, not {priority}")
            own.append(("priority", str(priority)))
        if delay is not None:
            if not 0 <= delay < math.inf:
                raise ValueError(f"delay must be at least 0 seconds, not {delay}")
            own.append(("delay", f"{delay:.3f}"))
        if ttl is not None and not 0 < ttl <= 0xFFFFFFFF:
            raise ValueError(f"ttl must be above 0 and at most 4294967295 seconds, not {ttl}")
        levels = topic.split("/")
        if set(topic) & set("+#\0") or any(level.startswith("$") for level in levels):
            raise ValueError(
                f"a topic has no + and no #, and its levels do not start with $: {topic!r}"
            )
        for name in headers or ():
            if name in RESERVED:
                raise ValueError(f"the header {name!r} is set by an argument of publish")
        own.extend((headers or {}).items())
        data = payload.encode() if isinstance(payload, str) else payload
        where = f"$queue/{self.name}/{topic}" if topic else f"$queue/{self.name}"
        await self.client.publish(where, data, own, None if ttl is None else math.ceil(ttl))

    def consume(
        self,
        *,
        group: str | None = None,
        filter: str = "",
        prefetch: int = 20,
        start: str | int | datetime | None = None,
    ) -> Consumer:
        """Return a consumer for a group, by default the queue's first group.

        `filter` limits the messages to those whose topic after ``$queue/NAME/`` matches. `#` matches all messages and
        makes the broker send each one with its topic. `prefetch` is the maximum number of unsettled messages.

        `start` says where a new group begins in a stream with `groups_on_first_use`: at the "first", "last" or "next"
        message, at an offset, or at the first message since a given time. Raises ValueError for an invalid argument.
        """
        if not 1 <= prefetch <= 65535:
            raise ValueError(f"prefetch must be from 1 to 65535, not {prefetch}")
        if group is not None and (not group or set(group) & set("/+#\0")):
            raise ValueError(f"a group's name has no /, + or #, and is not empty: {group!r}")
        where = f"$queue/{self.name}/{filter}" if filter else f"$queue/{self.name}"
        if group is not None:
            where = f"$share/{group}/{where}"
        own = [] if start is None else [("start", _start(start))]
        return self.client.add_consumer(where, own, prefetch)


def _start(start: str | int | datetime) -> str:
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise ValueError(f"start needs a time zone: {start!r}")
        return start.isoformat()
    if start in ("first", "last", "next") or (type(start) is int and start >= 0):
        return str(start)
    raise ValueError(f'start must be "first", "last", "next", an offset or a time, not {start!r}')
