"""A driver that is killed after a sink has written a batch to S3 but before Spark records it as done. test_s3.py runs
it.

    killed_s3.py FOLDER

The credentials come only from the environment.
"""

import os
import signal
import sys
import threading
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "spark" / "tests" / "support"))

import landing
import sparks
from killed import Stopping
from mqtt_pipelines import run
from sinking import TABLES, on_s3

ICEBERG = {"s3.endpoint": os.environ["AWS_ENDPOINT_URL"], "s3.region": os.environ["AWS_REGION"]}
"""The settings that pyiceberg does not read from the environment."""


def main(folder: Path) -> None:
    spark = sparks.start(folder)
    reached = threading.Semaphore(0)
    for name in TABLES:
        options = ICEBERG if name == "iceberg" else {}
        sink = Stopping(on_s3(name, folder, options), reached)
        checkpoint = folder / "checkpoints" / name
        query = landing.query(spark, folder / "landed", sink, checkpoint, name)
        run.start(spark, query, "killed", once=True)
    for _ in TABLES:
        reached.acquire()
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
