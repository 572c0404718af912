"""The ``hookmq storage`` command: inspect, check, repair, move and back up a store."""

import argparse
import json
import os
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from hookmq.plugin import HookMQError, StoreError
from hookmq.storage_api import state_space, timer_space
from hookmq_toolkit.durable_files import replacing, sync_file, sync_folder
from hookmq_toolkit.state_folder import lock_folder, lock_holder

from hookmq_storage import batch, portable
from hookmq_storage.backup import reading, write_backup
from hookmq_storage.check import problems
from hookmq_storage.database import connect, connect_reading, open_store, state, wrong
from hookmq_storage.engine import Engine
from hookmq_storage.fields import References
from hookmq_storage.folder import (
    BUILT,
    CURE,
    DATABASE,
    MARK,
    begin_building,
    end_building,
    finish_building,
    prepare,
    read_mark,
    saved_folder,
)
from hookmq_storage.schema import knows_plugin_state

EXAMPLES: Final = """\
examples:
  hookmq storage info /var/lib/hookmq
  hookmq storage backup /var/lib/hookmq /backup/hookmq-monday
  hookmq storage check /var/lib/hookmq
  hookmq storage export /var/lib/hookmq -o state.jsonl

info, state, check, export and backup work while a broker runs; stop it before state --delete, repair, import and
vacuum.
exit codes: 0 done, 1 the store is damaged or cannot be used, 2 wrong usage"""


_STOP: Final = "stop the broker first"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.description = "Inspect, check, repair, move and back up a store."
    parser.epilog = EXAMPLES
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    def add(name: str, run: Callable[[argparse.Namespace], int], help: str) -> Any:
        one = commands.add_parser(name, help=help, description=f"{help[:1].upper()}{help[1:]}.")
        one.add_argument("folder", type=Path, help="the store's folder, as in `path` of the plugin")
        one.set_defaults(run=_guarded(run))
        return one

    one = add("info", info, "show the contents and size of a store")
    one.add_argument("--json", action="store_true", help="print a JSON object")
    one = add(
        "state", plugin_state, "list the state that plugins keep, or delete that of one plugin"
    )
    one.add_argument("--json", action="store_true", help="print a JSON array")
    one.add_argument(
        "--delete", metavar="PLUGIN", help="delete the state and the timers of a plugin id"
    )
    add("check", check, "check every row, index and page")
    one = add("repair", repair, "copy the files, then save the readable rows")
    one.add_argument(
        "--accept",
        action="store_true",
        help="accept an intact database that lacks its last commits",
    )
    one = add("export", export, "write everything as lines of JSON")
    one.add_argument(
        "-o",
        "--output",
        type=Path,
        help="output file, with mode 0600; default, or -: standard output",
    )
    one = add("import", import_, "fill a new store from an export")
    one.add_argument(
        "source", type=Path, nargs="?", help="file to read; default, or -: standard input"
    )
    add("vacuum", vacuum, "shrink the database file to its contents")
    one = add("backup", backup, "copy a store as of one moment, even while the broker runs")
    one.add_argument("target", type=Path, help="a new folder, which the plugin can use")


def _guarded(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    def guarded(arguments: argparse.Namespace) -> int:
        try:
            return run(arguments)
        except (sqlite3.Error, OSError) as error:
            raise wrong(arguments.folder, error) from error

    return guarded


class Bar:
    """A progress bar for terminals. It prints nothing if standard error is not a terminal."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._shown = sys.stderr.isatty()
        self._drawn = False

    def __call__(self, name: str, done: int, total: int) -> None:
        """Draw the bar for `done` of `total` rows of the table `name`."""
        if not self._shown:
            return
        part = min(1.0, done / total) if total else 1.0
        bar = "#" * int(part * 30)
        text = f"\r{self._what} {name:<12} [{bar:<30}] {part:4.0%} {done:,}"
        sys.stderr.write(f"{text}\x1b[K")
        sys.stderr.flush()
        self._drawn = True

    def end(self) -> None:
        """Erase the progress bar."""
        if self._drawn:
            sys.stderr.write("\r\x1b[K")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lock a store, in order to change it. Raises StoreError if it is in use."""
    if not (folder / DATABASE).exists() and not (folder / BUILT).exists():
        raise StoreError(f"{folder} contains no store")
    held = lock_folder(folder, in_use=_STOP, cure=CURE)
    try:
        finish_building(folder)
        yield
    finally:
        os.close(held)


def info(arguments: argparse.Namespace) -> int:
    """Print the store's contents and size."""
    folder: Path = arguments.folder
    with reading(folder) as db:
        found = state(db)
        page: int = db.execute("PRAGMA page_size").fetchone()[0]
        pages: int = db.execute("PRAGMA page_count").fetchone()[0]
        free: int = db.execute("PRAGMA freelist_count").fetchone()[0]
        shown: dict[str, Any] = {
            "version": db.execute("PRAGMA user_version").fetchone()[0],
            "identity": found.identity,
            "commit": found.number,
            "bytes": pages * page,
            "free_bytes": free * page,
            "log_bytes": _size(folder / f"{DATABASE}-wal"),
        }
        for name, table in (
            ("sessions", "session"),
            ("subscriptions", "subscription"),
            ("retained", "retained"),
            ("messages", "message"),
            ("queue_entries", "entry"),
            ("received_ids", "received"),
            ("plugin_state", "plugin_state"),
        ):
            if table == "plugin_state" and not knows_plugin_state(db):
                continue
            shown[name] = db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        if shown["version"] > 2:
            # Also count the messages that are stored inside entries.
            shown["messages"] += db.execute("SELECT count(body) FROM entry").fetchone()[0]
        shown["ended_owners"] = db.execute(
            "SELECT count(*) FROM owner WHERE name IS NULL"
        ).fetchone()[0]
    shown["in_use_by"] = lock_holder(folder)
    if arguments.json:
        print(json.dumps(shown))
        return 0
    for name, value in shown.items():
        text = f"{value:,}" if isinstance(value, int) and name != "in_use_by" else value
        print(f"{name.replace('_', ' '):<14} {'nobody' if value is None else text}")
    return 0


def plugin_state(arguments: argparse.Namespace) -> int:
    """Print how much state each plugin has stored, or delete one plugin's state."""
    folder: Path = arguments.folder
    if arguments.delete is not None:
        return _delete_state(folder, arguments.delete)
    plugins: dict[str, dict[str, int]] = {}
    with reading(folder) as db:
        if knows_plugin_state(db):
            # The bytes of a key are counted like those of its value, as in `broker.plugin_state_bytes`.
            for space, count, size in db.execute(
                "SELECT space, count(*), sum(length(CAST(key AS BLOB)) + length(value)) FROM plugin_state GROUP BY space"
            ):
                one = plugins.setdefault(space[2:], {"keys": 0, "timers": 0, "bytes": 0})
                one["keys" if space.startswith("s/") else "timers"] += count
                one["bytes"] += size
    if arguments.json:
        print(json.dumps([{"plugin": name, **plugins[name]} for name in sorted(plugins)]))
        return 0
    if not plugins:
        print("no plugin keeps state")
    for name in sorted(plugins):
        one = plugins[name]
        print(f"{name:<20} {one['keys']:,} keys, {one['timers']:,} timers, {one['bytes']:,} bytes")
    return 0


def _delete_state(folder: Path, plugin: str) -> int:
    spaces = (state_space(plugin), timer_space(plugin))
    with _alone(folder):
        db, found = open_store(folder)
        with closing(db):
            rows = db.execute(
                "SELECT space, key FROM plugin_state WHERE space IN (?, ?)", spaces
            ).fetchall()
            if not rows:
                raise StoreError(f"{folder} contains no state of plugin {plugin!r}")
            engine = Engine(folder, db, found, "group")
            engine.commit((batch.DROP_STATE, space, key) for space, key in rows)
            engine.close()
    print(f"{len(rows):,} keys and timers of {plugin} deleted")
    return 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def check(arguments: argparse.Namespace) -> int:
    """Print the store's problems. Return 1 if there are any."""
    folder: Path = arguments.folder
    bar = Bar("checking")
    count = 0
    with reading(folder) as db:
        for count, problem in enumerate(problems(db, True, bar), 1):
            bar.end()
            print(problem)
            if count == 100:
                print("… there may be more")
                break
        mark = read_mark(folder)
        if not count:
            found = state(db)
            if mark is not None and mark.identity == found.identity and mark.number > found.number:
                count = 1
                print(f"commit {mark.number} was safe, but the database ends at {found.number}")
    bar.end()
    if count:
        print(f"{folder} is damaged; hookmq storage repair saves the readable rows")
        return 1
    print(f"{folder} is intact")
    return 0


def repair(arguments: argparse.Namespace) -> int:
    """Rebuild the store from its readable rows, keeping the damaged files in a subfolder."""
    folder: Path = arguments.folder
    with _alone(folder):
        if arguments.accept:
            with reading(folder) as db:
                problem = next(problems(db, True), "")
            if not problem:
                (folder / MARK).unlink(missing_ok=True)
                with closing(connect(folder)) as db:
                    # Journals must not mistake this store for the one they know.
                    db.execute("UPDATE state SET inode = NULL")
                print(f"{folder} is accepted as it is")
                return 0
        saved = saved_folder(folder, "repair")
        lost: list[str] = []
        bar = Bar("saving")
        try:
            damaged = saved / "damaged"
            damaged.mkdir()
            for name in (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", MARK):
                if (folder / name).exists():
                    _copy_file(folder / name, damaged / name)
            for made in (damaged, saved, folder):
                sync_folder(made)
            # Read the original: SQLite would merge the log into a copy, and the saved copy must remain unchanged.
            with closing(connect_reading(folder)) as db, _new(begin_building(folder)) as engine:
                count = portable.put(engine, portable.trusted(portable.lines(db, lost.append, bar)))
                engine.number = _last_number(db)
            bar.end()
        except BaseException:
            shutil.rmtree(saved, ignore_errors=True)  # the store is unchanged
            raise
        end_building(folder)
    for text in lost[:100]:
        print(f"lost: {text}")
    if len(lost) > 100:
        print(f"… and {len(lost) - 100} more")
    print(f"{count:,} records saved, {len(lost):,} lost; the damaged files are in {damaged}")
    return 0


def _copy_file(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
    sync_file(target)


def _last_number(db: sqlite3.Connection) -> int:
    try:
        return state(db).number
    except (sqlite3.Error, HookMQError):
        return 0


@contextmanager
def _new(folder: Path) -> Iterator[Engine]:
    """Yield an engine for a new store. Individual commits during an import need not be durable."""
    db, found = open_store(folder, durability="os")
    engine = Engine(folder, db, found, "os")
    try:
        yield engine
        db.execute(
            "UPDATE state SET number = ?, next_message = ?", (engine.number, engine.next_message)
        )
        db.execute("PRAGMA synchronous = FULL")
        engine.close()
    except BaseException:
        engine.abandon()
        raise


def export(arguments: argparse.Namespace) -> int:
    """Write the store as lines of JSON."""
    bad: list[str] = []
    bar = Bar("exporting")
    output: Path | None = arguments.output
    with reading(arguments.folder) as db:
        db.execute("BEGIN")  # a snapshot
        lines = portable.lines(db, bad.append, bar)
        if output is None or str(output) == "-":
            _write(lines, sys.stdout)
        elif output.exists() and not output.is_file():
            with output.open("w", encoding="utf-8") as file:  # such as a pipe
                _write(lines, file)
        else:
            _write_whole(lines, output)
    bar.end()
    for text in bad[:100]:
        print(f"hookmq: not exported: {text}", file=sys.stderr)
    return 1 if bad else 0


def _write_whole(lines: Iterable[dict[str, Any]], output: Path) -> None:
    """Write all lines to `output`. If that fails, leave `output` unchanged."""
    # Mode 0600, because the lines contain messages, user names and claims.
    with (
        replacing(output.absolute(), output.absolute().with_name(f"{output.name}.part")) as number,
        open(number, "w", encoding="utf-8", closefd=False) as file,
    ):
        _write(lines, file)


def _write(lines: Iterable[dict[str, Any]], file: Any) -> None:
    for line in lines:
        file.write(json.dumps(line, separators=(",", ":")) + "\n")


def import_(arguments: argparse.Namespace) -> int:
    """Fill a new store from exported lines."""
    folder: Path = arguments.folder
    if (folder / DATABASE).exists():
        raise StoreError(f"{folder} already contains a store; import into a new folder")
    prepare(folder)
    held = lock_folder(folder, in_use=_STOP, cure=CURE)
    source: Path | None = arguments.source
    bar = Bar("importing")

    def counted(lines: Iterable[Any]) -> Iterator[Any]:
        for number, line in enumerate(lines, 1):
            if number % 5000 == 0:
                bar("lines", number, 0)
            yield line

    try:
        finish_building(folder)
        if (folder / DATABASE).exists() or read_mark(folder) is not None:
            raise StoreError(f"{folder} contained a store before; import into a new folder")
        building = begin_building(folder)
        try:
            known = References()
            with _new(building) as engine:
                if source is None or str(source) == "-":
                    count = portable.put(
                        engine, portable.operations(counted(sys.stdin.buffer), known)
                    )
                else:
                    with source.open("rb") as file:
                        count = portable.put(engine, portable.operations(counted(file), known))
                portable.check_rows(engine, known)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise
        end_building(folder)
    finally:
        bar.end()
        os.close(held)
    print(f"{count:,} records")
    return 0


def vacuum(arguments: argparse.Namespace) -> int:
    """Shrink the database file to the size of its contents."""
    folder: Path = arguments.folder
    with _alone(folder):
        before = _size(folder / DATABASE)
        db, _ = open_store(folder)
        with closing(db):
            db.execute("VACUUM")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        after = _size(folder / DATABASE)
    print(f"{before:,} bytes before, {after:,} after")
    return 0


def backup(arguments: argparse.Namespace) -> int:
    """Copy a store to a new folder."""
    target: Path = arguments.target
    bar = Bar("copying")
    size = write_backup(arguments.folder, target, lambda done, total: bar("pages", done, total))
    bar.end()
    print(f"{size:,} bytes in {target}")
    return 0
