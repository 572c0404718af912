"""The ``hookmq spark export`` command: exports all streams in rounds until it is stopped or has exported everything."""

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from hookmq.plugin import StoreError
from hookmq_toolkit.durable_files import write_atomically

from hookmq_spark_sink import files
from hookmq_spark_sink.config import NAME
from hookmq_spark_sink.export.exporter import Exporter, Format, Rules
from hookmq_spark_sink.export.parquet import Parquet
from hookmq_spark_sink.export.places import Place, PlaceError, UsageError, open_place
from hookmq_spark_sink.index import raise_file_limit
from hookmq_spark_sink.queue_state import QUEUE
from hookmq_spark_sink.reading import Unavailable

EVERY: Final = 1.0
"""Seconds between two rounds."""
LONGEST: Final = 60.0
"""Maximum number of seconds to wait before retrying a target that failed."""
GAPS: Final = 3
"""Exit code if messages were removed before they were exported."""


class Job:
    """The exporters for the streams in a folder. Raises UsageError if a stream is missing, unless the job waits for
    it.
    """

    def __init__(self, arguments: argparse.Namespace, place: Place, format: Format) -> None:
        self.folder: Path = arguments.folder
        self.wanted: list[str] = arguments.stream
        self.failures = 0
        self.exporters: dict[str, Exporter] = {}
        self._place = place
        self._format = format
        self._metrics: Path | None = arguments.metrics
        self._follow: bool = arguments.follow
        self._rules = Rules(
            tail=arguments.tail,
            roll=arguments.roll_time,
            size=arguments.file_size,
            consumer=arguments.consumer,
            once=not arguments.follow,
            by_day=arguments.by_day,
        )
        self._succeeded = 0.0
        self._waits = ""
        for name in self.wanted:
            if (self.folder / name / QUEUE).exists():
                raise UsageError(f"the stream {name} serves a queue, which cannot be exported")
        self.find()
        if missing := self.missing():
            if not self._follow:
                raise UsageError(missing)
            say(f"{missing} yet; waiting for a broker to create it")

    def missing(self) -> str:
        """Return a description of the requested streams that are missing."""
        if not self.folder.is_dir():
            return f"{self.folder} is not a folder"
        if lacking := [name for name in self.wanted if name not in self.exporters]:
            return f"{self.folder} contains no stream {', '.join(lacking)}"
        return "" if self.exporters else f"{self.folder} contains no streams"

    def find(self) -> None:
        """Add exporters for new streams."""
        try:
            there = sorted(self.folder.iterdir())
        except FileNotFoundError:
            return
        for one in there:
            name = one.name
            if name in self.exporters or (self.wanted and name not in self.wanted):
                continue
            if (one / files.STREAM).exists():
                self.exporters[name] = Exporter(
                    one, self._place, self._format, self._rules, lambda text, name=name: say(f"{name}: {text}")  # type: ignore[misc]
                )  # fmt: skip

    @property
    def gaps(self) -> int:
        """Return the number of messages that were removed before this process exported them."""
        return sum(one.gaps for one in self.exporters.values())

    def round(self, stop: Callable[[], bool]) -> int:
        """Export the files that are due in all streams. Return the number of files. Raises StoreError or PlaceError if
        that fails.
        """
        done = 0
        self.find()
        for name, one in self.exporters.items():
            if stop():
                break
            try:
                made = one.round(time.monotonic(), stop)
            except Unavailable:
                why = f"{name}: no broker has said how far to read; start the broker"
                if not self._follow:
                    raise StoreError(why) from None
                if self._waits != why:
                    self._waits = why
                    say(why)
                continue
            done += made
            if made and one.manifest is not None:
                totals = one.manifest.totals
                say(
                    f"{name}: {made} files, {totals.files:,} in all with {totals.rows:,} messages in {totals.bytes:,} "
                    f"bytes; {one.waiting:,} waiting"
                )
        self._succeeded = time.time()
        self.write_metrics()
        return done

    def tell_what_waits(self) -> None:
        """Explain to first-time users why no file has been written yet."""
        if self._rules.tail:
            return
        for name, one in self.exporters.items():
            if one.waiting and one.manifest is not None and not one.manifest.totals.files:
                say(
                    f"{name}: no files yet; {one.waiting:,} messages wait in the log's newest file, which --tail also"
                    " exports"
                )

    def write_metrics(self) -> None:
        """Write metrics for node_exporter's textfile collector, if configured. Raises StoreError if that fails."""
        if self._metrics is None:
            return
        try:
            write_atomically(
                self._metrics, self._shown().encode(), sync=False, owner_of_folder=True
            )
            self._metrics.chmod(0o644)
        except OSError as error:
            raise StoreError(f"{self._metrics}: {error.strerror}") from error

    def _shown(self) -> str:
        lines: list[str] = []

        def add(name: str, kind: str, help: str, values: Mapping[str, float]) -> None:
            lines.append(f"# HELP hookmq_spark_export_{name} {help}")
            lines.append(f"# TYPE hookmq_spark_export_{name} {kind}")
            for labels, value in values.items():
                lines.append(f"hookmq_spark_export_{name}{labels} {value:.15g}")

        known = [(f'{{stream="{name}"}}', one) for name, one in self.exporters.items()]
        for field, help in (
            ("files", "Files written."),
            ("rows", "Messages in the files."),
            ("bytes", "Bytes of the files."),
            ("missing", "Messages that were removed before they were exported."),
        ):
            found = {
                labels: getattr(one.manifest.totals, field)
                for labels, one in known
                if one.manifest is not None
            }
            add(f"{field}_total", "counter", help, found)
        waiting = {labels: one.waiting for labels, one in known}
        add(
            "waiting_messages",
            "gauge",
            "Messages that can be read and are not exported yet.",
            waiting,
        )
        add("failures_total", "counter", "Rounds that failed.", {"": self.failures})
        succeeded = {"": self._succeeded}
        add("last_success_seconds", "gauge", "Time of the last successful round.", succeeded)
        return "\n".join(lines) + "\n"


def say(text: str) -> None:
    """Print a line to standard error."""
    print(f"hookmq spark export: {text}", file=sys.stderr, flush=True)


def export(arguments: argparse.Namespace) -> int:
    """Run the export until it is complete, or until SIGINT or SIGTERM. Return the exit code.

    Raises UsageError or StoreError if it cannot run.
    """
    if arguments.consumer and not NAME.fullmatch(arguments.consumer):
        raise UsageError(f"--consumer {arguments.consumer!r}: letters, digits, _ . -")
    if not arguments.folder.is_dir() and (arguments.folder.exists() or not arguments.follow):
        raise UsageError(f"{arguments.folder} is not a folder")
    format = Parquet(arguments.compression)
    place = open_place(arguments.target)
    raise_file_limit()
    stopped = threading.Event()
    before = {
        number: signal.signal(number, lambda *_: stopped.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        with place.locked():
            job = Job(arguments, place, format)
            if arguments.follow:
                return follow(job, stopped)
            return once(job, stopped)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def once(job: Job, stopped: threading.Event) -> int:
    """Export everything that exists at this moment. Return the exit code."""
    while job.round(stopped.is_set):
        pass
    if stopped.is_set():
        say("stopped before it was complete; the next run continues")
        return 1
    job.tell_what_waits()
    return GAPS if job.gaps else 0


def follow(job: Job, stopped: threading.Event) -> int:
    """Export until stopped, retrying when the target fails. Return the exit code."""
    wait, said = EVERY, ""
    while not stopped.is_set():
        try:
            if job.round(stopped.is_set):
                wait, said = EVERY, ""
                continue  # there may be more
            wait, said = EVERY, ""
        except PlaceError as error:
            job.failures += 1
            if str(error) != said:
                said = str(error)
                say(f"{said}; trying again")
            job.write_metrics()
            wait = min(LONGEST, wait * 2)
        stopped.wait(wait)
    return 0


def lower_priority() -> None:
    """Lower this process's priority, so that the broker on this machine goes first."""
    try:
        os.nice(5)
    except OSError:
        pass
