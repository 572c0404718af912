"""Write Iceberg tables with pyiceberg, without a JAR file. Executors write the files, and the driver adds them in one
commit.

The commit records the batch in table properties, which are kept when snapshots expire. It also records the batch in the
snapshot's summary, for users. Every commit names the snapshot that it is based on. If another commit came first, the
new commit is refused, and the table's notes are read again. pyiceberg's own retries would not read the notes again, so
they are disabled.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark_mqtt.errors import MqttError

from mqtt_pipelines.settings import Table
from mqtt_pipelines.sinks import Written, columns
from mqtt_pipelines.sinks.append import Times, append, skip
from mqtt_pipelines.sinks.errors import brief
from mqtt_pipelines.sinks.ledger import KEY, Span, spans
from mqtt_pipelines.sinks.parts import Part, Target, spans_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table as IcebergTable
    from pyspark.sql import DataFrame, SparkSession

NOTE = "mqtt-pipelines."
"""Prefix of the properties that record batches."""
TIDY = {
    "write.metadata.delete-after-commit.enabled": "true",
    "commit.manifest-merge.enabled": "true",
}
"""Properties of new tables that limit the metadata that frequent commits create."""


class IcebergSink:
    """Appends batches to an Iceberg table, creating the table and its namespace if necessary.

    `path` is the table's name, NAMESPACE.TABLE. `options` are the catalog's properties, such as `uri` and `warehouse`.
    If `type` is missing, it is derived from `uri`: ``http`` means REST, and ``sqlite`` or ``postgresql`` means SQL.
    """

    def __init__(self, table: Table, wait: Callable[[float], None] = time.sleep) -> None:
        self.table = table
        self.options = dict(table.options)
        self.wait = wait
        self._catalog: Catalog | None = None

    @property
    def name(self) -> str:
        """Return a name to use in messages."""
        return f"iceberg {self.table.path}"

    def write(self, batch: DataFrame, batch_id: int, app: str) -> Written:
        """Append a batch, unless the table already has it. Raises MqttError if the table refuses the batch."""
        return append(self, batch, batch_id, app, self.wait)

    def skip(self, spark: SparkSession, batch_id: int, app: str) -> Written | None:
        """Return the result for a batch without rows, or None if the table must record the batch. This call blocks."""
        return skip(self, batch_id, app)

    @property
    def catalog(self) -> Catalog:
        """Return the catalog. The first call connects to it. Raises MqttError if its properties are wrong."""
        from pyiceberg.catalog import load_catalog

        if self._catalog is None:
            if "." not in self.table.path:
                raise MqttError(
                    f"{self.name}: `path` is the table's name with its namespace, such as mqtt.bronze; where it is "
                    "stored is the catalog's `warehouse`."
                )
            properties = {key: value for key, value in self.options.items() if key != "catalog"}
            try:
                self._catalog = load_catalog(self.options.get("catalog", "default"), **properties)
            except Exception as error:
                raise MqttError(
                    f"{self.name}: the catalog cannot be opened ({type(error).__name__}: {error}): see `options` of the "
                    "table, such as uri and warehouse."
                ) from None
        return self._catalog

    def look(self) -> IcebergState | None:
        """Load the table. Return None if it does not exist. This call blocks. Raises MqttError if the table cannot be
        opened.
        """
        from pyiceberg.exceptions import NoSuchTableError

        catalog = self.catalog
        try:
            return IcebergState(self, catalog.load_table(self.table.path))
        except NoSuchTableError:
            return None
        except Exception as error:
            raise MqttError(
                f"{self.name} cannot be opened ({brief(error)}): see `path` and `options` of the table."
            ) from error

    def load(self, schema: pa.Schema) -> IcebergState:
        """Load the table, creating it if necessary. Add new columns if the configuration allows it. This call blocks."""
        import pyarrow as pa
        from pyiceberg.exceptions import CommitFailedException
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        state = self.look() or self.create(schema)
        columns.partitions(
            self.table.partition_by, state.partition_columns(), schema.names, self.name
        )
        found = schema_to_pyarrow(state.table.schema())
        added = columns.new(schema, found, self.name, self.table.new_columns)
        if not added:
            return state
        try:
            with state.table.update_schema() as update:
                update.union_by_name(pa.schema(added))
        except CommitFailedException:
            self.wait(0.0)  # Another writer changed the table and may have added them.
        return self.load(schema)

    def create(self, schema: pa.Schema) -> IcebergState:
        """Create the table, unless another writer has created it in the meantime."""
        from pyiceberg.exceptions import TableAlreadyExistsError

        columns.partitions((), self.table.partition_by, schema.names, self.name)
        self.catalog.create_namespace_if_not_exists(self.table.path.rpartition(".")[0])
        try:
            with (
                self.catalog.create_table_transaction(
                    self.table.path, schema, properties=TIDY
                ) as transaction,
                transaction.update_spec() as spec,
            ):
                for column in self.table.partition_by:
                    spec.add_identity(column)
        except TableAlreadyExistsError:
            pass
        except (TypeError, ValueError) as error:
            raise MqttError(
                f"{self.name} cannot be made ({error}): cast the column in the pipeline."
            ) from None
        return IcebergState(self, self.catalog.load_table(self.table.path))


class _OthersCameFirstError(Exception):
    """A commit failed and must not be retried unchanged. This is not a pyiceberg exception, because pyiceberg would
    then delete manifests.
    """


class IcebergState:
    """One snapshot of an Iceberg table."""

    def __init__(self, sink: IcebergSink, table: IcebergTable) -> None:
        self.sink = sink
        self.table = table
        snapshot = table.current_snapshot()
        self.version = str(snapshot.snapshot_id) if snapshot else ""
        # Set only in this copy, because a transaction sends only its updates. Make one attempt, then check; see
        # `commit`.
        once = {"commit.retry.num-retries": "1", "commit.retry.min-wait-ms": "0"}
        table.metadata = table.metadata.model_copy(
            update={"properties": {**table.metadata.properties, **once}}
        )

    def get(self, entry: str) -> int | None:
        """Return the value of a property."""
        value = self.table.metadata.properties.get(NOTE + entry)
        return None if value is None else int(value)

    def partition_columns(self) -> list[str]:
        """Return the partition columns. Raises MqttError if the table is partitioned by anything other than column
        values.
        """
        found = []
        for one in self.table.spec().fields:
            if str(one.transform) != "identity":
                raise MqttError(
                    f"{self.sink.name} is partitioned by {one.transform} of a column, which this sink does not do: "
                    "partition by columns, such as ingest_date."
                )
            found.append(self.table.schema().find_column_name(one.source_id) or "")
        return found

    def target(self, schema: pa.Schema) -> Target:
        """Return the target for new files: ``data`` in the table's location. The files' columns have the table's field
        ids.
        """
        import pyarrow as pa
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        full = schema_to_pyarrow(self.table.schema())
        return Target(
            f"{self.table.location()}/data",
            pa.schema([full.field(name) for name in schema.names]),
            tuple(self.partition_columns()),
            keep_partition_columns=True,
            options=self.sink.options,
        )

    def commit(self, made: Sequence[Part], entries: Mapping[str, int], app: str) -> bool:
        """Add files and properties in one transaction. Return False if another commit came first."""
        from pyiceberg.exceptions import CommitFailedException

        root = f"{self.table.location()}/data"
        batch = {"app-id": app, "batch-id": str(entries.get(app, ""))}
        transaction = self.table.transaction()
        transaction.set_properties({NOTE + name: str(value) for name, value in entries.items()})
        transaction.add_files(
            [f"{root}/{part.path}" for part in made],
            snapshot_properties=batch,
            check_duplicate_files=False,  # Their names are unique.
        )
        ours = transaction.table_metadata.current_snapshot_id
        refresh = self.table.refresh

        def look() -> IcebergTable:
            """Load the table, as pyiceberg does before a retry. The snapshot may exist even if the commit appeared to
            fail.
            """
            found = refresh()
            if ours is None or found.snapshot_by_id(ours) is None:
                raise _OthersCameFirstError
            return found

        self.table.refresh = look  # type: ignore[method-assign]
        try:
            transaction.commit_transaction()
        except (CommitFailedException, _OthersCameFirstError):
            return False
        finally:
            self.table.refresh = refresh  # type: ignore[method-assign]
        snapshot = self.table.current_snapshot()
        self.version = str(snapshot.snapshot_id) if snapshot else ""
        return True

    def keys(
        self, names: Sequence[str], spans: Iterable[Span], times: Times | None = None
    ) -> pa.Table:
        """Return the columns `names` of all rows whose offsets are in `spans` or whose time is in `times`.

        Reads only the files whose statistics allow for such rows.
        """
        arms = [
            f"(log_id = '{span.log_id}' and partition = {span.partition} "
            f"and offset >= {span.first} and offset <= {span.last})"
            for span in spans
            if "'" not in span.log_id
        ]
        if times is not None:
            first, last = _instant(times.first), _instant(times.last)
            arms.append(f"({times.column} >= '{first}' and {times.column} <= '{last}')")
        wanted = " or ".join(arms) or "log_id is null and log_id is not null"
        found = self.table.scan(row_filter=wanted, selected_fields=tuple(names)).to_arrow()
        return columns.table(found.select(list(names)))

    def spans(self) -> list[Span]:
        """Return the first and last offset for each log and partition."""
        import pyarrow as pa

        found: list[Span] = []
        for batch in self.table.scan(selected_fields=KEY).to_arrow_batch_reader():
            found = spans([*found, *spans_of(pa.Table.from_batches([batch]))])
        return found


def _instant(stamp: datetime.datetime) -> str:
    given = stamp.astimezone(datetime.UTC)
    return f"{given:%Y-%m-%dT%H:%M:%S.%f}+00:00"
