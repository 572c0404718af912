"""The `Store` implementation for SQLite. It loads the state at startup, and passes commits and page requests to
the engine or the writer process.
"""

import asyncio
import gc
import os
import sqlite3
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from hookmq.plugin import Message, Runtime, StoreError
from hookmq.storage_api import (
    CommitId,
    Committed,
    ExpiredEntries,
    Loaded,
    Paged,
    PutMessage,
    PutReceived,
    PutRetained,
    PutState,
    Queued,
    QueueSummary,
    Record,
    StoreFailed,
)
from hookmq_toolkit.state_folder import lock_folder

from hookmq_storage.check import problems
from hookmq_storage.database import USUAL, Durability, Limits, open_store, wrong
from hookmq_storage.engine import Engine
from hookmq_storage.folder import CURE, IN_USE
from hookmq_storage.pages import PAGE, Pages, unfold
from hookmq_storage.process import WriterProcess
from hookmq_storage.rows import (
    enqueue_of,
    message_of,
    operations,
    publisher_of,
    session_of,
    subscription_of,
)
from hookmq_storage.schema import COLUMNS
from hookmq_storage.writer import ANSWERS

_CLOCK: Final = 60.0
"""Seconds by which the wall clock may lag behind the newest commit before a warning is logged."""
_TELL: Final = 200_000
"""Number of records to load between two progress messages in the log."""

_PART: Final = 2048
"""Number of records to encode and send to the writer process in one turn, which takes about 4 ms."""


class Stats:
    """Counters for the metrics."""

    __slots__ = (
        "commits", "database_bytes", "disk_seconds", "last_seconds", "log_bytes", "pages", "records", "seconds",
    )  # fmt: skip

    def __init__(self) -> None:
        self.commits = 0
        self.records = 0
        self.pages = 0
        self.seconds = 0.0
        """Total seconds from receiving a batch until it is known to be safe."""
        self.disk_seconds = 0.0
        """The part of `seconds` spent in SQLite and on the disk."""
        self.last_seconds = 0.0
        self.database_bytes = 0
        self.log_bytes = 0


class SQLiteStore:
    """One broker's state, stored in `folder`. The folder is created if it is missing.

    If the runtime has an event loop, a separate process handles commits and page requests. Otherwise
    (`VirtualRuntime`), this process handles them, immediately and deterministically. Raises StoreError if the folder
    cannot be used.
    """

    durable = True

    def __init__(
        self,
        folder: Path,
        runtime: Runtime,
        durability: Durability = "group",
        limits: Limits = USUAL,
        verify: bool = True,
    ) -> None:
        self.folder = folder
        self.durability = durability
        self.stats = Stats()
        self._runtime = runtime
        self._limits = limits
        self._verify = verify
        self._lock = self._take(folder)
        self._engine: Engine | None = None
        self._pages: Pages | None = None
        self._process: WriterProcess | None = None
        try:
            self._db, state = open_store(folder, limits, durability, runtime.token, runtime.time)
        except BaseException:
            os.close(self._lock)
            raise
        self.identity = state.identity
        self._number = state.number
        self._next_message = state.next_message
        behind = state.at - runtime.time()
        if behind > _CLOCK:
            runtime.log(
                "warning",
                "storage.clock_behind",
                seconds=round(behind),
                text="the clock is behind the newest commit: sessions, wills and messages expire later by that time",
            )
        if state.fresh and state.number:
            runtime.log("warning", "storage.copy", folder=str(folder), identity=self.identity)
        runtime.log(
            "info",
            "storage.opened",
            folder=str(folder.absolute()),
            durability=durability,
            commit=state.number,
        )
        self._ready = False
        self._closed = False
        self._reason = ""
        self._done: Committed | None = None
        self._began = 0.0
        self._asked: deque[tuple[Callable[[Any], None], Callable[[StoreFailed], None]]] = deque()
        """Callbacks for each pending request to the reading thread: one for the response, one for a failure."""
        self._sweeping = False
        loop: asyncio.AbstractEventLoop | None = getattr(runtime, "loop", None)
        self._loop = loop
        if loop is None:
            self._engine = Engine(folder, self._db, state, durability, limits, runtime.time)
            self._pages = Pages(folder)
            self._soon_sweep()
        else:
            try:
                # Start the process now, so that it checks the database while this process loads the state.
                self._process = WriterProcess(
                    folder, durability, limits, verify, self._lock,
                    self._committed, self._answered, self._fail,
                )  # fmt: skip
            except BaseException:
                self._db.close()
                os.close(self._lock)
                raise

    @staticmethod
    def _take(folder: Path) -> int:
        from hookmq_storage.folder import prepare

        prepare(folder)
        return lock_folder(folder, in_use=IN_USE, cure=CURE)

    # --- start -------------------------------------------------------------------------------------------------------

    def load(self) -> Iterator[Loaded]:
        """Yield the stored state; see `hookmq.storage_api.Store.load`. Logs its progress. Raises StoreError at the end
        if the database check found a problem.
        """
        began = perf_counter()
        count = 0
        # Every new object survives, so collecting garbage repeatedly takes longer than creating the objects.
        collecting = gc.isenabled()
        gc.disable()
        try:
            total = self._total()
            for record in self._records():
                count += 1
                if count % _TELL == 0:
                    self._runtime.log("info", "storage.loading", records=count, of=total)
                yield record
        except (sqlite3.Error, ValueError, TypeError) as error:
            raise wrong(self.folder, error) from error
        finally:
            if collecting:
                if count >= _TELL:
                    gc.freeze()  # as the server does after startup: these objects are never collected
                gc.enable()
        if count >= _TELL and not self._ready:
            self._runtime.log("info", "storage.checking", records=count, of=total)
        self._start()
        if count:
            seconds = round(perf_counter() - began, 3)
            self._runtime.log("info", "storage.loaded", records=count, seconds=seconds)

    def _total(self) -> int:
        """Return the approximate number of records to load."""
        counts = (
            f"(SELECT count(*) FROM {table})"
            for table in ("session", "subscription", "received", "retained", "plugin_state")
        )
        total: int = self._db.execute(f"SELECT {' + '.join(counts)}").fetchone()[0]
        return total

    def _records(self) -> Iterator[Loaded]:
        db = self._db
        names: dict[int, str] = {}
        columns = ", ".join(f"s.{name}" for name in COLUMNS["session"].split(", ")[1:-1])
        for row in db.execute(
            f"SELECT s.owner, o.name, {columns} FROM session s JOIN owner o ON o.id = s.owner WHERE o.name IS NOT NULL"
        ):
            client_id = names[row[0]] = row[1][2:]
            yield session_of(client_id, row[2:])
        for row in db.execute(f"SELECT {COLUMNS['subscription']} FROM subscription"):
            name = names.get(row[0])
            if name is not None:
                yield subscription_of(name, row[1:])
        for owner, number, _ in db.execute(f"SELECT {COLUMNS['received']} FROM received"):
            name = names.get(owner)
            if name is not None:
                yield PutReceived(name, number)
        for row in db.execute(f"SELECT {COLUMNS['publisher']} FROM publisher"):
            yield publisher_of(row)
        for row in db.execute(f"SELECT {COLUMNS['retained']} FROM retained"):
            yield PutRetained(message_of(row[:8]), row[8] or 0)
        for row in db.execute(f"SELECT {COLUMNS['plugin_state']} FROM plugin_state"):
            yield PutState(*row[:4])
        yield from self._queues()

    def _queues(self) -> Iterator[Loaded]:
        db = self._db
        put: set[int] = set()
        owners: dict[int, str] = {}
        for found in db.execute(f"{PAGE} WHERE e.sent != 0"):
            try:
                row = unfold(found)
            except ValueError as error:
                raise self._untrusted(str(error)) from error
            owner = owners.get(row[0])
            if owner is None:
                named = db.execute("SELECT name FROM owner WHERE id = ?", row[:1]).fetchone()
                if named is None or named[0] is None:
                    continue
                owner = owners[row[0]] = named[0]
            if row[2] not in put:
                if row[19] is None:
                    raise StoreError(
                        f"{self.folder}: message {row[2]} of {owner} is missing;"
                        " hookmq storage repair saves the readable rows"
                    )
                put.add(row[2])
                yield PutMessage(row[2], message_of(row[11:19]))
            yield enqueue_of(owner, row[1:10])
        for row in db.execute(
            "SELECT o.name, sum(e.sent = 0), sum(e.size * (e.sent = 0)), max(e.seq)"
            " FROM entry e JOIN owner o ON o.id = e.owner WHERE o.name IS NOT NULL GROUP BY e.owner"
        ):
            yield QueueSummary(*row)

    def _start(self) -> None:
        """Start accepting commits if the database is intact."""
        if self._ready:
            return
        process = self._process
        if process is not None:
            problem = process.verdict()
            if problem:
                raise self._untrusted(problem)
            assert self._loop is not None
            process.start(self._loop)
            self._db.close()
        elif self._verify:
            problem = next(problems(self._db), "")
            if problem:
                raise self._untrusted(problem)
        self._ready = True

    def _untrusted(self, problem: str) -> StoreError:
        return StoreError(
            f"{self.folder}: {problem}; hookmq storage repair {self.folder} saves the readable rows"
        )

    def last_commit(self) -> CommitId:
        """Return the last commit; see `hookmq.storage_api.Store.last_commit`."""
        return CommitId(self.identity, self._number)

    def next_message_id(self) -> int:
        """Return the id for the next message; see `hookmq.storage_api.Store.next_message_id`."""
        return self._next_message

    # --- commits -----------------------------------------------------------------------------------------------------

    def commit(self, records: Sequence[Record], done: Committed) -> None:
        """Commit records; see `hookmq.storage_api.Store.commit`."""
        if self._reason:
            done(StoreFailed(self._reason))
            return
        self._start()
        self.stats.records += len(records)
        self._done = done
        self._began = perf_counter()
        if self._process is not None:
            self._hand_over(self._process, records, 0)
            return
        engine = self._engine
        assert engine is not None
        try:
            number = engine.commit(operations(records))
        except Exception as error:
            self._fail(str(wrong(self.folder, error)))
            return
        took = perf_counter() - self._began
        if engine.wal_size() > self._limits.wal:
            engine.checkpoint()
        if engine.ended:
            self._soon_sweep()
        self._committed(number, engine.next_message, took, engine.size(), engine.wal_size())

    def _hand_over(self, process: WriterProcess, records: Sequence[Record], start: int) -> None:
        """Send a batch to the writer in parts, one per turn. Encoding 100,000 queue entries at once would take a
        second.
        """
        if self._reason:
            return
        end = start + _PART
        if end >= len(records):
            process.commit(operations(records[start:] if start else records))
            return
        process.part(operations(records[start:end]))
        self._runtime.call_soon(partial(self._hand_over, process, records, end))

    def _committed(self, number: int, following: int, took: float, size: int, log: int) -> None:
        self._number = number
        self._next_message = following
        stats = self.stats
        stats.commits += 1
        stats.last_seconds = perf_counter() - self._began
        stats.seconds += stats.last_seconds
        stats.disk_seconds += took
        stats.database_bytes = size
        stats.log_bytes = log
        done, self._done = self._done, None
        if done is not None:
            done(CommitId(self.identity, number))

    def _fail(self, reason: str) -> None:
        self._reason = self._reason or reason
        done, self._done = self._done, None
        if done is not None:
            done(StoreFailed(self._reason))
        asked, self._asked = self._asked, deque()
        for _, failed in asked:
            failed(StoreFailed(self._reason))

    def _soon_sweep(self) -> None:
        if not self._sweeping:
            self._sweeping = True
            self._runtime.call_soon(self._sweep)

    def _sweep(self) -> None:
        """Sweep one slice per turn if there is no writer process."""
        self._sweeping = False
        if self._engine is not None and not self._closed and not self._reason:
            self._engine.sweep()
            if self._engine.ended:
                self._soon_sweep()

    # --- pages -------------------------------------------------------------------------------------------------------

    def read(
        self,
        owner: str,
        after: int,
        max_count: int,
        max_size: int,
        done: Paged,
    ) -> None:
        """Read one page of a queue; see `hookmq.storage_api.Store.read`."""
        if self._ask(
            partial(self._page, owner, done), done, "read", owner, after, max_count, max_size
        ):
            self.stats.pages += 1

    def _page(self, owner: str, done: Paged, rows: list[Any]) -> None:
        messages: dict[int, Message] = {}
        page: list[Queued] = []
        for row in rows:
            message = messages.get(row[2])
            if message is None:
                message = messages[row[2]] = message_of(row[11:19])
            page.append((enqueue_of(owner, row[1:10]), message))
        done(page)

    def expired(
        self,
        now: float,
        place: object,
        max_count: int,
        done: Callable[[ExpiredEntries | StoreFailed], None],
    ) -> None:
        """Find expired entries; see `hookmq.storage_api.ExpiringStore.expired`."""

        def found(answer: Any) -> None:
            done(ExpiredEntries(*answer))

        self._ask(found, done, "expired", now, place, max_count)

    def _ask(
        self,
        answered: Callable[[Any], None],
        failed: Callable[[StoreFailed], None],
        what: str,
        *arguments: Any,
    ) -> bool:
        """Send a request to the reading thread. Return whether the request was sent."""
        if self._reason:
            failed(StoreFailed(self._reason))
            return False
        self._start()
        self._asked.append((answered, failed))
        if self._process is not None:
            self._process.ask(what, *arguments)
            return True
        assert self._pages is not None
        try:
            answer = ANSWERS[what](self._pages, *arguments)
        except Exception as error:
            self._fail(str(wrong(self.folder, error)))
            return True
        self._answered(answer)
        return True

    def _answered(self, answer: Any) -> None:
        if self._asked:  # empty after a failure, which every waiting caller was notified of
            answered, _ = self._asked.popleft()
            answered(answer)

    # --- end ---------------------------------------------------------------------------------------------------------

    def close(self, done: Callable[[], None]) -> None:
        """Close the store; see `hookmq.storage_api.Store.close`."""
        if self._closed:
            done()
            return
        self._closed = True

        def ended() -> None:
            os.close(self._lock)
            done()

        process, engine = self._process, self._engine
        if process is not None:
            if self._ready and not self._reason:
                process.close(ended)
                return
            process.kill()
            if not self._ready:
                self._db.close()
        if self._pages is not None:
            self._pages.close()
        if engine is not None:
            if self._reason:
                engine.abandon()
            else:
                engine.close()
        ended()
