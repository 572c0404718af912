"""`hookmq-pipelines` with a bug that tests/crash/devices must find: rows are appended to Delta tables without a
transaction.

python planted.py run bronze silver -c FILE

The program waits for a moment after each write. A kill is then likely to happen before the batch is recorded.
"""

import sys
import time

from deltalake import write_deltalake
from mqtt_pipelines import cli
from mqtt_pipelines.sinks import Written
from mqtt_pipelines.sinks.delta import DeltaSink
from pyspark.sql import DataFrame


def write(self: DeltaSink, batch: DataFrame, batch_id: int, app: str) -> Written:
    """Append the rows without a transaction, as a simple sink would."""
    rows = batch.toArrow()
    write_deltalake(self.root, rows, mode="append")
    time.sleep(2)
    return Written(rows.num_rows)


if __name__ == "__main__":
    setattr(DeltaSink, "write", write)  # noqa: B010
    sys.exit(cli.main())
