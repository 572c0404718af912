"""`hookmq-pipelines` with a bug that tests/crash/devices must find.

    python planted.py BUG run bronze silver -c FILE

`transaction` appends rows to Delta tables without a transaction, and waits for a moment after each write. A kill is then
likely to happen before the batch is recorded. `key` forgets the key by which silver finds duplicates. `block`
occasionally drops a block of the log in an executor.
"""

import os
import sys
import time
from pathlib import Path

from deltalake import write_deltalake
from mqtt_pipelines import cli
from mqtt_pipelines.sinks import Written
from mqtt_pipelines.sinks.delta import DeltaSink
from mqtt_pipelines.transforms import silver
from pyspark.sql import DataFrame


def write(self: DeltaSink, batch: DataFrame, batch_id: int, app: str) -> Written:
    """Append the rows without a transaction, as a simplistic sink would."""
    rows = batch.toArrow()
    write_deltalake(self.root, rows, mode="append")
    time.sleep(2)
    return Written(rows.num_rows)


def plant(bug: str) -> None:
    """Plant the bug in this process or in the processes that it starts. Raises ValueError for an unknown bug."""
    if bug == "transaction":
        setattr(DeltaSink, "write", write)  # noqa: B010
    elif bug == "key":
        setattr(silver, "_keys", lambda by: [])  # noqa: B010
    elif bug == "block":
        # Python imports the module `sitecustomize` there at each start.
        folders = [str(Path(__file__).parent / "planted_block"), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    else:
        raise ValueError(f"no bug {bug!r}")


if __name__ == "__main__":
    plant(sys.argv[1])
    sys.exit(cli.main(sys.argv[2:]))
