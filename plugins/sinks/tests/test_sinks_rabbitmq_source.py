"""Test the `rabbitmq` source against a real server: the source contract, prefetch, and mistakes."""

import itertools
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aio_pika
import pytest
from hookmq.config_api import bind_values
from hookmq.plugin import ConfigError
from hookmq_sinks.source import SourceUnavailable
from hookmq_sinks.sources.rabbitmq import RabbitMqSource
from hookmq_sinks.testing import SourceContract
from long_tests import skip_unless_wanted
from rabbitmq_server import RabbitMqServer

pytestmark = pytest.mark.slow
NUMBERS = itertools.count()
ALWAYS = ("test_messages_arrive_in_order",)
"""The test that runs without HOOKMQ_LONG_TESTS."""


@pytest.fixture(scope="module")
def server() -> Iterator[RabbitMqServer]:
    found = RabbitMqServer()
    yield found
    found.close()


class TestRabbitMqSource(SourceContract):
    """Runs the source contract. Each test has its own queue."""

    kind = RabbitMqSource
    more: Mapping[str, Any] = {}

    @pytest.fixture(autouse=True)
    async def _queue(self, request: pytest.FixtureRequest) -> None:
        skip_unless_wanted(request, ALWAYS)
        server: RabbitMqServer = request.getfixturevalue("server")
        self.server = server
        self.name = f"q.{next(NUMBERS)}"
        async with self.channel() as channel:
            await channel.declare_queue(self.name, durable=True)

    @asynccontextmanager
    async def channel(self) -> AsyncIterator[Any]:
        connection = await self.server.client()
        async with connection:
            yield await connection.channel()

    def origin_settings(self) -> Mapping[str, Any]:
        return {
            "url": self.server.url, "queues": [self.name],
            "publish": {"topic": "${topic}/${property.to}", "properties": {"id": "${id}"}}, **self.more,
        }  # fmt: skip

    async def send(self, payloads: Sequence[bytes], to: str = "x") -> None:
        async with self.channel() as channel:
            for one in payloads:
                message = aio_pika.Message(
                    one, headers={"to": to}, message_id="m", delivery_mode=aio_pika.DeliveryMode.PERSISTENT
                )  # fmt: skip
                await channel.default_exchange.publish(message, self.name)

    async def send_poison(self) -> None:
        await self.send([b"x"], "+")

    async def unacknowledged(self) -> int:
        """Return how many messages the queue would deliver to another consumer once this one is gone."""
        told = self.server.report("list_queues", "name", "messages")
        return next(
            int(line.split()[1]) for line in told.splitlines() if line.startswith(f"{self.name}\t")
        )

    async def test_messages_have_names_and_properties(self) -> None:
        source = await self.opened()
        await self.send([b"1"])
        (one,) = await self.take(source, 1)
        await source.close()
        assert one.topic == f"{self.name.replace('.', '/')}/x"
        assert one.properties.user_property == (("id", "m"),)

    async def test_prefetch_bounds_what_is_not_acknowledged(self) -> None:
        self.more = {"prefetch": 10}
        source = await self.opened()
        await self.send([b"%d" % at for at in range(50)])
        first = await self.take(source, 10, acknowledge=False)
        assert len(first) == 10
        await source.acknowledge(first, self.commit(first))
        rest = await self.take(source, 40)
        await source.close()
        assert [one.payload for one in first + rest] == [b"%d" % at for at in range(50)]

    async def test_mistakes_of_an_operator_are_named(self) -> None:
        for more, reason in (
            ({"queues": ["nothing"]}, "nothing"),
            ({"password": "wrong"}, "refused the user"),
            ({"virtual_host": "nowhere"}, "refused the user or the virtual host|nowhere"),
        ):
            self.more = more
            source = self.make()
            with pytest.raises(SourceUnavailable, match=reason) as caught:
                await source.open()
            assert caught.value.permanent, caught.value.reason
            await source.close()

    async def stop_origin(self) -> None:
        self.server.stop()

    async def start_origin(self) -> None:
        self.server.start()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"queues": []}, "queues: at least one"),
        ({"queues": ["a", "a"]}, "listed twice"),
        ({"url": "http://x"}, "url: expected amqp://"),
        ({"url": "amqp://u@x"}, "contains a user"),
        ({"url": "amqp://x/y"}, "use `virtual_host`|expected no path"),
        ({"tls": {}}, "tls: needs amqps://"),
    ],
)
def test_mistakes_are_reported(given: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        bind_values(RabbitMqSource.Settings, {"queues": ["a"], "publish": {"topic": "t"}, **given})
