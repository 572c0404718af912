"""Kill a broker with a source, and the source's process, repeatedly while a program fills the origin.

A sink with the `file` driver stores each message that the broker receives, once. At the end, the sink's files must
contain every entry that the origin accepted. If the source promises it, each entry must appear once and in order.
"""

import asyncio
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.request import Request, urlopen

from hookmq_toolkit.segment_log.segment import read as read_segment
from kafka_mock import KafkaMock
from nats_server import NatsServer
from ports import free_port
from postgres_server import PostgresServer
from rabbitmq_server import RabbitMqServer
from redis_server import RedisServer
from serving import Served, serving

from sinkkill.files import read_lines
from sinkkill.ledger import SinkLedger, Stored
from sinkkill.rounds import PATIENCE, Broken

KEYS: Final = ("a", "b", "c")
EACH: Final = 600
"""The number of entries that are sent in a round."""
_HTTP_TOKEN: Final = "0123456789abcdef"
TOPIC: Final = "kill/${property.key}"


class _Killed(Exception):
    """Raised to leave the `with` block of a broker that was killed."""


class Origin(Protocol):
    """A system that a source reads."""

    once: bool
    """Whether each entry is published once and in order."""

    def source(self) -> Mapping[str, Any]:
        """Return the source's `driver` and `origin` settings."""

    def send(self, key: str, payload: bytes) -> bool | None:
        """Store an entry. Return False if the origin did not accept it."""

    def close(self) -> None:
        """Stop the server."""


class RedisOrigin:
    """A Redis stream."""

    once = True

    def __init__(self) -> None:
        import redis

        self._server = RedisServer()
        self._client: Any = redis.Redis(port=self._server.port)

    def source(self) -> Mapping[str, Any]:
        origin = {"url": self._server.url, "streams": ["kill"], "publish": {"topic": TOPIC}}
        return {"driver": "redis", "origin": origin}

    def send(self, key: str, payload: bytes) -> None:
        self._client.xadd("kill", {"key": key, "payload": payload})

    def close(self) -> None:
        self._client.close()
        self._server.close()


class PostgresOrigin:
    """An outbox table in PostgreSQL."""

    once = True

    def __init__(self) -> None:
        import psycopg

        self._server = PostgresServer()
        self._connection: Any = psycopg.connect(self._server.url, autocommit=True)
        self._connection.execute(
            "CREATE TABLE kill (id bigserial PRIMARY KEY, key text, payload bytea)"
        )

    def source(self) -> Mapping[str, Any]:
        origin = {
            "url": self._server.url, "table": "kill", "poll_every": "50ms", "publish": {"topic": TOPIC}, "batch": 20
        }  # fmt: skip
        return {"driver": "postgres", "origin": origin}

    def send(self, key: str, payload: bytes) -> None:
        self._connection.execute("INSERT INTO kill (key, payload) VALUES (%s, %s)", (key, payload))

    def close(self) -> None:
        self._connection.close()
        self._server.close()


class _Threaded:
    """Runs a client that needs an event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)


class NatsOrigin:
    """A JetStream stream. NATS resends unacknowledged messages after newer ones, so the order is not checked."""

    once = False

    def __init__(self) -> None:
        self._server = NatsServer()
        self._thread = _Threaded()
        self._thread.run(self._open())

    async def _open(self) -> None:
        import nats

        self._client = await nats.connect(self._server.url)
        self._stream = self._client.jetstream()
        await self._stream.add_stream(name="kill", subjects=["kill.>"])

    def source(self) -> Mapping[str, Any]:
        origin = {
            "servers": [self._server.url], "stream": "kill", "ack_wait": "1s", "publish": {"topic": TOPIC}
        }  # fmt: skip
        return {"driver": "nats", "origin": origin}

    def send(self, key: str, payload: bytes) -> None:
        self._thread.run(self._stream.publish(f"kill.{key}", payload, headers={"key": key}))

    def close(self) -> None:
        self._thread.run(self._client.close())
        self._server.close()


class RabbitMqOrigin:
    """A durable RabbitMQ queue, which can send messages twice."""

    once = False

    def __init__(self) -> None:
        self._server = RabbitMqServer()
        self._thread = _Threaded()
        self._thread.run(self._open())

    async def _open(self) -> None:
        self._connection = await self._server.client()
        self._channel = await self._connection.channel()
        await self._channel.declare_queue("kill", durable=True)

    def source(self) -> Mapping[str, Any]:
        origin = {"url": self._server.url, "queues": ["kill"], "publish": {"topic": TOPIC}}
        return {"driver": "rabbitmq", "origin": origin}

    def send(self, key: str, payload: bytes) -> None:
        import aio_pika

        message = aio_pika.Message(
            payload, headers={"key": key}, delivery_mode=aio_pika.DeliveryMode.PERSISTENT
        )
        self._thread.run(self._channel.default_exchange.publish(message, "kill"))

    def close(self) -> None:
        self._thread.run(self._connection.close())
        self._server.close()


class KafkaOrigin:
    """A topic in librdkafka's mock cluster, with one partition in use. The mock cluster is not a full broker."""

    once = True

    def __init__(self) -> None:
        from confluent_kafka import Producer

        self._cluster = KafkaMock()
        self._servers = ",".join(self._cluster.servers)
        self._producer = Producer({"bootstrap.servers": self._servers})
        self._producer.list_topics("kill", 10)  # creates it

    def source(self) -> Mapping[str, Any]:
        origin = {
            "servers": self._cluster.servers, "topics": ["kill"], "group": "kill",
            "publish": {"topic": TOPIC}, "session_timeout": "6s", "batch": 10,
        }  # fmt: skip
        return {"driver": "kafka", "origin": origin}

    def send(self, key: str, payload: bytes) -> None:
        self._producer.produce("kill", payload, headers={"key": key}, partition=0)
        if self._producer.flush(30):
            raise Broken("the mock cluster did not accept an entry")

    def acknowledged(self) -> int:
        """Return the committed offset of the group: the number of entries that are acknowledged."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self._servers, "group.id": "kill"})
        (found,) = consumer.committed([TopicPartition("kill", 0)], timeout=30)
        consumer.close()
        return max(0, int(found.offset))

    def close(self) -> None:
        self._cluster.close()


class HttpOrigin:
    """A program that sends each entry with one POST, and does not repeat it. A response with status 200 means that the
    entry is published. After an error, the entry may or may not be published.
    """

    once = True

    def __init__(self) -> None:
        self._port = free_port()

    def source(self) -> Mapping[str, Any]:
        token = {"token": _HTTP_TOKEN, "identity": "web", "topics": ["kill/#"]}
        return {
            "driver": "http", "origin": {"bind": f"127.0.0.1:{self._port}", "tokens": [token]},
        }  # fmt: skip

    def send(self, key: str, payload: bytes) -> bool:
        body = {"topic": f"kill/{key}", "payload": json.loads(payload), "qos": 1}
        headers = {"Authorization": f"Bearer {_HTTP_TOKEN}", "Content-Type": "application/json"}
        request = Request(
            f"http://127.0.0.1:{self._port}/publish", json.dumps(body).encode(), headers
        )
        try:
            with urlopen(request, timeout=30) as answer:
                return int(answer.status) == 200
        except (OSError, HTTPException):
            threading.Event().wait(0.02)  # the source is down
            return False

    def close(self) -> None:
        """Do nothing: each entry has its own connection."""


ORIGINS: Final[Mapping[str, Callable[[], Origin]]] = {
    "http": HttpOrigin,
    "kafka": KafkaOrigin,
    "nats": NatsOrigin,
    "postgres": PostgresOrigin,
    "rabbitmq": RabbitMqOrigin,
    "redis": RedisOrigin,
}


@dataclass
class SourceKill:
    """A broker with one source, both killed repeatedly."""

    folder: Path
    origin: Origin
    seed: int = 0
    ledger: SinkLedger = field(default_factory=SinkLedger)
    broker_kills: int = 0
    source_kills: int = 0
    repeated: int = 0
    acknowledged: int = 0
    """The highest number of entries that the origin counted as acknowledged after a kill, if it counts them."""

    def run(self, rounds: int, say: Callable[[str], None] = lambda line: None) -> None:
        """Kill the broker `rounds` times, and the source's process even more often. Raises Broken."""
        self._rng = random.Random(self.seed)
        self._config = self.folder / "hookmq.yaml"
        self._config.write_text(json.dumps(self._settings()))
        for number in range(rounds):
            self._round()
            say(f"round {number + 1}: {self.ledger.total} entries, {len(self._read())} published")
        with serving("-c", str(self._config)) as served:
            stored = self._settle()
            served.log[:] = [one for one in served.log if one["level"] != "error"]
        messages = [one[1:] for one in stored]
        self.repeated = len(messages) - len(set(messages))
        if self.origin.once and (found := self.ledger.mistakes(stored, True)):
            raise Broken("\n".join(found[:20]))
        if isinstance(self.origin, NatsOrigin) and self.repeated:
            raise Broken(f"{self.repeated} messages were published twice")

    def _settings(self) -> Mapping[str, Any]:
        sink = {
            "name": "written", "topics": ["kill/#"], "decode": "json", "driver": "file", "batch": {"age": "5ms"},
            "target": {"path": str(self.folder / "out"), "rotate_size": "256KiB"},
        }  # fmt: skip
        source = {
            "name": "kill", "retry_first": "20ms", "retry_longest": "200ms", **self.origin.source(),
        }  # fmt: skip
        sinks = {"path": str(self.folder / "sinks"), "sinks": [sink], "sources": [source]}
        return {
            "version": 1,
            "listeners": [{"name": "tcp", "bind": "127.0.0.1:0"}],
            "auth": {"default": "allow"},
            "authz": {"default": "allow"},
            "plugins": [
                {"use": "storage", "config": {"path": str(self.folder / "store")}},
                {"use": "sinks", "config": sinks},
            ],
        }

    def _read(self) -> list[Stored]:
        return read_lines(self.folder / "out")

    def _send(self) -> None:
        for at in range(EACH):
            key = KEYS[at % len(KEYS)]
            number = self.ledger.publish(key)
            payload = json.dumps({"key": key, "number": number}).encode()
            if self.origin.send(key, payload) is not False:
                self.ledger.acknowledge(key, number)

    def _round(self) -> None:
        rng = self._rng
        with suppress(_Killed), serving("-c", str(self._config)) as served:
            served.wait_for("sources.available")
            sending = threading.Thread(target=self._send)
            sending.start()
            for _ in range(1 + rng.randrange(3)):
                self._grow(sending)
                threading.Event().wait(rng.uniform(0.0, 0.2))
                self._kill_source(served)
            self._grow(sending)
            threading.Event().wait(rng.uniform(0.0, 0.3))
            if rng.random() < 0.5:
                self._kill_source(served)
            served.process.kill()
            served.process.wait(30)
            self.broker_kills += 1
            self._check_acknowledged()
            sending.join()
            raise _Killed

    def _check_acknowledged(self) -> None:
        """Raise Broken if the origin counts more entries as acknowledged than the broker has on disk."""
        if isinstance(self.origin, KafkaOrigin):
            count = self.origin.acknowledged()  # first: the source's process may still be ending
            path = max((self.folder / "sinks/written/log").glob("*.segment"))
            stored = read_segment(path, True, False).end
            if count > stored:
                raise Broken(f"{count} entries are acknowledged, but only {stored} are stored")
            self.acknowledged = max(self.acknowledged, count)

    def _grow(self, sending: threading.Thread) -> None:
        """Wait until new messages are written. This ensures that the next kill interrupts a source that is publishing."""
        count, began = len(self._read()), time.monotonic()
        while len(self._read()) == count and (sending.is_alive() or count < self.ledger.total):
            if time.monotonic() - began > PATIENCE:
                raise Broken("nothing is published while the origin is filled")
            threading.Event().wait(0.02)

    def _kill_source(self, served: Served) -> None:
        for path in Path(f"/proc/{served.process.pid}/task").glob("*/children"):
            with suppress(OSError):
                for child in path.read_text().split():
                    if b"hookmq_sinks.source_runner" in Path(f"/proc/{child}/cmdline").read_bytes():
                        os.kill(int(child), signal.SIGKILL)
                        self.source_kills += 1

    def _settle(self) -> list[Stored]:
        """Wait until all entries are published and return the stored messages. Raises Broken if progress stops."""
        count, since = -1, time.monotonic()
        while missing := self.ledger.missing(stored := self._read()):
            if len(stored) != count:
                count, since = len(stored), time.monotonic()
            elif time.monotonic() - since > PATIENCE:
                raise Broken(f"never published: {missing}")
            threading.Event().wait(0.05)
        return stored
