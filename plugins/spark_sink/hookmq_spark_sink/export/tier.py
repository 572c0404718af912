"""The process that writes old messages to Parquet: ``python -P -m hookmq_spark_sink.export.tier``, started by
`hookmq_spark_sink.tier`.

It works like `hookmq spark export --follow --by-day --consumer tier`, but reads its settings as one line of JSON from
standard input. It ends when its standard input closes, which happens when the broker ends.
"""

import json
import os
import signal
import threading
from argparse import Namespace
from pathlib import Path

from hookmq.plugin import HookMQError

from hookmq_spark_sink.config import TIER
from hookmq_spark_sink.export import run


def _end_with_broker() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    """Export until standard input ends. Return the exit code."""
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(0, 65536)
        if not part:
            return 0
        line += part
    given = json.loads(line)
    run.lower_priority()
    arguments = Namespace(
        folder=Path(given["folder"]), target=given["target"], stream=given["streams"], file_size=given["file_size"],
        follow=True, once=False, tail=False, by_day=True, roll_time=60.0, consumer=TIER, compression="zstd", metrics=None,
    )  # fmt: skip
    threading.Thread(target=_end_with_broker, daemon=True).start()
    try:
        return run.export(arguments)
    except HookMQError as error:
        run.say(str(error))
        return error.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
