"""Test the `postgres` driver against a real server: the driver contract, columns, keys, and mistakes."""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import psycopg
import pytest
from hookmq.config_api import bind_values
from hookmq.plugin import ConfigError
from hookmq_sinks.driver import Rejected, TargetUnavailable
from hookmq_sinks.drivers.postgres import PostgresDriver, PostgresSettings, _reason
from hookmq_sinks.record import Record
from hookmq_sinks.testing import DriverContract, make_batch, make_record
from postgres_server import PostgresServer

NUMBERS = itertools.count()
COLUMNS = {
    "id": "${id}",
    "topic": "${topic}",
    "n": "${payload.n}",
    "at": "${timestamp}",
    "more": "${payload}",
}
TABLE = "(seq bigserial, id text, topic text NOT NULL, n integer CHECK (n < 1000), at timestamptz, more jsonb)"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    found = PostgresServer()
    yield found
    found.close()


class Postgres(DriverContract):
    """A driver contract in which each test has its own table."""

    kind = PostgresDriver
    more: Mapping[str, Any] = {}

    @pytest.fixture(autouse=True)
    def _table(self, server: PostgresServer) -> Iterator[None]:
        self.server = server
        self.number = next(NUMBERS)
        self.table = f"plant.t{self.number}"
        self.sql("CREATE SCHEMA IF NOT EXISTS plant", f"CREATE TABLE {self.table} {TABLE}")
        yield
        self.sql("DROP TABLE IF EXISTS hookmq_positions")

    def sql(self, *statements: str) -> list[Any]:
        with psycopg.connect(self.server.url, autocommit=True) as connection:
            for one in statements:
                cursor = connection.execute(one.encode())
            return cursor.fetchall() if cursor.description else []

    def target_settings(self) -> Mapping[str, Any]:
        return {"url": self.server.url, "table": self.table, "columns": COLUMNS, **self.more}

    async def stored_ids(self) -> list[str]:
        return [one[0] for one in self.sql(f"SELECT id FROM {self.table} ORDER BY seq")]

    async def stop_target(self) -> None:
        self.server.stop()

    async def start_target(self) -> None:
        self.server.start()


class TestPostgres(Postgres):
    def poison(self, offset: int) -> Record:
        return make_record(offset, {"n": "not a number"})

    async def test_values_keep_their_types(self) -> None:
        driver, _ = await self._opened()
        await driver.write(make_batch([make_record(0, {"n": 7, "deep": [1, {"a": None}]})]))
        await driver.write(make_batch([make_record(1, {"other": True})]))
        await driver.close()
        rows = self.sql(f"SELECT n, more, extract(epoch FROM at)::bigint FROM {self.table}")
        assert rows == [
            (7, {"n": 7, "deep": [1, {"a": None}]}, 1_767_225_600),
            (None, {"other": True}, 1_767_225_601),
        ]

    @pytest.mark.parametrize(
        ("payload", "word"),
        [({"n": 5000}, "check"), ({"n": 2**40}, "range"), ({"n": 1, "t": "a\0b"}, "unicode")],
    )
    async def test_each_refusal_names_its_reason(self, payload: Any, word: str) -> None:
        driver, _ = await self._opened()
        with pytest.raises(Rejected) as caught:
            await driver.write(make_batch([self.record(0), make_record(1, payload)]))
        await driver.close()
        assert list(caught.value.reasons) == [1]
        assert word in caught.value.reasons[1].lower()
        assert await self.stored_ids() == []

    async def test_two_processes_do_not_write_one_sink(self) -> None:
        first, _ = await self._opened()
        second, _ = await self._opened()
        await first.write(make_batch([self.record(0)]))
        with pytest.raises(TargetUnavailable, match="another process"):
            await second.write(make_batch([self.record(0)]))
        await second.close()
        await first.write(make_batch([self.record(1)]))
        await first.close()
        assert await self.stored_ids() == [self.record(0).id, self.record(1).id]

    async def test_check_names_what_is_wrong(self) -> None:
        async def problems(sample: Record) -> list[tuple[str, str]]:
            driver, _ = await self._opened()
            found = [(one.key, one.message) for one in await driver.check(sample)]
            await driver.close()
            return found

        assert await problems(make_record(0, {"n": "x"})) == [
            ("columns", 'invalid input syntax for type integer: "x"')
        ]
        self.sql(f"ALTER TABLE {self.table} DROP COLUMN n")
        found = await problems(self.record(0))
        assert found == [
            (
                "columns.n",
                f"the table {self.table} has no column n; it has seq, id, topic, at, more",
            )
        ]
        self.sql(f"DROP TABLE {self.table}")
        assert await problems(self.record(0)) == [
            ("table", f'relation "{self.table}" does not exist')
        ]
        driver, _ = await self._opened()
        with pytest.raises(TargetUnavailable) as caught:
            await driver.write(make_batch([self.record(0)]))
        assert caught.value.permanent
        await driver.close()

    @pytest.mark.parametrize(
        ("change", "word"),
        [
            ({"url": "postgresql://nobody@127.0.0.1:{port}/postgres"}, "nobody"),
            ({"url": "postgresql://hookmq@127.0.0.1:{port}/elsewhere"}, "elsewhere"),
            ({"setup": ["CREATE TABEL x (a int)"]}, "syntax"),
        ],
    )
    async def test_an_operators_mistakes_are_permanent(
        self, change: dict[str, Any], word: str
    ) -> None:
        change = {
            key: value.replace("{port}", str(self.server.port)) if isinstance(value, str) else value
            for key, value in change.items()
        }
        self.more = {**change, "password": "hunter2"}
        driver = self.make()
        with pytest.raises(TargetUnavailable, match=word) as caught:
            await driver.open()
        assert caught.value.permanent
        assert "hunter2" not in caught.value.reason
        await driver.close()

    async def test_setup_creates_the_table(self) -> None:
        self.sql(f"DROP TABLE {self.table}")
        self.more = {"setup": [f"CREATE TABLE IF NOT EXISTS {self.table} {TABLE}"]}
        for offset in range(2):
            driver, _ = await self._opened()
            await driver.write(make_batch([self.record(offset)]))
            await driver.close()
        assert len(await self.stored_ids()) == 2


class TestPostgresWithKey(Postgres):
    """Runs the driver contract with `conflict` and a unique key."""

    more: Mapping[str, Any] = {"conflict": ["topic"]}

    @pytest.fixture(autouse=True)
    def _key(self, _table: None) -> None:
        self.sql(f"ALTER TABLE {self.table} ADD UNIQUE (topic)")

    def record(self, offset: int) -> Record:
        return make_record(offset, topic=f"plant/{offset}")

    def poison(self, offset: int) -> Record:
        return make_record(offset, {"n": "not a number"}, topic=f"plant/{offset}")

    async def rows(self) -> list[Any]:
        driver, _ = await self._opened()
        first = [make_record(n, {"n": n}, topic=f"plant/{n % 2}") for n in range(5)]
        await driver.write(make_batch(first))
        await driver.write(make_batch([make_record(5, {"n": 5}, topic="plant/0")]))
        await driver.close()
        return self.sql(f"SELECT topic, n FROM {self.table} ORDER BY topic")

    async def test_the_newest_row_replaces_the_others(self) -> None:
        assert await self.rows() == [("plant/0", 5), ("plant/1", 3)]

    async def test_the_first_row_stays(self) -> None:
        self.more = {**self.more, "on_conflict": "ignore"}
        assert await self.rows() == [("plant/0", 0), ("plant/1", 1)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"url": "host=a"}, "url: expected postgresql://"),
        ({"url": "postgresql://a:hunter2@b/c"}, "url: contains a password"),
        ({"table": "a.b.c"}, "table: 'a.b.c' is not TABLE"),
        ({"columns": {}}, "columns: empty"),
        ({"columns": {"a": 5}}, "columns.a: expected a template, found 5"),
        ({"conflict": ["b"]}, "conflict: b is not one of the columns"),
    ],
)
def test_mistakes_in_settings(change: dict[str, Any], message: str) -> None:
    good = {"url": "postgresql://a@b/c", "table": "t", "columns": {"a": "${topic}"}}
    with pytest.raises(ConfigError) as caught:
        bind_values(PostgresSettings, {**good, **change})
    assert message in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_refused_connection_is_named_without_the_hint_of_libpq() -> None:
    with pytest.raises(psycopg.OperationalError) as caught:
        psycopg.connect("postgresql://x@127.0.0.1:1/x")
    assert _reason(caught.value).endswith("port 1 failed: Connection refused")
