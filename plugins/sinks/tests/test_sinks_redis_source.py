"""Test the `redis` source against a real server: the source contract, claims, and mistakes."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import redis
from hookmq.config_api import bind_values
from hookmq.plugin import ConfigError
from hookmq_sinks.source import SourceUnavailable
from hookmq_sinks.sources.redis import RedisSource
from hookmq_sinks.testing import SourceContract
from redis_server import RedisServer

NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    found = RedisServer()
    yield found
    found.close()


class TestRedisSource(SourceContract):
    """Runs the source contract. Each test has its own stream."""

    kind = RedisSource
    once = True
    more: Mapping[str, Any] = {}

    @pytest.fixture(autouse=True)
    def _stream(self, server: RedisServer) -> None:
        self.server = server
        self.stream = f"s{next(NUMBERS)}=x"

    def client(self) -> Any:
        return redis.Redis(port=self.server.port)

    def origin_settings(self) -> Mapping[str, Any]:
        return {
            "url": self.server.url, "streams": [self.stream], "publish": {"topic": "t/${property.to}"}, **self.more
        }  # fmt: skip

    async def send(self, payloads: Sequence[bytes]) -> None:
        client = self.client()
        for one in payloads:
            client.xadd(self.stream, {"to": "a", "payload": one})

    async def send_poison(self) -> None:
        self.client().xadd(self.stream, {"to": "a/#", "payload": "x"})

    async def unacknowledged(self) -> int:
        (group,) = self.client().xinfo_groups(self.stream)
        return int(group["pending"]) + int(group["lag"] or 0)

    async def stop_origin(self) -> None:
        self.server.stop()

    async def start_origin(self) -> None:
        self.server.start()

    async def test_fields_are_values(self) -> None:
        self.more = {
            "payload_field": "",
            "publish": {
                "topic": "${topic}/x", "decode": "json", "payload": "${payload.n}", "qos": "${property.q}",
                "retain": "${property.r}", "properties": {"stream": "${topic}", "none": "${property.none}"},
            },
        }  # fmt: skip
        source = await self.opened()
        self.client().xadd(self.stream, {"n": "7", "q": "2", "r": "true"})
        (one,) = await self.take(source, 1)
        await source.close()
        assert (one.topic, one.payload, one.qos, one.retain) == (f"{self.stream}/x", b"7", 2, True)
        assert one.properties.user_property == (("stream", self.stream),)

    async def test_an_entry_without_the_field_is_poison(self) -> None:
        source = await self.opened()
        self.client().xadd(self.stream, {"other": "1"})
        (one,) = await self.take(source, 1)
        await source.close()
        assert "has no field 'payload'" in one.problem

    async def test_entries_of_a_consumer_that_is_gone_are_claimed(self) -> None:
        self.more = {"claim_after": "1ms", "consumer": "first"}
        source = await self.opened()
        await self.send([b"1"])
        await self.take(source, 1, acknowledge=False)
        await source.close()
        self.more = {"claim_after": "1ms", "consumer": "second"}
        second = await self.opened()
        (one,) = await self.take(second, 1)
        assert one.payload == b"1"
        assert second.metrics()["claimed"] == 1
        assert await self.unacknowledged() == 0
        await second.close()

    async def test_entries_that_were_deleted_are_acknowledged(self) -> None:
        source = await self.opened()
        await self.send([b"1", b"2"])
        await self.take(source, 2, acknowledge=False)
        await source.close()
        client = self.client()
        client.xtrim(self.stream, maxlen=1, approximate=False)
        again = await self.opened()
        (one,) = await self.take(again, 1)
        assert one.payload == b"2"
        assert await self.unacknowledged() == 0
        assert again.metrics()["deleted"] == 1
        await again.close()

    async def test_a_new_group_can_begin_at_the_next_entry(self) -> None:
        await self.send([b"old"])
        self.more = {"start": "next"}
        source = await self.opened()
        await self.send([b"new"])
        (one,) = await self.take(source, 1)
        await source.close()
        assert one.payload == b"new"

    async def test_a_key_of_another_type_needs_an_operator(self) -> None:
        self.client().set(self.stream, "text")
        source = self.make()
        with pytest.raises(SourceUnavailable, match="WRONGTYPE") as caught:
            await source.open()
        assert caught.value.permanent
        await source.close()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"streams": []}, "streams: at least one"),
        ({"streams": ["a", "a"]}, "listed twice"),
        ({"url": "http://x"}, "url: expected redis://"),
        ({"url": "redis://u:p@x"}, "contains a user"),
        ({"publish": {"topic": "a/#"}}, "wildcard"),
        ({"publish": {"topic": "$SYS/a"}}, "begins with $"),
        ({"publish": {"topic": "a", "qos": 3}}, "qos: expected 0, 1 or 2, found 3"),
        ({"publish": {"topic": "a/${nothing}"}}, "unknown placeholder"),
        ({"publish": {"topic": "a", "retain": "maybe"}}, "retain: expected true or false"),
        (
            {"publish": {"topic": "a/${property.x}", "sample": {"topic": "s"}}},
            "sample: no value for ${property.x}",
        ),
        ({"no_such": 1}, "no_such"),
    ],
)
def test_mistakes_are_reported(given: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        bind_values(RedisSource.Settings, {"streams": ["a"], "publish": {"topic": "t"}, **given})
    assert message in str(caught.value)
