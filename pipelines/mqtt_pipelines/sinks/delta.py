"""Write Delta tables with delta-rs, without a JAR file. Executors write the files, and the driver adds them in one
commit.

The commit records the batch as application transactions. delta-rs refuses the commit if, since the table was loaded,
another commit has recorded transactions with the same names. If two drivers write the same batch, exactly one succeeds.
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
from mqtt_pipelines.sinks.append import Times, append, skip
from mqtt_pipelines.sinks.errors import brief
from mqtt_pipelines.sinks.ledger import Span
from mqtt_pipelines.sinks.parts import Part, Target

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

UNFIT = (
    "delta.columnMapping.mode",
    "delta.constraints.",
    "delta.enableChangeDataFeed",
    "delta.setTransactionRetentionDuration",
)
"""Table properties that a writer must support in order to write the table."""


class DeltaSink:
    """Appends batches to a Delta table, which it creates if necessary."""

    def __init__(self, table: Table, wait: Callable[[float], None] = time.sleep) -> None:
        self.table = table
        path = table.path
        if path.startswith("file:"):  # Spark writes it with one or three slashes.
            path = "/" + path.removeprefix("file:").lstrip("/")
        self.root = path if "://" in path else os.path.abspath(path)
        self.options = dict(table.options)
        self.wait = wait

    @property
    def name(self) -> str:
        """Return a name to use in messages."""
        return f"delta {self.table.path}"

    def write(self, batch: DataFrame, batch_id: int, app: str) -> Written:
        """Append a batch, unless the table already has it. Raises MqttError if the table refuses the batch."""
        return append(self, batch, batch_id, app, self.wait)

    def skip(self, spark: SparkSession, batch_id: int, app: str) -> Written | None:
        """Return the result for a batch without rows, or None if the table must record the batch. This call blocks."""
        return skip(self, batch_id, app)

    def look(self) -> DeltaState | None:
        """Load the table. Return None if it does not exist. This call blocks. Raises MqttError if the table cannot be
        opened.
        """
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            table = DeltaTable(self.root, storage_options=self.options or None)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise MqttError(
                f"{self.name} cannot be opened ({brief(error)}): see `path` and `options` of the table."
            ) from None
        return DeltaState(self, table)

    def load(self, schema: pa.Schema) -> DeltaState:
        """Load the table, creating it if necessary. Add new columns if the configuration allows it. This call blocks."""
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
                if self.look() is None:  # No other writer has created it in the meantime.
                    raise MqttError(
                        f"{self.name} cannot be made ({brief(error)}): see `path` and `options` of the table."
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
            self.wait(0.0)  # Another writer changed the table and may have added them.
        return self.load(schema)


class DeltaState:
    """One version of a Delta table."""

    def __init__(self, sink: DeltaSink, table: DeltaTable) -> None:
        self.sink = sink
        self.table = table
        self.version = str(table.version())

    def get(self, entry: str) -> int | None:
        """Return the value of an application transaction."""
        return self.table.transaction_version(entry)

    def target(self, schema: pa.Schema) -> Target:
        """Return the target for new files, the table's folder."""
        partition_by = tuple(self.table.metadata().partition_columns)
        return Target(self.sink.root, schema, partition_by, options=self.sink.options)

    def commit(self, made: Sequence[Part], entries: Mapping[str, int], app: str) -> bool:
        """Add files and application transactions. Return False if another writer changed anything that the commit
        depends on.
        """
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
        """Return the columns `names` of all rows whose offsets are in `spans` or whose time is in `times`.

        Reads only the files whose statistics allow for such rows.
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
        """Return the first and last offset for each log and partition."""
        import pyarrow as pa

        text = 'select log_id, partition, min("offset"), max("offset") from t group by 1, 2'
        rows = pa.table(self.query(f"{text} order by 1, 2").read_all()).to_pylist()
        return [Span(*row.values()) for row in rows if None not in row.values()]

    def query(self, text: str) -> Any:
        """Run a query on the table, and return the resulting rows. The query refers to the table as `t`."""
        from deltalake import QueryBuilder

        return QueryBuilder().register("t", self.table).execute(text)


def _instant(stamp: datetime.datetime) -> str:
    given = stamp.astimezone(datetime.UTC)
    return f"arrow_cast('{given:%Y-%m-%dT%H:%M:%S.%f}Z', 'Timestamp(Microsecond, Some(\"UTC\"))')"
