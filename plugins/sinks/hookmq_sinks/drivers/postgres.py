"""The `postgres` driver: rows in a PostgreSQL table, each message exactly once.

A batch is one transaction. It contains the rows, and the position in the table ``hookmq_positions``. The position is
replaced only if it is still the one that this driver knows, so two processes never write for the same sink. Rows are
copied with COPY. With `conflict`, they are copied to a temporary table and inserted from there.

If the database refuses a row, the transaction is rolled back. A second transaction then tries each row after a
savepoint, and is rolled back too. It finds the refused rows and the database's reasons.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from hookmq.plugin import ConfigError, Seconds, setting

from hookmq_sinks.driver import (
    Batch,
    Driver,
    DriverContext,
    Position,
    Problem,
    Record,
    RecordError,
    RecordTemplate,
    Rejected,
    TargetUnavailable,
    make_each,
    template_setting,
)

if TYPE_CHECKING:
    from psycopg import AsyncConnection, AsyncCursor
    from psycopg.sql import Composed, Identifier

_POSITIONS: Final = "hookmq_positions"
_TABLE: Final = re.compile(r"[^\0.]{1,63}(\.[^\0.]{1,63})?")
_LOCKED: Final = 0x686D71
"""The first number of the advisory lock under which the table of positions is created."""


@dataclass(frozen=True)
class PostgresSettings:
    """The `postgres` driver's settings."""

    url: str = field(
        metadata={
            "help": "the database: postgresql://USER@HOST:PORT/DATABASE, with options such as sslmode=verify-full"
        }
    )
    table: str = field(metadata={"help": "the table, or SCHEMA.TABLE; it must exist"})
    columns: Mapping[str, Any] = template_setting(
        {}, "columns and their templates; a column is NULL if its template has no value"
    )
    password: str = field(
        default="", repr=False, metadata={"help": "the password of the user in url"}
    )
    conflict: tuple[str, ...] = setting((), "columns of a unique key; empty if rows never collide")
    on_conflict: Literal["update", "ignore"] = setting(
        "update", "what happens to a row with a known key: update replaces it, ignore keeps it"
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
        if not self.columns:
            raise ConfigError(
                "columns: empty, but at least one is required", hint='time: "${timestamp}"'
            )
        for name, text in self.columns.items():
            if not isinstance(text, str):
                raise ConfigError(f"columns.{name}: expected a template, found {text!r}")
        for name in self.conflict:
            if name not in self.columns:
                raise ConfigError(f"conflict: {name} is not one of the columns")


class PostgresDriver(Driver):
    """Writes rows; see the module docstring."""

    Settings: ClassVar[type] = PostgresSettings
    extra = "postgres"
    holds_position = True
    settings: PostgresSettings

    def __init__(self, settings: PostgresSettings, context: DriverContext) -> None:
        super().__init__(settings, context)
        self._templates = [
            RecordTemplate(text, f"columns.{name}") for name, text in settings.columns.items()
        ]
        self._connection: AsyncConnection[Any] | None = None
        self._held: Position | None = None
        self._copy: Composed | None = None
        self._insert: Composed | None = None

    async def open(self) -> Position | None:
        """Connect, execute the `setup` statements, and read the position."""
        import psycopg
        from psycopg.conninfo import conninfo_to_dict

        try:
            arguments: dict[str, Any] = conninfo_to_dict(self.settings.url)
        except psycopg.Error as error:
            raise TargetUnavailable(f"url: {_reason(error)}", True) from None
        if self.settings.password:
            arguments["password"] = self.settings.password
        arguments.setdefault("connect_timeout", int(self.settings.connect_timeout))
        arguments.setdefault("application_name", f"hookmq-sinks {self.context.sink}")
        try:
            self._connection = await psycopg.AsyncConnection.connect(**arguments)
            await self._prepare(self._connection)
            self._held = await self._read_position(self._connection)
        except psycopg.Error as error:
            raise _unavailable(error) from error
        return self._held

    async def check(self, sample: Record | None) -> Sequence[Problem]:
        """Insert the sample in a transaction, and roll it back."""
        import psycopg

        connection = self._connection
        assert connection is not None
        problems = await self._missing(connection)
        if problems:
            return problems
        try:
            if sample is not None:
                row = self._row(sample)
                async with (
                    connection.transaction(force_rollback=True),
                    connection.cursor() as cursor,
                ):
                    await self._store(cursor, [row])
        except RecordError as error:
            return [Problem("columns", str(error))]
        except psycopg.Error as error:
            if _is_lost(connection, error):
                raise _unavailable(error) from error
            column = error.diag.column_name
            return [
                Problem(f"columns.{column}" if column else "columns", _reason(error), _hint(error))
            ]
        return ()

    async def write(self, batch: Batch) -> None:
        """Store the rows and the position in one transaction."""
        import psycopg

        rows = make_each(batch, self._row)
        connection = self._connection
        assert connection is not None
        try:
            async with connection.transaction(), connection.cursor() as cursor:
                if rows:
                    await self._store(cursor, rows)
                await self._move(cursor, batch.position)
        except psycopg.Error as error:
            if _is_lost(connection, error) or not _is_refusal(error):
                raise _unavailable(error) from error
            raise Rejected(await self._refused(connection, rows, error)) from error
        self._held = batch.position

    async def close(self) -> None:
        """Close the connection. A running transaction is rolled back."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    # opening ---------------------------------------------------------------------------------------------------------

    async def _prepare(self, connection: "AsyncConnection[Any]") -> None:
        from psycopg.sql import SQL

        await connection.set_autocommit(True)
        async with connection.transaction(), connection.cursor() as cursor:
            # CREATE TABLE IF NOT EXISTS fails if two connections run it at the same time.
            await cursor.execute("SELECT pg_advisory_xact_lock(%s, 0)", (_LOCKED,))
            await cursor.execute("SELECT to_regclass(%s)", (_POSITIONS,))
            found = await cursor.fetchone()
            if found is None or found[0] is None:
                await cursor.execute(
                    SQL(
                        "CREATE TABLE {} (slot text PRIMARY KEY, log_id text NOT NULL, position bigint NOT NULL, "
                        "stored_at timestamptz NOT NULL DEFAULT now())"
                    ).format(_name(_POSITIONS))
                )
            for statement in self.settings.setup:
                await cursor.execute(statement.encode())
        self._make_statements()

    def _make_statements(self) -> None:
        from psycopg.sql import SQL, Composed, Identifier

        settings = self.settings
        columns = SQL(", ").join(map(Identifier, settings.columns))
        table = _name(settings.table)
        if not settings.conflict:
            self._copy = SQL("COPY {} ({}) FROM STDIN").format(table, columns)
            return
        # If a batch has several rows with one key, keep the last: ON CONFLICT can update a row only once.
        key = SQL(", ").join(map(Identifier, settings.conflict))
        others = [one for one in settings.columns if one not in settings.conflict]
        action: SQL | Composed = SQL("NOTHING")
        order = SQL("ASC")
        if settings.on_conflict == "update":
            order = SQL("DESC")
            if others:
                action = SQL("UPDATE SET {}").format(
                    SQL(", ").join(
                        SQL("{0} = EXCLUDED.{0}").format(Identifier(one)) for one in others
                    )
                )
        self._copy = SQL("COPY hookmq_batch ({}, hookmq_row) FROM STDIN").format(columns)
        self._insert = SQL(
            "INSERT INTO {} ({}) SELECT {} FROM (SELECT DISTINCT ON ({}) * FROM hookmq_batch ORDER BY {}, hookmq_row {}) "
            "AS newest ORDER BY hookmq_row ON CONFLICT ({}) DO {}"
        ).format(table, columns, columns, key, key, order, key, action)

    async def _read_position(self, connection: "AsyncConnection[Any]") -> Position | None:
        from psycopg.sql import SQL

        async with connection.cursor() as cursor:
            await cursor.execute(
                SQL("SELECT log_id, position FROM {} WHERE slot = %s").format(_name(_POSITIONS)),
                (self.context.slot,),
            )
            found = await cursor.fetchone()
        return None if found is None else Position(found[0], found[1])

    async def _missing(self, connection: "AsyncConnection[Any]") -> list[Problem]:
        """Return problems if the table or a column does not exist."""
        import psycopg
        from psycopg.sql import SQL

        table = self.settings.table
        try:
            async with (
                connection.transaction(force_rollback=True),
                connection.cursor() as cursor,
            ):
                await cursor.execute(SQL("SELECT * FROM {} LIMIT 0").format(_name(table)))
                known = [one.name for one in cursor.description or ()]
        except psycopg.Error as error:
            if _is_lost(connection, error):
                raise _unavailable(error) from error
            return [Problem("table", _reason(error), _hint(error))]
        return [
            Problem(
                f"columns.{name}",
                f"the table {table} has no column {name}; it has {', '.join(known)}",
            )
            for name in self.settings.columns
            if name not in known
        ]

    # writing ---------------------------------------------------------------------------------------------------------

    def _row(self, record: Record) -> list[Any]:
        from psycopg.types.json import Jsonb

        row: list[Any] = []
        for template in self._templates:
            value = template.optional(record)
            row.append(Jsonb(value) if isinstance(value, dict | list) else value)
        return row

    async def _store(self, cursor: "AsyncCursor[Any]", rows: list[list[Any]]) -> None:
        from psycopg.sql import SQL

        assert self._copy is not None
        numbered = self._insert is not None
        if numbered:
            await cursor.execute(
                SQL(
                    "CREATE TEMP TABLE IF NOT EXISTS hookmq_batch ON COMMIT DELETE ROWS AS "
                    "SELECT {}, 0::bigint AS hookmq_row FROM {} LIMIT 0"
                ).format(_listed(self.settings.columns), _name(self.settings.table))
            )
            await cursor.execute("TRUNCATE hookmq_batch")
        async with cursor.copy(self._copy) as copy:
            for index, row in enumerate(rows):
                await copy.write_row([*row, index] if numbered else row)
        if self._insert is not None:
            await cursor.execute(self._insert)

    async def _move(self, cursor: "AsyncCursor[Any]", position: Position) -> None:
        """Store the position. Raises TargetUnavailable if another process has changed the stored one."""
        from psycopg.sql import SQL

        held = self._held
        table = _name(_POSITIONS)
        if held is None:
            await cursor.execute(
                SQL("INSERT INTO {} (slot, log_id, position) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING").format(table),
                (self.context.slot, position.log_id, position.offset),
            )  # fmt: skip
        else:
            await cursor.execute(
                SQL(
                    "UPDATE {} SET log_id = %s, position = %s, stored_at = now() "
                    "WHERE slot = %s AND log_id = %s AND position = %s"
                ).format(table),
                (position.log_id, position.offset, self.context.slot, held.log_id, held.offset),
            )
        if cursor.rowcount != 1:
            raise TargetUnavailable(
                f"another process has moved the position of {self.context.slot}"
            )

    async def _refused(
        self, connection: "AsyncConnection[Any]", rows: list[list[Any]], error: Exception
    ) -> dict[int, str]:
        """Find the rows that the database refuses. Return its reasons by row index. Nothing is stored."""
        import psycopg

        reasons: dict[int, str] = {}
        try:
            async with (
                connection.transaction(force_rollback=True),
                connection.cursor() as cursor,
            ):
                for index, row in enumerate(rows):
                    try:
                        async with connection.transaction():
                            await self._store(cursor, [row])
                    except psycopg.Error as found:
                        if _is_lost(connection, found) or not _is_refusal(found):
                            raise
                        reasons[index] = _reason(found)
        except psycopg.Error as found:
            raise _unavailable(found) from found
        if not reasons:
            raise TargetUnavailable(_reason(error)) from error
        return reasons


def _name(name: str) -> "Identifier":
    from psycopg.sql import Identifier

    return Identifier(*name.split("."))


def _listed(names: Mapping[str, Any]) -> "Composed":
    from psycopg.sql import SQL, Identifier

    return SQL(", ").join(map(Identifier, names))


def _is_lost(connection: "AsyncConnection[Any]", error: Exception) -> bool:
    return connection.closed or connection.broken


def _is_refusal(error: Any) -> bool:
    """Return whether a row's values caused the error: SQLSTATE class 22 or 23, or a value refused by psycopg."""
    import psycopg

    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.DataError | psycopg.ProgrammingError)
    return bool(state[:2] in ("22", "23"))


def _unavailable(error: Any) -> TargetUnavailable:
    """Return the error for the engine. The error is permanent if an operator must act: wrong credentials, an unknown
    database, a missing table, missing permissions, or invalid SQL.
    """
    state = error.sqlstate or ""
    text = str(error)
    permanent = state[:2] in ("28", "3D", "3F", "42") or "authentication failed" in text
    with suppress(AttributeError):
        permanent = permanent or "no password supplied" in text or "does not exist" in text
    return TargetUnavailable(_reason(error), bool(permanent))


def _reason(error: Any) -> str:
    """Return the database's error message as one line, without values from the row."""
    primary = error.diag.message_primary if getattr(error, "diag", None) else None
    lines = [one.strip() for one in str(primary or error).splitlines() if one.strip()]
    if primary is None:  # libpq adds a question as a hint
        lines = [one for one in lines if not one.endswith("?")] or lines
    text = lines[-1] if primary is None and lines else " ".join(lines)
    column = getattr(error.diag, "column_name", None) if getattr(error, "diag", None) else None
    return f"{text} (column {column})" if column and column not in text else text or "unknown error"


def _hint(error: Any) -> str:
    return (error.diag.message_hint or "") if getattr(error, "diag", None) else ""
