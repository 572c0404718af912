"""``hookmq top``: the overview of a running broker in the terminal."""

import argparse
import json
import os
import select
import sys
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from shutil import get_terminal_size
from typing import Any, Final

from hookmq.cli_api import count, seconds
from hookmq.plugin import ConfigError

from hookmq_admin.api_client import ApiClient, RequestRefused, add_options, part
from hookmq_admin.snapshot import Snapshot, fetch
from hookmq_admin.terminal import colored, interactive, screen, split_keys
from hookmq_admin.top_view import COLUMNS, NUMBERS, View, head, render, rows_for

EXAMPLES: Final = f"""\
examples:
  hookmq top --token-file admin.token
  hookmq top --sort queued_bytes --interval 5s
  hookmq top --once --json

sort by: {", ".join(COLUMNS)}
If the output is not a terminal, or TERM is dumb, the figures are printed again and again. NO_COLOR=1 turns colors off."""
AFTER_REFUSAL: Final = 30.0
"""Seconds to wait before retrying a refused token, because wrong tokens are limited."""
SHORTEST: Final = 0.2
"""The shortest interval, in seconds."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.description = "Show the figures and clients of a running broker."
    parser.epilog = EXAMPLES
    add_options(parser)
    add = parser.add_argument
    add("--once", action="store_true", help="print one snapshot and end")
    add(
        "--interval", type=seconds, default=2.0, metavar="TIME", help="between two snapshots (default: 2s)"
    )  # fmt: skip
    add(
        "--sort", choices=tuple(COLUMNS), default="queued", metavar="COLUMN", help="default: queued"
    )
    add("--client-id", default="", metavar="PREFIX", help="only client ids that begin with this")
    add("-n", "--limit", type=count, default=500, help="most clients to fetch (default: 500)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Return the exit code."""
    arguments.interval = max(SHORTEST, float(arguments.interval))
    view = View(arguments.sort, arguments.sort in NUMBERS, arguments.client_id)
    try:
        if arguments.once:
            view.take(fetch(ApiClient.of(arguments), view.prefix, arguments.limit))
            _print(view, arguments)
        elif arguments.json or not (interactive(sys.stdout) and sys.stdin.isatty()):
            _repeat(view, arguments)
        else:
            _Top(view, arguments).run()
    except KeyboardInterrupt:
        return 130
    return 0


def _print(view: View, arguments: argparse.Namespace) -> None:
    """Print a snapshot without control characters."""
    assert view.now is not None
    if arguments.json:
        found = {
            "overview": view.now.overview,
            "counters": view.now.counters,
            "clients": view.clients(),
            "more": view.now.more,
        }
        print(json.dumps(found, indent=2 if arguments.once else None), flush=True)
        return
    width = get_terminal_size((120, 24)).columns
    lines = render(view, max(width, 80), len(head(None, view.now)) + 3 + len(view.now.clients))
    print("\n".join(line for line in lines[:-1] if line), flush=True)


def _repeat(view: View, arguments: argparse.Namespace) -> None:
    """Print a snapshot at every interval. Report on stderr if the broker cannot be reached."""
    source = _Source(arguments)
    while True:
        found = source.ask(view.prefix)
        if isinstance(found, Snapshot):
            view.take(found)
            _print(view, arguments)
            if not arguments.json:
                print(flush=True)
        else:
            if found != view.problem:
                print(f"hookmq: {found}", file=sys.stderr, flush=True)
            view.problem = found
        time.sleep(arguments.interval)


class _Source:
    """Fetches snapshots. If a snapshot cannot be fetched, explains why and rereads the token."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._api = ApiClient.of(arguments)
        self._refused = ""
        """The token that the broker refused; empty if it did not refuse one."""
        self._again = 0.0
        self._reason = ""

    def ask(self, prefix: str) -> Snapshot | str:
        """Return a snapshot, or the reason why there is none. Blocks."""
        try:
            if self._reason:
                self._api = ApiClient.of(self._arguments)
            if self._api.token == self._refused and time.monotonic() < self._again:
                return self._reason
            found = fetch(self._api, prefix, self._arguments.limit)
        except (RequestRefused, ConfigError) as error:
            if isinstance(error, RequestRefused) and error.status in (401, 429):
                self._refused = self._api.token
                self._again = time.monotonic() + AFTER_REFUSAL
                self._reason = f"{error}; if the token has expired, replace the file or start again"
            else:
                self._reason = f"trying again: {error}"
            return self._reason
        self._reason = self._refused = ""
        return found

    def kick(self, client_id: str) -> str:
        """Disconnect a client. Return a line of text that describes the result. Blocks."""
        try:
            self._api.ask("POST", f"/clients/{part(client_id)}/disconnect", body={})
        except RequestRefused as error:
            return f"{client_id}: {error}"
        return f"{client_id} was disconnected"


class _Top:
    """The interactive screen. A thread makes the requests, so keys still work if the broker does not respond."""

    def __init__(self, view: View, arguments: argparse.Namespace) -> None:
        self._view = view
        self._source = _Source(arguments)
        self._interval = float(arguments.interval)
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._news: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        self._wake_read, self._wake_write = os.pipe()
        self._color = colored(sys.stdout)
        self._prefix = view.prefix

    def run(self) -> None:
        """Show the screen until the user quits."""
        worker = threading.Thread(target=self._requests, daemon=True)
        worker.start()
        try:
            with screen() as keys:
                self._draw()
                while self._step(keys):
                    self._draw()
        finally:
            self._work.put(None)

    def _step(self, keys: int) -> bool:
        """Wait for a key or a result, but at most for a second, because the screen size may have changed. Return False
        to quit.
        """
        ready, _, _ = select.select([keys, self._wake_read], [], [], 1.0)
        if self._wake_read in ready:
            os.read(self._wake_read, 4096)
        while True:
            try:
                name, value = self._news.get_nowait()
            except Empty:
                break
            if name == "message":
                self._view.message = value
            elif isinstance(value, Snapshot):
                self._view.take(value)
            else:
                self._view.problem = value
        if keys not in ready:
            return True
        data = os.read(keys, 4096)
        if not data:
            return False  # the terminal is gone
        page = rows_for(os.get_terminal_size(sys.stdout.fileno()).lines)
        for key in split_keys(data.decode(errors="ignore")):
            if not self._view.press(key, page):
                return False
        for client_id in self._view.kicks:
            self._work.put(lambda name=client_id: self._tell("message", self._source.kick(name)))  # type: ignore[misc]
        self._view.kicks.clear()
        if self._view.prefix != self._prefix:
            self._prefix = self._view.prefix
            self._work.put(lambda: None)  # fetch at once
        return True

    def _draw(self) -> None:
        size = os.get_terminal_size(sys.stdout.fileno())
        lines = render(self._view, size.columns, size.lines, self._color)
        text = "\x1b[K\r\n".join(lines)
        sys.stdout.write(f"\x1b[H{text}\x1b[K\x1b[J")
        sys.stdout.flush()

    def _requests(self) -> None:
        while True:
            if not self._view.paused or self._view.now is None:
                self._tell("snapshot", self._source.ask(self._prefix))
            try:
                work = self._work.get(timeout=self._interval)
            except Empty:
                continue
            if work is None:
                return
            work()

    def _tell(self, name: str, value: Any) -> None:
        self._news.put((name, value))
        os.write(self._wake_write, b".")
