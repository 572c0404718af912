"""Test the `nats` driver against a real server: the driver contract, headers, duplicates, and mistakes."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import nats
import pytest
from hookmq.config_api import bind_values
from hookmq.plugin import ConfigError
from hookmq_sinks.driver import DriverContext, Rejected, TargetUnavailable
from hookmq_sinks.drivers.nats import NatsDriver, NatsSettings
from hookmq_sinks.record import Record
from hookmq_sinks.testing import DriverContract, make_batch, make_record
from nats_server import NatsServer

NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    found = NatsServer("max_payload: 65536")
    yield found
    found.close()


class TestNats(DriverContract):
    """Runs the driver contract. Each test has its own stream."""

    kind = NatsDriver
    more: Mapping[str, Any] = {}

    @pytest.fixture(autouse=True)
    async def _stream(self, server: NatsServer) -> None:
        self.server = server
        self.name = f"t{next(NUMBERS)}"
        async with self.client() as client:
            await client.jetstream().add_stream(name=self.name, subjects=[f"{self.name}.>"])

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Any]:
        client = await nats.connect(self.server.url)
        try:
            yield client
        finally:
            await client.close()

    def target_settings(self) -> Mapping[str, Any]:
        return {"servers": [self.server.url], "subject": f"{self.name}.${{topic}}", **self.more}

    async def messages(self) -> list[Any]:
        async with self.client() as client:
            stream = client.jetstream()
            state = (await stream.stream_info(self.name)).state
            return [
                await stream.get_msg(self.name, number) for number in range(1, state.last_seq + 1)
            ]

    async def stored_ids(self) -> list[str]:
        return [one.headers["Nats-Msg-Id"] for one in await self.messages()]

    def poison(self, offset: int) -> Record:
        return make_record(offset, "x" * 70_000)

    async def stop_target(self) -> None:
        self.server.stop()

    async def start_target(self) -> None:
        self.server.start()

    async def test_a_message_and_its_headers(self) -> None:
        driver, _ = await self._opened()
        record = make_record(
            3,
            content_type="text/plain",
            user_properties=(("unit", "C\n"), ("a b", "left out"), ("Nats-Msg-Id", "forged")),
        )
        await driver.write(make_batch([record]))
        await driver.close()
        (found,) = await self.messages()
        assert found.subject == f"{self.name}.plant.a"
        assert found.data == b'{"n":3}'
        assert found.headers == {
            "unit": "C",
            "Mqtt-Topic": "plant/a",
            "Mqtt-Content-Type": "text/plain",
            "Mqtt-Client-Id": "c",
            "Nats-Msg-Id": record.id,
        }

    async def test_a_repeated_message_is_stored_once(self) -> None:
        for _ in range(2):
            driver, _ = await self._opened()
            await driver.write(make_batch([self.record(0), self.record(1)]))
            await driver.close()
        assert await self.stored_ids() == [self.record(0).id, self.record(1).id]

    @pytest.mark.parametrize("topic", ["a b", "a/*/b", "a//b", "/a", "a/", "a\tb"])
    async def test_topics_that_cannot_be_subjects_are_rejected(self, topic: str) -> None:
        self.more = {"subject": "${topic}"}
        driver, _ = await self._opened()
        with pytest.raises(Rejected) as caught:
            await driver.write(make_batch([make_record(0, topic=topic)]))
        await driver.close()
        assert "subject of NATS" in caught.value.reasons[0]

    async def test_a_subject_without_a_stream_is_an_operators_mistake(self) -> None:
        self.more = {"subject": "elsewhere"}
        driver, _ = await self._opened()
        (problem,) = await driver.check(self.record(0))
        assert (problem.key, problem.message) == ("subject", "no stream stores elsewhere")
        with pytest.raises(TargetUnavailable, match="no stream stores elsewhere") as caught:
            await driver.write(make_batch([self.record(0)]))
        assert caught.value.permanent
        await driver.close()

    async def test_the_stream_must_be_the_expected_one(self) -> None:
        self.more = {"stream": "other"}
        driver, _ = await self._opened()
        (problem,) = await driver.check(self.record(0))
        assert (problem.key, problem.message) == ("stream", "there is no stream other")
        with pytest.raises(TargetUnavailable, match="is not stored by other") as caught:
            await driver.write(make_batch([self.record(0)]))
        assert caught.value.permanent
        await driver.close()

    async def test_a_full_stream_is_tried_again(self) -> None:
        async with self.client() as client:
            stream = client.jetstream()
            config = (await stream.stream_info(self.name)).config
            config.max_msgs, config.discard = 1, "new"
            await stream.update_stream(config)
        driver, _ = await self._opened()
        await driver.write(make_batch([self.record(0)]))
        with pytest.raises(TargetUnavailable, match="maximum messages exceeded") as caught:
            await driver.write(make_batch([self.record(1)]))
        assert not caught.value.permanent
        await driver.close()

    async def test_subscribers_without_jetstream(self) -> None:
        self.more = {"jetstream": False, "subject": "live.${topic}"}
        async with self.client() as client:
            found: asyncio.Queue[Any] = asyncio.Queue()
            await client.subscribe("live.>", cb=found.put)
            await client.flush()
            driver, _ = await self._opened()
            assert list(await driver.check(self.record(0))) == []
            await driver.write(make_batch([self.record(n) for n in range(3)]))
            await driver.close()
            assert [(await found.get()).data for _ in range(3)] == [
                b'{"n":0}', b'{"n":1}', b'{"n":2}',
            ]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "permanent", "word"),
    [
        ({"user": "a", "password": "hunter2"}, True, "Authorization"),
        ({"token": "hunter2"}, True, "Authorization"),
        ({"credentials": "/does/not/exist.creds"}, True, "No such file"),
    ],
)
async def test_wrong_credentials_are_permanent(
    settings: dict[str, Any], permanent: bool, word: str
) -> None:
    server = NatsServer("authorization: {user: u, password: p}")
    try:
        driver = NatsDriver(
            bind_values(NatsSettings, {"servers": [server.url], **settings}),
            DriverContext("test", "test", "5eed"),
        )
        with pytest.raises(TargetUnavailable, match=word) as caught:
            await driver.open()
        await driver.close()
        assert caught.value.permanent is permanent
        assert "hunter2" not in caught.value.reason
    finally:
        server.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"servers": []}, "servers: empty"),
        ({"servers": ["a:4222"]}, "servers: 'a:4222': expected nats://"),
        ({"servers": ["nats://u:hunter2@a"]}, "servers: an address contains a user"),
        ({"user": "a", "token": "hunter2"}, "user: a token is set too"),
        ({"jetstream": False, "stream": "a"}, "stream: needs"),
    ],
)
def test_mistakes_in_settings(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        bind_values(NatsSettings, change)
    assert message in str(caught.value)
    assert "hunter2" not in str(caught.value)
