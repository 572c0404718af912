"""The `postgres` source: rows in a PostgreSQL outbox table.

Programs insert rows into the table, in the same transaction that changes their own data. This source reads the rows in
id order. Once this broker has committed their messages, the source deletes the rows or sets their column `done_column`.
A row's id is the mark of its message. Each row is therefore published once, even if the process is killed in between.

Ids come from a sequence, so a transaction with a lower id can commit after one with a higher id. For this reason, the
source does not keep a position, but reads every row in the table. Rows inserted by one transaction are published in
order.

NOTIFY on `channel` wakes the source. In addition, the source checks the table every `poll_every`. An advisory lock on
the table ensures that only one source reads it at a time.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

from hookmq.plugin import ConfigError, Seconds, setting

from hookmq_sinks.record import Record, to_bytes
from hookmq_sinks.source import Incoming, Source, SourceContext, SourceUnavailable
from hookmq_sinks.source_message import MessageMaker, PublishConfig

if TYPE_CHECKING:
    from psycopg import AsyncConnection
    from psycopg.sql import Composed, Identifier

_TABLE: Final = re.compile(r"[^\0.]{1,63}(\.[^\0.]{1,63})?")
_OPERATOR: Final = ("authentication failed", "no password supplied", "does not exist")
_LOCK: Final = 0x686D72
"""The first number of the advisory lock of a table."""


@dataclass(frozen=True)
class PostgresSourceSettings:
    """The settings of an outbox table."""

    url: str = field(
        metadata={
            "help": "the database: postgresql://USER@HOST:PORT/DATABASE, with options such as sslmode=verify-full"
        }
    )
    table: str = field(metadata={"help": "the table, or SCHEMA.TABLE"})
    publish: PublishConfig = field(metadata={"help": "how a row becomes a message"})
    id_column: str = setting("id", "column with a unique number, in whose order rows are read")
    payload_column: str = setting("payload", "column with the payload: bytea, text or json")
    done_column: str = setting(
        "", "column with a time that is set instead of deleting the row; NULL means not published"
    )
    channel: str = setting("", "channel of NOTIFY that says that there are rows; default: none")
    poll_every: Seconds = setting(5.0, "longest time between two looks at the table", minimum=0.05)
    batch: int = setting(500, "most rows that are read at a time", minimum=1, maximum=5000)
    password: str = field(
        default="", repr=False, metadata={"help": "the password of the user in url"}
    )
    setup: tuple[str, ...] = setting(
        (), "SQL statements that are executed after connecting, such as CREATE TABLE IF NOT EXISTS"
    )
    connect_timeout: Seconds = setting(10.0, "longest time for connecting", minimum=1, maximum=600)

    def __post_init__(self) -> None:
        if not self.url.startswith(("postgresql://", "postgres://")):
            raise ConfigError("url: expected postgresql://USER@HOST:PORT/DATABASE")
        if re.match(r"[a-z]+://[^/@]*:[^/@]*@", self.url):
            raise ConfigError(
                "url: contains a password", hint="move it to `password`, with $env or $file"
            )
        if not _TABLE.fullmatch(self.table):
            raise ConfigError(f"table: {self.table!r} is not TABLE or SCHEMA.TABLE")
        for key in ("id_column", "payload_column"):
            if not getattr(self, key):
                raise ConfigError(f"{key}: empty")
        if self.done_column in (self.id_column, self.payload_column):
            raise ConfigError(f"done_column: {self.done_column} has another use")


class PostgresSource(Source):
    """Reads an outbox table; see the module docstring."""

    Settings: ClassVar[type] = PostgresSourceSettings
    extra = "postgres"
    settings: PostgresSourceSettings

    def __init__(self, settings: PostgresSourceSettings, context: SourceContext) -> None:
        super().__init__(settings, context)
        self._maker = MessageMaker(settings.publish)
        self._connection: AsyncConnection[Any] | None = None
        self._counts = {"notifications": 0, "repeated": 0}

    @classmethod
    def local_filters(cls, settings: Any) -> Sequence[str]:
        """Return a filter that matches the topics of all messages."""
        found: Sequence[str] = settings.publish.filters()
        return found

    async def open(self) -> None:
        """Connect, take the lock, and remove rows whose messages this broker has already committed."""
        import psycopg
        from psycopg.conninfo import conninfo_to_dict
        from psycopg.sql import SQL, Identifier

        settings = self.settings
        try:
            arguments: dict[str, Any] = conninfo_to_dict(settings.url)
        except psycopg.Error as error:
            raise SourceUnavailable(f"url: {_reason(error)}", True) from None
        if settings.password:
            arguments["password"] = settings.password
        arguments.setdefault("connect_timeout", int(settings.connect_timeout))
        arguments.setdefault("application_name", f"hookmq-sources {self.context.source}")
        try:
            connection = await psycopg.AsyncConnection.connect(**arguments, autocommit=True)
            self._connection = connection
            for statement in settings.setup:
                await connection.execute(statement.encode())
            await self._lock(connection)
            if settings.channel:
                await connection.execute(SQL("LISTEN {}").format(Identifier(settings.channel)))
            known = [int(one) for one in self.context.marks if one.lstrip("-").isdecimal()]
            if known:
                await self._finish(connection, known)
                self._counts["repeated"] += len(known)
                await self.context.forget([str(one) for one in known])
        except psycopg.Error as error:
            raise _unavailable(error) from error

    async def _lock(self, connection: "AsyncConnection[Any]") -> None:
        cursor = await connection.execute(
            "SELECT pg_try_advisory_lock(%s, to_regclass(%s)::oid::int)", (_LOCK, self._quoted())
        )
        row = await cursor.fetchone()
        if row is None or row[0] is None:
            raise SourceUnavailable(f"there is no table {self.settings.table}", True)
        if not row[0]:
            raise SourceUnavailable(f"another source reads the table {self.settings.table}")

    def _quoted(self) -> str:
        return ".".join(
            '"' + one.replace('"', '""') + '"' for one in self.settings.table.split(".")
        )

    # reading ---------------------------------------------------------------------------------------------------------

    async def read(self) -> Sequence[Incoming]:
        """Return the rows in the table. If the table is empty, wait for new rows."""
        import psycopg

        connection = self._connection
        if connection is None:
            raise SourceUnavailable("not connected")
        try:
            while True:
                found = await self._select(connection)
                if found:
                    return found
                await self._wait(connection)
        except psycopg.Error as error:
            raise _unavailable(error) from error

    async def _wait(self, connection: "AsyncConnection[Any]") -> None:
        if not self.settings.channel:
            await asyncio.sleep(self.settings.poll_every)
            await connection.execute("SELECT 1")
            return
        # psycopg also yields notifications that arrived during the query.
        async for _ in connection.notifies(timeout=self.settings.poll_every, stop_after=1):
            self._counts["notifications"] += 1

    async def _select(self, connection: "AsyncConnection[Any]") -> list[Incoming]:
        from psycopg.rows import dict_row

        async with connection.cursor(row_factory=dict_row) as cursor:
            await cursor.execute(self._query(), (self.settings.batch,))
            rows = await cursor.fetchall()
        return [self._message(one) for one in rows]

    def _query(self) -> "Composed":
        from psycopg.sql import SQL, Identifier

        settings = self.settings
        where = SQL("").format()
        if settings.done_column:
            where = SQL("WHERE {} IS NULL ").format(Identifier(settings.done_column))
        return SQL("SELECT * FROM {} {}ORDER BY {} LIMIT %s").format(
            _name(settings.table), where, Identifier(settings.id_column)
        )

    def _message(self, row: dict[str, Any]) -> Incoming:
        settings = self.settings
        for key in (settings.id_column, settings.payload_column):
            if key not in row:
                raise SourceUnavailable(f"the table {settings.table} has no column {key}", True)
        id, payload = row[settings.id_column], row[settings.payload_column]
        if not isinstance(id, int):
            raise SourceUnavailable(f"the column {settings.id_column} is not a whole number", True)
        body = (
            b""
            if payload is None
            else to_bytes(bytes(payload) if isinstance(payload, memoryview) else payload)
        )
        others = tuple(
            (name, value if isinstance(value, str) else to_bytes(value).decode("utf-8", "replace"))
            for name, value in row.items()
            if value is not None and name not in (settings.payload_column, settings.done_column)
        )
        record = Record(str(id), id, settings.table, body, user_properties=others)
        return self._maker.incoming(record, id, str(id))

    async def acknowledge(self, messages: Sequence[Incoming], codes: Sequence[int]) -> None:
        """Delete the rows or mark them as done, then delete their marks."""
        import psycopg

        connection = self._connection
        if connection is None:
            raise SourceUnavailable("not connected")
        try:
            await self._finish(connection, [one.handle for one in messages])
        except psycopg.Error as error:
            raise _unavailable(error) from error
        marks = self.context.marks
        await self.context.forget([str(one.handle) for one in messages if str(one.handle) in marks])

    async def _finish(self, connection: "AsyncConnection[Any]", ids: list[int]) -> None:
        from psycopg.sql import SQL, Identifier

        settings = self.settings
        id, table = Identifier(settings.id_column), _name(settings.table)
        if settings.done_column:
            done = Identifier(settings.done_column)
            query = SQL("UPDATE {} SET {} = now() WHERE {} = ANY(%s)").format(table, done, id)
        else:
            query = SQL("DELETE FROM {} WHERE {} = ANY(%s)").format(table, id)
        await connection.execute(query, (ids,))

    async def close(self) -> None:
        """Close the connection, which releases the lock."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def metrics(self) -> Mapping[str, float]:
        """Return how many notifications arrived, and how many rows were removed after a restart because they were
        already published.
        """
        return self._counts


def _name(table: str) -> "Identifier":
    from psycopg.sql import Identifier

    return Identifier(*table.split("."))


def _reason(error: Exception) -> str:
    text = getattr(getattr(error, "diag", None), "message_primary", None) or str(error)
    return " ".join(text.split())


def _unavailable(error: Exception) -> SourceUnavailable:
    state = getattr(error, "sqlstate", None) or ""
    text = str(error)
    # Wrong user or password, missing rights, unknown database, table or column. libpq gives no state while connecting.
    permanent = state[:2] in ("28", "3D", "3F", "42") or any(one in text for one in _OPERATOR)
    return SourceUnavailable(_reason(error), permanent)
