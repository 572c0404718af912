"""Test the `nats` source against a real server: the contract with and without JetStream, and mistakes."""

import asyncio
import gc
import itertools
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import nats
import pytest
from hookmq.config_api import bind_values
from hookmq.plugin import ConfigError
from hookmq_sinks.source import SourceUnavailable
from hookmq_sinks.sources.nats import NatsSource
from hookmq_sinks.testing import SourceContract
from nats_server import NatsServer

NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    found = NatsServer()
    yield found
    found.close()


class NatsOrigin(SourceContract):
    """An origin whose subjects begin with a different word in each test."""

    kind = NatsSource
    more: Mapping[str, Any] = {}

    @pytest.fixture(autouse=True)
    def _stream(self, server: NatsServer) -> None:
        self.server = server
        self.name = f"s{next(NUMBERS)}"

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Any]:
        found = await nats.connect(self.server.url)
        yield found
        await found.close()

    async def stop_origin(self) -> None:
        self.server.stop()

    async def start_origin(self) -> None:
        self.server.start()


class TestJetStreamSource(NatsOrigin):
    """Runs the source contract. Each test has its own stream."""

    once = True

    def origin_settings(self) -> Mapping[str, Any]:
        return {
            "servers": [self.server.url], "stream": self.name, "ack_wait": "1s",
            "publish": {"topic": "${topic}/${property.to}"}, **self.more,
        }  # fmt: skip

    @pytest.fixture(autouse=True)
    async def _create(self, _stream: None) -> None:
        async with self.client() as client:
            await client.jetstream().add_stream(name=self.name, subjects=[f"{self.name}.>"])

    async def publish(self, payloads: Sequence[bytes], to: str = "x", name: str = "a") -> None:
        async with self.client() as client:
            for one in payloads:
                await client.jetstream().publish(f"{self.name}.{name}", one, headers={"to": to})

    async def send(self, payloads: Sequence[bytes]) -> None:
        await self.publish(payloads)

    async def send_poison(self) -> None:
        await self.publish([b"x"], to="+")

    async def unacknowledged(self) -> int:
        async with self.client() as client:
            info = await client.jetstream().consumer_info(self.name, "hookmq-test")
        return int(info.num_ack_pending + info.num_pending)

    async def test_subjects_are_topics(self) -> None:
        source = await self.opened()
        await self.publish([b"1"], name="b.c")
        (one,) = await self.take(source, 1)
        await source.close()
        assert one.topic == f"{self.name}/b/c/x"

    async def test_a_new_consumer_can_begin_at_the_next_message(self) -> None:
        await self.publish([b"old"])
        self.more = {"start": "next", "subjects": [f"{self.name}.a"]}
        source = await self.opened()
        await self.publish([b"other"], name="b")
        await self.publish([b"new"])
        (one,) = await self.take(source, 1)
        await source.close()
        assert one.payload == b"new"

    async def test_marks_of_acknowledged_messages_are_deleted(self) -> None:
        source = await self.opened()
        await self.send([b"1"])
        await self.take(source, 1)
        await source.close()
        self.marks["1"] = "1"  # the process was killed after the acknowledgement
        await (await self.opened()).close()
        assert not self.marks

    async def test_a_read_whose_connection_ends_leaves_no_error_behind(self) -> None:
        unhandled: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, found: unhandled.append(found))
        source = await self.opened()
        reading = asyncio.ensure_future(source.read())
        await asyncio.wait([reading], timeout=0.05)
        await source._client.close()  # type: ignore[attr-defined]
        with pytest.raises(SourceUnavailable):
            await reading
        del reading
        for _ in range(20):
            await asyncio.sleep(0)
        gc.collect()
        await source.close()
        assert not unhandled

    async def test_a_stream_that_is_missing_needs_an_operator(self) -> None:
        self.more = {"stream": "nothing"}
        source = self.make()
        with pytest.raises(SourceUnavailable, match="there is no stream nothing") as caught:
            await source.open()
        assert caught.value.permanent
        await source.close()


class TestSubjects(NatsOrigin):
    """Runs the source contract without a stream. NATS does not store the messages."""

    repeats = False

    def origin_settings(self) -> Mapping[str, Any]:
        return {
            "servers": [self.server.url], "subjects": [f"{self.name}.>"], "publish": {"topic": "${topic}"}, **self.more
        }  # fmt: skip

    async def send(self, payloads: Sequence[bytes]) -> None:
        async with self.client() as client:
            for one in payloads:
                await client.publish(f"{self.name}.a", one)
            await client.flush()

    async def send_poison(self) -> None:
        async with self.client() as client:
            await client.publish(f"{self.name}.a+", b"x")
            await client.flush()

    async def test_memory_is_bounded(self) -> None:
        self.more = {"buffer": 1 << 16}
        source = await self.opened()
        await self.send([b"x" * 1000] * 200)
        found = await self.take(source, 1)
        while source.metrics()["dropped"] + len(found) < 200:
            found += await self.take(source, 1)
        assert source.metrics()["dropped"] > 0
        await source.close()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "subjects: required without a stream"),
        ({"stream": "a.b"}, "stream: 'a.b' contains a character"),
        ({"subjects": ["a..b"]}, "subjects: 'a..b' is not a subject"),
        ({"subjects": ["a"], "durable": "x"}, "durable: needs `stream`"),
        ({"stream": "a", "servers": []}, "servers: empty"),
        ({"stream": "a", "servers": ["x:1"]}, "expected nats://"),
        ({"stream": "a", "servers": ["nats://u@x"]}, "contains a user"),
        ({"stream": "a", "user": "u", "token": "t"}, "user: a token is set too"),
    ],
)
def test_mistakes_are_reported(given: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        bind_values(NatsSource.Settings, {"publish": {"topic": "t"}, **given})
    assert message in str(caught.value)
