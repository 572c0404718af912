"""``python -m bench.spark_disk``: measure the disk space of a stream, in bytes per message.

Every row writes the same messages into a stream, but with a different number of messages per commit. The messages come
from 1,000 devices, each with its own topic, and have JSON payloads of 85 bytes. The columns show the size of the stream:

    newest   if no file is ever sealed
    live     while it is written: the newest file as it is, older files merged and compressed
    sealed   a minute after the last message, when the newest file has been sealed, too
    none     sealed, with `compression: none`

No broker is involved: the messages go into the plugin's journal, as a broker's commits do. Files are not synced.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import tempfile

from hookmq.plugin import Message
from hookmq.storage_api import CommitId
from hookmq_spark_sink.config import Compression, StreamConfig
from hookmq_spark_sink.merge import merge
from hookmq_spark_sink.stream import Stream
from hookmq_testing.runtime import VirtualRuntime

DEVICES = 1000
PAYLOAD = 85


def messages(count: int) -> list[Message]:
    """Return device messages in order of arrival, received at a rate of 5,000 a second."""
    draw = random.Random(1)
    found = []
    for number in range(count):
        device = draw.randrange(DEVICES)
        body = {
            "device": f"d{device:04d}",
            "seq": number,
            "temperature": round(draw.gauss(20, 5), 3),
            "ts": 1_700_000_000_000 + number // 5,
        }
        payload = json.dumps(body).encode().ljust(PAYLOAD)
        topic = f"plant/line{device % 10}/d{device:04d}/telemetry"
        at = 1.7e9 + number / 5000
        found.append(Message(topic, payload, 1, sender=f"device-{device:04d}", received_at=at))
    return found


def write(
    folder: pathlib.Path, made: list[Message], size: int, compression: Compression
) -> tuple[float, float, float]:
    """Write the messages in commits of `size`. Return the bytes per message: as written, live, and sealed."""
    runtime = VirtualRuntime()
    config = StreamConfig("all", ("#",), partitions=4, compression=compression)
    stream = Stream(config, folder, runtime, sync=False)
    stream.upkeep.merge = merge
    stream.recover(CommitId("bench", 0))
    for number, start in enumerate(range(0, len(made), size), 1):
        commit = CommitId("bench", number)
        for one in made[start : start + size]:
            stream.append(commit, one)
        stream.flush(commit, lambda failed: None)
        runtime.run_until_idle()
        stream.committed(commit)
    live = used(stream)
    runtime.advance(60)
    for _ in range(2):
        stream.upkeep.look()
        runtime.run_until_idle()
    sealed = used(stream)
    stream.close()
    return stream.counts.bytes / len(made), live / len(made), sealed / len(made)


def used(stream: Stream) -> int:
    """Return the bytes of the log's files."""
    return sum(path.stat().st_size for path in stream.log.folder.iterdir())


def main() -> int:
    """Print the table and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark_disk")
    parser.add_argument("--messages", type=int, default=200_000)
    options = parser.parse_args()
    made = messages(options.messages)
    print(f"{'messages in a commit':<22} {'newest':>8} {'live':>8} {'sealed':>8} {'none':>8}")
    for size in (1, 10, 100, 1000):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            newest, live, sealed = write(path / "zstd", made, size, "zstd")
            *_, plain = write(path / "none", made, size, "none")
        print(f"{size:<22} {newest:>8.1f} {live:>8.1f} {sealed:>8.1f} {plain:>8.1f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
