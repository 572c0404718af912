"""Delta tables through delta-rs: no jar. The executors write the files, the driver adds them in one commit.

The commit notes the batch as application transactions. delta-rs refuses it if another commit since the table was loaded
noted the same names: of two drivers with one batch, such as one that was thought dead, exactly one succeeds.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark_mqtt.errors import MqttError

from mqtt_pipelines.settings import Table
from mqtt_pipelines.sinks import Written, columns
from mqtt_pipelines.sinks.append import Times, append
from mqtt_pipelines.sinks.ledger import Span
from mqtt_pipelines.sinks.parts import Part, Target

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame

UNFIT = (
    "delta.columnMapping.mode",
    "delta.constraints.",
    "delta.enableChangeDataFeed",
    "delta.setTransactionRetentionDuration",
)
"""Properties of tables that only an engine that knows them may write."""


class DeltaSink:
    """Appends batches to a Delta table, and makes it if there is none."""

    def __init__(self, table: Table, wait: Callable[[float], None] = time.sleep) -> None:
        self.table = table
        path = table.path
        if path.startswith("file:"):  # As Spark writes it, with one slash or three.
            path = "/" + path.removeprefix("file:").lstrip("/")
        self.root = path if "://" in path else os.path.abspath(path)
        self.options = dict(table.options)
        self.wait = wait

    @property
    def name(self) -> str:
        """For messages."""
        return f"delta {self.table.path}"

    def write(self, batch: DataFrame, batch_id: int, app: str) -> Written:
        """Append a batch, unless the table has it. Raises MqttError if the table will not take it."""
        return append(self, batch, batch_id, app, self.wait)

    def look(self) -> DeltaState | None:
        """The table as it is now; None if there is none. Blocks. Raises MqttError where it cannot be opened."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            table = DeltaTable(self.root, storage_options=self.options or None)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise MqttError(
                f"{self.name} cannot be opened ({error}): see `path` and `options` of the table."
            ) from None
        return DeltaState(self, table)

    def load(self, schema: pa.Schema) -> DeltaState:
        """The table as it is now, made if there is none, with new columns if that is allowed. Blocks."""
        import pyarrow as pa
        from deltalake import DeltaTable
        from deltalake.exceptions import CommitFailedError, DeltaError
        from deltalake.schema import Schema

        state = self.look()
        if state is None:
            columns.partitions((), self.table.partition_by, schema.names, self.name)
            try:
                DeltaTable.create(
                    self.root,
                    schema,
                    partition_by=list(self.table.partition_by),
                    storage_options=self.options or None,
                )
            except (DeltaError, OSError) as error:
                if self.look() is None:  # Nobody else made it meanwhile.
                    raise MqttError(
                        f"{self.name} cannot be made ({error}): see `path` and `options` of the table."
                    ) from None
            state = self.look()
            assert state is not None
        metadata = state.table.metadata()
        for key in metadata.configuration:
            if key.startswith(UNFIT):
                raise MqttError(
                    f"{self.name} has the property {key}, which this sink does not know how to keep: write to a table "
                    "without it."
                )
        columns.partitions(
            self.table.partition_by, metadata.partition_columns, schema.names, self.name
        )
        found = pa.schema(state.table.schema().to_arrow())
        added = columns.new(schema, found, self.name, self.table.new_columns)
        if not added:
            return state
        try:
            state.table.alter.add_columns(list(Schema.from_arrow(pa.schema(added)).fields))
        except CommitFailedError:
            self.wait(0.0)  # Somebody changed the table; perhaps it has them now.
        return self.load(schema)


class DeltaState:
    """A Delta table at a version."""

    def __init__(self, sink: DeltaSink, table: DeltaTable) -> None:
        self.sink = sink
        self.table = table
        self.version = str(table.version())

    def get(self, entry: str) -> int | None:
        """What an application transaction says."""
        return self.table.transaction_version(entry)

    def target(self, schema: pa.Schema) -> Target:
        """Where files go: the table's folder."""
        partition_by = tuple(self.table.metadata().partition_columns)
        return Target(self.sink.root, schema, partition_by, options=self.sink.options)

    def commit(self, made: Sequence[Part], entries: Mapping[str, int], app: str) -> bool:
        """Add files and application transactions; False if others changed what these depend on."""
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import AddAction

        now = int(time.time() * 1000)
        actions: list[Any] = [
            AddAction(part.path, part.size, part.values, now, True, part.stats) for part in made
        ]
        properties = CommitProperties(
            app_transactions=[Transaction(name, value) for name, value in entries.items()],
            custom_metadata={"userMetadata": app},
        )
        try:
            self.table.create_write_transaction(
                actions,
                "append",
                self.table.schema(),
                self.table.metadata().partition_columns,
                commit_properties=properties,
            )
        except CommitFailedError:
            return False
        self.table.update_incremental()
        self.version = str(self.table.version())
        return True

    def keys(
        self, names: Sequence[str], spans: Iterable[Span], times: Times | None = None
    ) -> pa.Table:
        """Columns of the rows whose offsets are within spans, or whose time is within `times`.

        Reads the files that may have some, by their statistics.
        """
        import pyarrow as pa

        arms = [
            f"(log_id = '{span.log_id}' and partition = {span.partition} "
            f'and "offset" between {span.first} and {span.last})'
            for span in spans
            if "'" not in span.log_id
        ]
        if times is not None:
            arms.append(
                f'"{times.column}" between {_instant(times.first)} and {_instant(times.last)}'
            )
        quoted = ", ".join(f'"{name}"' for name in names)
        rows = self.query(f"select {quoted} from t where {' or '.join(arms) or 'false'}")
        return columns.table(pa.table(rows.read_all()))

    def spans(self) -> list[Span]:
        """The first and the last offset of each log and partition."""
        import pyarrow as pa

        text = 'select log_id, partition, min("offset"), max("offset") from t group by 1, 2'
        rows = pa.table(self.query(f"{text} order by 1, 2").read_all()).to_pylist()
        return [Span(*row.values()) for row in rows if None not in row.values()]

    def query(self, text: str) -> Any:
        """Rows of the table, `t` in the query."""
        from deltalake import QueryBuilder

        return QueryBuilder().register("t", self.table).execute(text)


def _instant(stamp: datetime.datetime) -> str:
    given = stamp.astimezone(datetime.UTC)
    return f"arrow_cast('{given:%Y-%m-%dT%H:%M:%S.%f}Z', 'Timestamp(Microsecond, Some(\"UTC\"))')"
