"""Real servers that the drivers write to, for tests that kill brokers, sinks and targets."""

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Protocol

from influxdb_server import DATABASE, InfluxDbServer
from nats_server import NatsServer
from postgres_server import PostgresServer
from rabbitmq_server import RabbitMqServer
from redis_server import RedisServer

from sinkkill.ledger import Stored
from sinkkill.paused import KafkaTarget, S3Target


class Target(Protocol):
    """A target that tests kill and restart. `once` tells whether the target stores each message only once."""

    once: bool

    def sink(self) -> Mapping[str, Any]:
        """Return the driver's name and its settings for this target."""

    def read(self) -> list[Stored]:
        """Return the stored records in the order in which they were stored."""

    def stop(self) -> None:
        """Kill the server."""

    def start(self) -> None:
        """Start the server again."""

    def close(self) -> None:
        """Stop the server and delete its data."""


class InfluxDbTarget:
    """A measurement with one point for each message. Writing a point a second time does not add another."""

    once = True

    def __init__(self) -> None:
        self._server = InfluxDbServer("max-row-limit = 0")
        self.stop, self.start, self.close = (
            self._server.stop,
            self._server.start,
            self._server.close,
        )
        self._server.query(f"CREATE DATABASE {DATABASE}")

    def sink(self) -> Mapping[str, Any]:
        """Return the driver's name and its settings for this target. Each record's offset is used as its time, so the
        times show the order.
        """
        target = {
            "version": 1, "url": self._server.url, "database": DATABASE, "measurement": "kills",
            "tags": {"key": "${payload.key}"}, "fields": {"id": "${id}", "number": "${payload.number}"},
            "types": {"number": "integer"}, "timestamp": "${offset}",
        }  # fmt: skip
        return {"driver": "influxdb", "target": target}

    def read(self) -> list[Stored]:
        """Return the points, sorted by time."""
        found = self._server.query('SELECT id, "key", number FROM kills')
        return [Stored(*row[1:]) for one in found for row in one["values"]]


class PostgresTarget:
    """A table with one row for each message."""

    once = True

    def __init__(self) -> None:
        self._server = PostgresServer()
        self.stop, self.start, self.close = (
            self._server.stop,
            self._server.start,
            self._server.close,
        )
        self._query(
            "CREATE TABLE kills (seq bigserial PRIMARY KEY, id text, key text, number integer)"
        )

    def sink(self) -> Mapping[str, Any]:
        """Return the driver's name and its settings for this target."""
        columns = {"id": "${id}", "key": "${payload.key}", "number": "${payload.number}"}
        target = {"url": self._server.url, "table": "kills", "columns": columns}
        return {"driver": "postgres", "target": target}

    def read(self) -> list[Stored]:
        """Return the rows in the order in which they were inserted."""
        return [
            Stored(*one) for one in self._query("SELECT id, key, number FROM kills ORDER BY seq")
        ]

    def _query(self, statement: str) -> list[Any]:
        import psycopg

        with psycopg.connect(self._server.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


class RedisTarget:
    """A stream with one entry for each message."""

    once = True

    def __init__(self) -> None:
        self._server = RedisServer()
        self.stop, self.start, self.close = (
            self._server.stop,
            self._server.start,
            self._server.close,
        )

    def sink(self) -> Mapping[str, Any]:
        """Return the driver's name and its settings for this target."""
        return {"driver": "redis", "target": {"url": self._server.url, "key": "kills"}}

    def read(self) -> list[Stored]:
        """Return the entries in the stream."""
        import redis

        with redis.Redis(port=self._server.port) as client:
            entries: Any = client.xrange("kills")
        found = []
        for _, entry in entries:
            payload = json.loads(entry[b"payload"])
            found.append(Stored(entry[b"id"].decode(), payload["key"], payload["number"]))
        return found


class NatsTarget:
    """A JetStream stream. It ignores repeated ids for two minutes, which is NATS's default."""

    once = True

    def __init__(self) -> None:
        self._server = NatsServer()
        self.stop, self.start, self.close = (
            self._server.stop,
            self._server.start,
            self._server.close,
        )
        asyncio.run(self._create())

    def sink(self) -> Mapping[str, Any]:
        """Return the driver's name and its settings for this target."""
        return {"driver": "nats", "target": {"servers": [self._server.url]}}

    def read(self) -> list[Stored]:
        """Return the messages in the stream."""
        return asyncio.run(self._messages())

    async def _create(self) -> None:
        import nats

        client = await nats.connect(self._server.url)
        await client.jetstream().add_stream(name="kills", subjects=["kill.>"])
        await client.close()

    async def _messages(self) -> list[Stored]:
        import nats
        from nats.js.api import AckPolicy, ConsumerConfig

        client = await nats.connect(self._server.url)
        stream = client.jetstream()
        every = ConsumerConfig(ack_policy=AckPolicy.NONE)
        reader = await stream.pull_subscribe("kill.>", stream="kills", config=every)
        total = (await stream.stream_info("kills")).state.messages
        found: list[Stored] = []
        with suppress(TimeoutError):
            while len(found) < total:
                for one in await reader.fetch(500, timeout=5):
                    payload = json.loads(one.data)
                    assert one.headers is not None
                    found.append(
                        Stored(one.headers["Nats-Msg-Id"], payload["key"], payload["number"])
                    )
        await client.close()
        return found


class RabbitMqTarget:
    """A durable queue. It may contain a message twice if RabbitMQ was killed just after confirming that message."""

    once = False

    def __init__(self) -> None:
        self._server = RabbitMqServer()
        self.stop, self.start, self.close = (
            self._server.stop,
            self._server.start,
            self._server.close,
        )
        self._taken: list[Stored] = []
        asyncio.run(self._create())

    def sink(self) -> Mapping[str, Any]:
        """Return the driver's name and its settings for this target."""
        target = {"url": self._server.url, "exchange": "", "routing_key": "kills"}
        return {"driver": "rabbitmq", "target": target}

    def read(self) -> list[Stored]:
        """Remove the messages from the queue. Return them together with those from earlier calls."""
        asyncio.run(self._take())
        return list(self._taken)

    async def _create(self) -> None:
        async with await self._server.client() as connection:
            channel = await connection.channel()
            await channel.declare_queue("kills", durable=True)

    async def _take(self) -> None:
        async with await self._server.client() as connection:
            channel = await connection.channel()
            queue = await channel.get_queue("kills")
            left = queue.declaration_result.message_count
            if left:
                async with queue.iterator() as messages:
                    async for one in messages:
                        payload = json.loads(one.body)
                        self._taken.append(
                            Stored(one.message_id, payload["key"], payload["number"])
                        )
                        left -= 1
                        if not left:
                            # The server may lose this acknowledgement. It then has the messages again, in order.
                            await one.ack(multiple=True)
                            break


TARGETS: Mapping[str, type[Target]] = {
    "influxdb": InfluxDbTarget, "kafka": KafkaTarget, "nats": NatsTarget, "postgres": PostgresTarget,
    "rabbitmq": RabbitMqTarget, "redis": RedisTarget, "s3": S3Target,
}  # fmt: skip
