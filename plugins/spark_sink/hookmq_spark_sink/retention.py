"""Delete and merge segments in a thread."""

import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from hookmq.plugin import StoreError
from hookmq_toolkit.segment_log import SegmentLog
from hookmq_toolkit.segment_log.segment import SUFFIX, UNNAMED

from hookmq_spark_sink import files
from hookmq_spark_sink.config import StreamConfig
from hookmq_spark_sink.index import SegmentIndex

_LONGEST: Final = 600.0
"""Merging a segment counts as failed after this many seconds."""


class Stopped(Exception):
    """The stream is closing, so the segment is not changed."""


class Sealed(Protocol):
    """A complete and committed segment (`hookmq_spark_sink.summary.Summary`)."""

    base: int
    end: int
    parts: dict[int, tuple[int, int]]
    newest: int
    blocks: int
    packed: int
    size: int


class Plan(NamedTuple):
    """The input for `keep_up`. All members except the log are copies."""

    config: StreamConfig
    folder: Path
    log: SegmentLog
    sealed: Sequence[Sealed]
    earliest: list[int]
    time: float
    min_free: int
    needed: int = 0
    """Number of bytes that will be written next, in addition to the log."""


@dataclass
class Upkeep:
    """The result of `keep_up`.

    `consumers` contains the names of the consumers that have committed. `earliest` contains only partitions whose first
    offset has changed. `dropped` is the number of removed records that some declared consumer had not committed.
    """

    removed: list[Sealed] = field(default_factory=list)
    earliest: dict[int, int] = field(default_factory=dict)
    dropped: int = 0
    free: int = 0
    low_disk: bool = False
    problems: list[str] = field(default_factory=list)
    consumers: frozenset[str] = frozenset()
    held: bool = False
    """Whether some declared consumer has not committed segments that are due."""
    holders: frozenset[str] = frozenset()
    """The consumers that have not committed them."""


class Merged(NamedTuple):
    """A merged segment's new number of blocks, number of compressed blocks, and size in bytes.

    All of them are 0 if merging does not make the segment smaller.
    """

    blocks: int
    packed: int
    size: int


def held(plan: Plan, known: dict[str, files.Consumer]) -> dict[int, int]:
    """For each partition, return the first offset that some declared consumer has not committed.

    `known` contains the consumers that have committed. The result is empty if there are no declared consumers.
    """
    if not plan.config.consumers:
        return {}
    return {
        place: min(
            known[name].offsets.get(place, 0) if name in known else 0
            for name in plan.config.consumers
        )
        for place in range(plan.config.partitions)
    }


def unread(one: Sealed, hold: dict[int, int]) -> int:
    """Return how many of a segment's records some declared consumer has not committed yet."""
    if not hold:
        return 0
    return sum(max(0, end - max(first, hold[place])) for place, (first, end) in one.parts.items())


def choose(plan: Plan, hold: dict[int, int], size: int, free: int) -> tuple[list[Sealed], int]:
    """Return the segments to remove, oldest first, and how many of their records some consumer had not committed."""
    config = plan.config
    oldest = (plan.time - config.retention_time) * 1e6 if config.retention_time else float("-inf")
    removed: list[Sealed] = []
    dropped = 0
    for one in plan.sealed:
        missing = unread(one, hold)
        hard = config.on_full == "drop_oldest" and (
            size + plan.needed > config.max_bytes or free < plan.min_free
        )
        due = one.newest < oldest or 0 < config.retention_bytes < size
        if not hard and (not due or missing):
            break
        removed.append(one)
        dropped += missing
        size -= one.size
        free += one.size
    return removed, dropped


def holders(
    plan: Plan, known: dict[str, files.Consumer], removed: Sequence[Sealed], size: int
) -> frozenset[str]:
    """If the oldest remaining segment is due for removal, return the consumers that prevent it.

    `size` is the size of the log.
    """
    config = plan.config
    oldest = (plan.time - config.retention_time) * 1e6 if config.retention_time else float("-inf")
    gone = {id(one) for one in removed}
    one = next((one for one in plan.sealed if id(one) not in gone), None)
    if one is None or not (one.newest < oldest or 0 < config.retention_bytes < size):
        return frozenset()
    return frozenset(
        name
        for name in config.consumers
        if any(
            (known[name].offsets.get(place, 0) if name in known else 0) < end
            for place, (_, end) in one.parts.items()
        )
    )


def keep_up(plan: Plan) -> Upkeep:
    """Remove the segments that are due. This call blocks. Failures are included in the result, and retried later."""
    done = Upkeep()
    try:
        free = plan.log.free()
        known = files.read_consumers(plan.folder, plan.log.id)
        done.consumers = frozenset(name for name, one in known.items() if one.updated)
        removed, dropped = choose(plan, held(plan, known), plan.log.size, free)
        if removed:
            _remove(plan, removed, done)
            done.dropped = dropped
            free = plan.log.free()
        done.free, done.low_disk = free, free < plan.min_free
        done.holders = holders(plan, known, removed, plan.log.size)
        done.held = bool(done.holders)
    except (OSError, StoreError) as error:
        done.problems.append(str(error))
    return done


class MergeProcess:
    """Runs `merge.merge` in a separate process. `stop` ends it for good, and may be called from any thread.

    The process serves one segment after the other, because starting Python costs about as much as merging a segment. It
    ends when it has been idle for a while.
    """

    def __init__(self) -> None:
        self.stopped = False
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self, source: Path, target: Path, compression: str) -> None:
        """Merge a segment. Raises OSError, StoreError or subprocess.SubprocessError if that fails, and Stopped after
        `stop`. Only one thread may call this at a time.
        """
        request = json.dumps([str(source), str(target), compression]).encode() + b"\n"
        fresh, process = self._running()
        answer = self._ask(process, request)
        if not answer and not fresh and process.wait() == 0:
            # It was idle for too long, and ended before it received the request.
            fresh, process = self._running()
            answer = self._ask(process, request)
        if self.stopped:
            raise Stopped
        said = json.loads(answer) if answer else f"exit code {process.wait()}"
        if said:
            raise StoreError(f"merging {source}: {said}")

    def _running(self) -> tuple[bool, "subprocess.Popen[bytes]"]:
        """Return whether the process had to be started, and the process."""
        with self._lock:
            if self.stopped:
                raise Stopped
            known = self._process
            if known is not None and known.poll() is None:
                return False, known
            self._close()
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "hookmq_spark_sink.merge"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            return True, self._process

    @staticmethod
    def _ask(process: "subprocess.Popen[bytes]", request: bytes) -> bytes:
        """Send a request and return the answer, or nothing if the process has ended. Raises subprocess.TimeoutExpired if
        it takes too long.
        """
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(request)
            process.stdin.flush()
        except OSError:
            return b""
        poll = select.poll()
        poll.register(process.stdout, select.POLLIN)
        if not poll.poll(_LONGEST * 1000):
            process.kill()
            raise subprocess.TimeoutExpired(process.args, _LONGEST)
        return process.stdout.readline()

    def _close(self) -> None:
        if self._process is not None:
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                with suppress(OSError):  # what could not be sent is sent again
                    pipe.close()

    def stop(self) -> None:
        """Kill the process, and do not start another."""
        with self._lock:
            self.stopped = True
            if self._process is not None:
                self._process.kill()
                with suppress(subprocess.TimeoutExpired):  # a hanging disk
                    self._process.wait(1.0)
                self._close()


def _remove(plan: Plan, removed: list[Sealed], done: Upkeep) -> None:
    """Record where each partition now begins, and only then delete the older records."""
    earliest = {place: end for one in removed for place, (_, end) in one.parts.items()}
    trimmed = dict(enumerate(plan.earliest)) | earliest
    files.write_trimmed(plan.folder, plan.log.id, trimmed)
    done.earliest = earliest
    done.removed = removed
    plan.log.trim(removed[-1].end)


def merge_one(
    log: SegmentLog, merge: Callable[[Path, Path, str], None], compression: str, one: Sealed
) -> Merged | None:
    """Merge and compress a segment's blocks, unless that makes the segment larger. Return None if retention deletes it
    in the meantime.

    This call blocks. Raises OSError, StoreError or subprocess.SubprocessError if it fails.
    """
    source = next((s.path for s in log.segments if s.base == one.base), None)
    if source is None:
        return None
    # Use the log's folder: a rename within a folder is atomic, even during a power cut.
    target = source.with_name(f"{source.stem}.{os.getpid()}{SUFFIX}{UNNAMED}")
    try:
        merge(source, target, compression)
        if target.stat().st_size >= one.size:
            target.unlink()
            return Merged(0, 0, 0)
        if not log.replace(one.base, target):
            return None
        return _compare(source, one)
    except BaseException:
        target.unlink(missing_ok=True)
        if not source.exists():
            return None
        raise


def _compare(source: Path, one: Sealed) -> Merged:
    index = SegmentIndex(source)
    try:
        index.extend()
        found = {number: (part.bases[0], part.end) for number, part in index.parts.items()}
        if found != one.parts:
            raise StoreError(f"{source} was merged into different records")
        return Merged(index.blocks, index.packed, index.position)
    finally:
        index.close()
