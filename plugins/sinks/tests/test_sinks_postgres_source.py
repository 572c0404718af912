"""Test the `postgres` source against a real server: the source contract, notifications, and mistakes."""

import asyncio
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psycopg
import pytest
from hookmq.config_api import bind_values
from hookmq.plugin import ConfigError
from hookmq_sinks.source import Source, SourceUnavailable
from hookmq_sinks.sources.postgres import PostgresSource
from hookmq_sinks.testing import SourceContract
from postgres_server import PostgresServer

NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    found = PostgresServer()
    yield found
    found.close()


class TestPostgresSource(SourceContract):
    """Runs the source contract. Each test has its own outbox table."""

    kind = PostgresSource
    once = True
    more: Mapping[str, Any] = {}

    @pytest.fixture(autouse=True)
    def _table(self, server: PostgresServer) -> None:
        self.server = server
        self.table = f"Outbox{next(NUMBERS)}"
        self.execute(
            f'CREATE TABLE "{self.table}" (id bigserial, topic text, payload bytea, sent timestamptz)'
        )

    def execute(self, query: str, *values: Any) -> list[Any]:
        with psycopg.connect(self.server.url, autocommit=True) as connection:
            cursor = connection.execute(query.encode(), values)
            return cursor.fetchall() if cursor.description else []

    def origin_settings(self) -> Mapping[str, Any]:
        return {
            "url": self.server.url, "table": self.table, "publish": {"topic": "${property.topic}"}, "poll_every": "50ms",
            **self.more,
        }  # fmt: skip

    async def send(self, payloads: Sequence[bytes], topic: str = "a/b") -> None:
        query = f'INSERT INTO "{self.table}" (topic, payload) SELECT %s, unnest(%s::bytea[])'
        self.execute(query, topic, list(payloads))

    async def send_poison(self) -> None:
        await self.send([b"x"], "a/#")

    async def unacknowledged(self) -> int:
        (row,) = self.execute(f'SELECT count(*) FROM "{self.table}" WHERE sent IS NULL')
        return int(row[0])

    async def stop_origin(self) -> None:
        self.server.stop()

    async def start_origin(self) -> None:
        self.server.start()

    async def test_rows_can_be_kept(self) -> None:
        self.more = {"done_column": "sent"}
        source = await self.opened()
        await self.send([b"1", b"2"])
        await self.take(source, 2)
        await source.close()
        assert self.execute(f'SELECT count(*), count(sent) FROM "{self.table}"') == [(2, 2)]
        again = await self.opened()
        await self.send([b"3"])
        (one,) = await self.take(again, 1)
        await again.close()
        assert one.payload == b"3"

    async def test_a_lower_id_that_is_committed_later_is_read(self) -> None:
        source = await self.opened()
        late = psycopg.connect(self.server.url)
        late.execute(f"INSERT INTO \"{self.table}\" (topic, payload) VALUES ('t', 'low')".encode())
        await self.send([b"high"])
        (first,) = await self.take(source, 1)
        late.commit()
        late.close()
        (second,) = await self.take(source, 1)
        await source.close()
        assert (first.payload, second.payload) == (b"high", b"low")
        assert int(second.mark[0]) < int(first.mark[0])  # type: ignore[index]

    async def test_a_notification_wakes_it(self) -> None:
        self.more = {"poll_every": "1h", "channel": self.table}
        source = await self.opened()
        reading = asyncio.ensure_future(source.read())
        await asyncio.wait([reading], timeout=0.1)
        await self.send([b"1"])
        await asyncio.wait([reading], timeout=0.1)
        assert not reading.done()
        self.execute(f'NOTIFY "{self.table}"')
        async with asyncio.timeout(10):
            (one,) = await reading
        assert one.payload == b"1"
        await source.close()

    async def test_only_one_source_reads_a_table(self) -> None:
        source = await self.opened()
        other = self.make("other")
        with pytest.raises(SourceUnavailable, match="another source reads the table"):
            await other.open()
        await other.close()
        await source.close()
        await (await self.opened()).close()

    async def test_json_is_a_payload(self) -> None:
        self.execute(f'ALTER TABLE "{self.table}" ADD body jsonb')
        self.execute(
            f"INSERT INTO \"{self.table}\" (topic, body) VALUES ('t', '{{\"n\": [1, 2]}}')"
        )
        self.more = {
            "payload_column": "body",
            "publish": {"topic": "${property.topic}/${payload.n.0}", "decode": "json"},
        }
        source = await self.opened()
        (one,) = await self.take(source, 1)
        await source.close()
        assert (one.topic, one.payload) == ("t/1", b'{"n":[1,2]}')

    async def open_and_read(self, source: Source) -> None:
        await source.open()
        await source.read()

    async def test_mistakes_of_an_operator_are_named(self) -> None:
        for more, reason in (
            ({"table": "nothing"}, "there is no table nothing"),
            ({"payload_column": "nothing"}, "has no column nothing"),
            ({"id_column": "topic"}, "not a whole number"),
        ):
            await self.send([b"1"])
            self.more = more
            source = self.make()
            with pytest.raises(SourceUnavailable, match=reason) as caught:
                await self.open_and_read(source)
            assert caught.value.permanent
            await source.close()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"url": "mysql://x"}, "url: expected postgresql://"),
        ({"url": "postgresql://u:p@x/d"}, "url: contains a password"),
        ({"table": "a.b.c"}, "table: 'a.b.c' is not TABLE"),
        ({"payload_column": ""}, "payload_column: empty"),
        ({"done_column": "id"}, "done_column: id has another use"),
    ],
)
def test_mistakes_are_reported(given: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        bind_values(
            PostgresSource.Settings,
            {"url": "postgresql://u@x/d", "table": "t", "publish": {"topic": "t"}, **given},
        )
    assert message in str(caught.value)
