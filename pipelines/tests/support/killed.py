"""A driver that is killed after a sink has written a batch but before Spark records it as done. test_sinks.py runs it.

    killed.py FOLDER OPTIONS

OPTIONS are the options of the mqtt sink, as JSON. Every query except ``files`` stops after writing its second batch.
Then the ``files`` query starts. Once Spark's log of this query's folder contains the second batch, the whole process
group gets SIGKILL.
"""

import json
import os
import signal
import sys
import threading
import traceback
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "spark" / "tests" / "support"))

import landing
import sparks
from mqtt_pipelines import run
from mqtt_pipelines.sinks import Sink, StreamSink, Written
from pyspark.sql import DataFrame
from sinking import made

LAST = 1
"""The id of the last batch that the sinks write."""


class Stopping:
    """A sink whose `write` never returns for the last batch."""

    def __init__(self, sink: Sink, reached: threading.Semaphore) -> None:
        self.sink = sink
        self.reached = reached

    @property
    def name(self) -> str:
        return self.sink.name

    def write(self, batch: DataFrame, batch_id: int, app: str) -> Written:
        try:
            written = self.sink.write(batch, batch_id, app)
        except BaseException:
            traceback.print_exc()
            os.killpg(os.getpgrp(), signal.SIGTERM)
            raise
        if batch_id == LAST:
            self.reached.release()
            threading.Event().wait()
        return written


def main(folder: Path, options: dict[str, str]) -> None:
    spark = sparks.start(folder)

    def start(name: str, sink: Sink | StreamSink) -> None:
        checkpoint = folder / "checkpoints" / name
        query = landing.query(spark, folder / "landed", sink, checkpoint, name)
        run.start(spark, query, "killed", once=True)

    sinks = made(folder, options)
    reached = threading.Semaphore(0)
    held = {name: sink for name, sink in sinks.items() if isinstance(sink, Sink)}
    for name, sink in held.items():
        start(name, Stopping(sink, reached))
    for _ in held:
        reached.acquire()
    start("files", sinks["files"])
    noted = folder / "files" / "_spark_metadata" / str(LAST)
    while not noted.exists():
        pass  # The next thing that Spark does is what must not happen.
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
