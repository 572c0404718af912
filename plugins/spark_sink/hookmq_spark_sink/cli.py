"""The ``hookmq spark`` command: inspect and export streams on disk, even while a broker is running."""

import argparse
import base64
import json
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from hookmq.cli_api import seconds
from hookmq.config_api import parse_size
from hookmq.plugin import HookMQError, StoreError

from hookmq_spark_sink import block, files
from hookmq_spark_sink.index import parse
from hookmq_spark_sink.queue_state import QUEUE
from hookmq_spark_sink.reading import Matcher
from hookmq_spark_sink.stored import StoredStream, describe, lines

EXAMPLES: Final = """\
examples:
  hookmq spark status /var/lib/hookmq/spark
  hookmq spark read /var/lib/hookmq/spark all --topics 'sensors/#' --count 10
  hookmq spark check /var/lib/hookmq/spark
  hookmq spark export /var/lib/hookmq/spark /mnt/lake/mqtt --follow --tail --consumer landing

All of them also work while a broker runs, and change nothing in its streams. They see what readers see: what the
broker's store has committed, as last reported by the broker that used the folder.
exit codes: 0 done, 1 a stream is damaged or cannot be read, 2 wrong usage, 3 exported, but retention had removed
messages"""
EXPORT: Final = """\
Files are TARGET/STREAM/LOG/PARTITION-FIRST-LAST.parquet, with the columns of Spark's format("mqtt"). Each appears
whole, and _manifest/ next to them lists their contents. A restarted export continues where it stopped: no message is
missing or written twice. The command needs the extra `export`: in a checkout of HookMQ,
uv pip install './plugins/spark_sink[export]'. For s3:// it needs s3fs, for gs:// gcsfs, for abfs:// adlfs. They take
credentials from their own configuration and environment.

examples:
  hookmq spark export /var/lib/hookmq/spark /mnt/lake/mqtt
  hookmq spark export /var/lib/hookmq/spark s3://lake/mqtt --stream telemetry --follow --tail --roll-time 30s

exit codes: 0 done, 1 a stream or the target cannot be used, 2 wrong usage, 3 done, but retention had removed messages
before they were exported"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.description = "Inspect the streams that Spark reads."
    parser.epilog = EXAMPLES
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    def add(
        name: str, run: Callable[[argparse.Namespace], int], help: str, epilog: str | None = None
    ) -> Any:
        one = commands.add_parser(
            name,
            help=help,
            description=f"{help[:1].upper()}{help[1:]}.",
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        one.add_argument(
            "folder", type=Path, help="the folder of the streams, as in `path` of the plugin"
        )
        one.set_defaults(run=_guarded(run))
        return one

    one = add("status", status, "show the state of each stream and the lag of its consumers")
    one.add_argument("stream", nargs="?", help="only this stream")
    one.add_argument("--json", action="store_true", help="print a line of JSON for each stream")
    one = add("read", read, "print messages as lines of JSON")
    one.add_argument("stream", help="name of the stream")
    one.add_argument("--partition", type=_natural, help="only this partition; default: all")
    one.add_argument("--start", type=_natural, default=0, help="first offset")
    one.add_argument("--end", type=_natural, help="offset after the last one")
    one.add_argument("--topics", action="append", default=[], help="topic filter; may be repeated")
    one.add_argument("--count", type=_natural, help="stop after this many messages")
    one = add("check", check, "check every byte of every stream")
    one.add_argument("stream", nargs="?", help="only this stream")

    one = add("export", export, "write the streams as Parquet files", EXPORT)
    one.add_argument("target", help="a folder, or a URL of an object store: s3://, gs://, abfs://")
    one.add_argument(
        "--stream", action="append", default=[], help="only this stream; may be repeated"
    )
    mode = one.add_mutually_exclusive_group()
    mode.add_argument(
        "--once", action="store_true", help="end when everything is exported (default)"
    )
    mode.add_argument(
        "--follow", action="store_true", help="continue with new messages until SIGTERM"
    )
    one.add_argument(
        "--tail",
        action="store_true",
        help="also export from the log's newest file, which is still being written",
    )
    one.add_argument(
        "--by-day",
        action="store_true",
        help="write the messages of each day (UTC) to a folder date=YYYY-MM-DD, once the day is over",
    )
    one.add_argument(
        "--roll-time",
        type=seconds,
        default=60.0,
        help="with --tail, write a file when messages have waited this long (default 60s)",
    )
    one.add_argument(
        "--file-size",
        type=_size,
        default=64 << 20,
        help="approximate bytes of the log for one file (default 64MiB)",
    )
    one.add_argument(
        "--consumer", default="", help="name of a consumer that records the exported offsets"
    )
    one.add_argument(
        "--compression",
        choices=("zstd", "snappy", "gzip", "none"),
        default="zstd",
        help="of Parquet",
    )
    one.add_argument("--metrics", type=Path, help="file for Prometheus metrics")


def _size(text: str) -> int:
    try:
        size = parse_size(text)
    except ValueError:
        size = 0
    if size < 1:
        raise argparse.ArgumentTypeError(f"expected a size such as 64MiB, not {text!r}")
    return size


def export(arguments: argparse.Namespace) -> int:
    """Export messages as Parquet files. Only this command imports the exporter."""
    from hookmq_spark_sink.export import run

    run.lower_priority()
    return run.export(arguments)


def _natural(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return int(text)


def _guarded(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    def guarded(arguments: argparse.Namespace) -> int:
        try:
            return run(arguments)
        except OSError as error:
            raise StoreError(f"{error.filename or arguments.folder}: {error.strerror}") from error

    return guarded


def _folders(folder: Path) -> list[Path]:
    found = [one for one in sorted(folder.iterdir()) if (one / files.STREAM).exists()]
    if not found:
        if any((one / QUEUE).exists() for one in folder.iterdir()):
            raise StoreError(f"{folder} contains no messages: its streams serve queues")
        if (folder / files.STREAM).exists():
            raise StoreError(f"{folder} is a stream; name the folder that contains it")
        raise StoreError(f"{folder} contains no streams")
    return found


def _one(folder: Path, name: str) -> Path:
    if (folder / name / QUEUE).exists():
        raise StoreError(
            f"the stream {name} serves a queue, so {folder} does not contain its messages: use its read API"
        )
    if not (folder / name / files.STREAM).exists():
        known = ", ".join(one.name for one in _folders(folder))
        raise StoreError(f"{folder} contains no stream {name}, only: {known}")
    return folder / name


def status(arguments: argparse.Namespace) -> int:
    """Print the state of the streams."""
    folder: Path = arguments.folder
    chosen = [_one(folder, arguments.stream)] if arguments.stream else _folders(folder)
    for one in chosen:
        shown = describe(StoredStream(one), time.time())
        print(json.dumps(shown) if arguments.json else "\n".join(lines(shown)))
    return 0


def read(arguments: argparse.Namespace) -> int:
    """Print a stream's messages."""
    found = StoredStream(_one(arguments.folder, arguments.stream))
    partitions = found.described.partitions
    if arguments.partition is not None and arguments.partition >= partitions:
        raise StoreError(f"{arguments.stream} has {partitions} partitions, from 0 on")
    chosen = range(partitions) if arguments.partition is None else [arguments.partition]
    try:
        match = Matcher(arguments.topics) if arguments.topics else None
    except HookMQError as error:
        print(f"hookmq spark read: --topics: {error}", file=sys.stderr)
        return 2
    left = arguments.count
    for row in _rows(found, chosen, arguments.start, arguments.end, match):
        if left is not None:
            if not left:
                break
            left -= 1
        sys.stdout.write(json.dumps(_shown(row), ensure_ascii=False) + "\n")
    return 0


def _rows(
    found: StoredStream, chosen: Any, start: int, end: int | None, match: Matcher | None
) -> Iterator[dict[str, Any]]:
    for place in chosen:
        first = max(start, found.earliest[place])
        last = found.latest[place] if end is None else min(end, found.latest[place])
        for segment, where in found.index.blocks(place, first, last):
            for row in block.rows(parse(segment, where)):
                if not first <= row["offset"] < last:
                    continue
                if match is None or match(row["topic"].encode()):
                    yield row


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """Convert a row to JSON values. A value that is not UTF-8 becomes base64 under a different name. Missing values
    are omitted.
    """
    shown: dict[str, Any] = {}
    for name, value in row.items():
        if value is None or value == []:
            continue
        if name == "timestamp":
            value = datetime.fromtimestamp(value / 1e6, UTC).isoformat()
        elif name == "headers":
            value = [[key, one.decode("utf-8", "replace")] for key, one in value]
        elif isinstance(value, bytes):
            try:
                value = value.decode()
            except UnicodeDecodeError:
                name, value = f"{name}_base64", base64.b64encode(value).decode()
        shown[name] = value
    return shown


def check(arguments: argparse.Namespace) -> int:
    """Read and verify all records."""
    folder: Path = arguments.folder
    chosen = [_one(folder, arguments.stream)] if arguments.stream else _folders(folder)
    damaged = 0
    for one in chosen:
        try:
            records, size = _check(one)
            print(f"{one.name}: {records:,} records in {size:,} bytes are intact")
        except (StoreError, block.Damaged) as error:
            damaged += 1
            print(f"{one.name}: {error}")
    return 1 if damaged else 0


def _check(folder: Path) -> tuple[int, int]:
    """Return the number of records and bytes. Raises StoreError or block.Damaged if a record cannot be read."""
    found = StoredStream(folder)
    records = size = 0
    ends: dict[int, int] = {}
    for number, segment in enumerate(found.index.segments, 1):
        for place, part in sorted(segment.parts.items()):
            begins = part.bases[0]
            if begins != ends.get(place, begins):
                raise StoreError(
                    f"{segment.path}: partition {place} lacks {ends[place]} to {begins}"
                )
            for row in range(len(part.bases)):
                one = parse(segment, part.place(row))
                names = block.column(one, block.TOPIC)
                if len(names) != one.count or len(block.fixed(one, block.TIMESTAMP)) != one.count:
                    raise StoreError(f"{segment.path}: a block has columns of different lengths")
                records += one.count
            ends[place] = part.end
        size += segment.position
        if sys.stderr.isatty():
            print(f"\r{folder.name}: {number}/{len(found.index.segments)}", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    for place, latest in enumerate(found.latest):
        if ends.get(place, latest) < latest:
            raise StoreError(f"{folder}: partition {place} ends at {ends[place]}, not {latest}")
    return records, size
