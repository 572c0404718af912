"""Test the `redis` driver against a real server: the driver contract, each kind of key, and mistakes."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import redis
from hookmq.config_api import bind_values
from hookmq.plugin import ConfigError
from hookmq_sinks.driver import DriverContext, Rejected, TargetUnavailable
from hookmq_sinks.drivers.redis import POSITIONS, RedisDriver, RedisSettings
from hookmq_sinks.record import Record
from hookmq_sinks.testing import DriverContract, make_batch, make_record
from redis_server import RedisServer

NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    found = RedisServer()
    yield found
    found.close()


class TestRedis(DriverContract):
    """Runs the driver contract. Each test has its own stream."""

    kind = RedisDriver
    more: Mapping[str, Any] = {}

    @pytest.fixture(autouse=True)
    def _stream(self, server: RedisServer) -> Iterator[None]:
        self.server = server
        self.key = f"t{next(NUMBERS)}"
        yield
        self.client().delete(POSITIONS)

    def client(self) -> Any:
        return redis.Redis(port=self.server.port)

    def target_settings(self) -> Mapping[str, Any]:
        return {"url": self.server.url, "key": f"{self.key}${{property.more}}", **self.more}

    async def stored_ids(self) -> list[str]:
        return [entry[b"id"].decode() for _, entry in self.client().xrange(self.key)]

    def record(self, offset: int) -> Record:
        return make_record(offset, user_properties=(("more", ""),))

    def poison(self, offset: int) -> Record:
        self.client().set(f"{self.key}bad", "not a stream")
        return make_record(offset, user_properties=(("more", "bad"),))

    async def stop_target(self) -> None:
        self.server.stop()

    async def start_target(self) -> None:
        self.server.start()

    async def written(self, records: list[Record], **more: Any) -> Any:
        """Write records with some settings changed. Return a client of the server."""
        self.more = more
        driver, _ = await self._opened()
        assert list(await driver.check(records[0])) == []
        await driver.write(make_batch(records))
        await driver.close()
        return self.client()

    async def test_entries_have_fields_and_a_limit(self) -> None:
        records = [self.record(n) for n in range(300)]
        client = await self.written(
            records, fields={"n": "${payload.n}", "none": "${payload.none}"}, max_length=100
        )
        entries = client.xrange(self.key)
        assert entries[-1][1] == {b"n": b"299"}
        assert 100 <= len(entries) < 300

    async def test_lists(self) -> None:
        records = [self.record(n) for n in range(5)]
        client = await self.written(records, into="list", max_length=2)
        assert client.lrange(self.key, 0, -1) == [b'{"n":3}', b'{"n":4}']

    async def test_keys_expire(self) -> None:
        client = await self.written(
            [self.record(1)], into="key", value="n=${payload.n}", expire=100.0
        )
        assert client.get(self.key) == b"n=1"
        assert 0 < client.pttl(self.key) <= 100_000

    async def test_hashes_expire(self) -> None:
        client = await self.written(
            [self.record(1), self.record(2)],
            into="hash",
            fields={"n": "${payload.n}", "at": "${timestamp.s}"},
            expire=100.0,
        )
        assert client.hgetall(self.key) == {b"n": b"2", b"at": b"1767225602"}
        assert 0 < client.pttl(self.key) <= 100_000

    async def test_channels(self) -> None:
        listener = self.client().pubsub()
        listener.subscribe(self.key)
        assert listener.get_message(timeout=10)["type"] == "subscribe"
        await self.written([self.record(1)], into="channel")
        assert listener.get_message(timeout=10)["data"] == b'{"n":1}'
        listener.close()

    async def test_two_processes_do_not_write_one_sink(self) -> None:
        first, _ = await self._opened()
        second, _ = await self._opened()
        other, _ = await self._opened("another-slot")
        await first.write(make_batch([self.record(0)]))
        await other.write(make_batch([self.record(0)]))
        with pytest.raises(TargetUnavailable, match="another process"):
            await second.write(make_batch([self.record(0)]))
        await first.write(make_batch([self.record(1)]))
        for one in (first, second, other):
            await one.close()
        assert len(await self.stored_ids()) == 3

    async def test_check_names_a_key_of_another_type(self) -> None:
        driver, _ = await self._opened()
        (problem,) = await driver.check(self.poison(0))
        await driver.close()
        assert problem.message == f"{self.key}bad is a string, but `into` needs a stream"

    async def test_a_record_without_a_key_is_rejected(self) -> None:
        driver, _ = await self._opened()
        with pytest.raises(Rejected) as caught:
            await driver.write(make_batch([self.record(0), make_record(1)]))
        await driver.close()
        assert caught.value.reasons == {1: "no value for ${property.more}"}

    async def test_a_server_without_memory_stores_nothing(self) -> None:
        driver, _ = await self._opened()
        client = self.client()
        client.config_set("maxmemory", "1")
        try:
            with pytest.raises(TargetUnavailable) as caught:
                await driver.write(make_batch([self.record(0)]))
        finally:
            client.config_set("maxmemory", "0")
        assert not caught.value.permanent
        await driver.close()
        assert await self.stored_ids() == []


async def test_a_wrong_password_is_permanent() -> None:
    server = RedisServer("--requirepass", "secret-word")
    try:
        for password in ("", "hunter2"):
            driver = RedisDriver(
                bind_values(RedisSettings, {"url": server.url, "password": password}),
                DriverContext("test", "test", "5eed"),
            )
            with pytest.raises(TargetUnavailable) as caught:
                await driver.open()
            await driver.close()
            assert caught.value.permanent
            assert "hunter2" not in caught.value.reason
    finally:
        server.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"url": "http://a"}, "url: expected redis://"),
        ({"url": "redis://a:hunter2@b"}, "url: contains a user"),
        ({"tls": {}}, "tls: needs rediss://"),
        ({"into": "hash"}, "fields: required"),
        ({"into": "list", "fields": {"a": "b"}}, "fields: cannot be used"),
        ({"value": "a"}, "value: cannot be used"),
        ({"into": "key", "max_length": 5}, "max_length: cannot be used"),
        ({"expire": "1s"}, "expire: cannot be used"),
    ],
)
def test_mistakes_in_settings(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        bind_values(RedisSettings, change)
    assert message in str(caught.value)
    assert "hunter2" not in str(caught.value)
