"""Compute what `hookmq top` shows. These are pure functions of snapshots, pressed keys and the screen size."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from hookmq_admin.snapshot import FLOWS, Snapshot, commit_quantile, drops, rates
from hookmq_admin.tables import shown
from hookmq_admin.terminal import BOLD, DIM, PLAIN, RED, REVERSE, fit

HELP: Final = "q quit  ↑↓ select  < > sort by  r reverse  / filter  k kick  space pause"
NUMBERS: Final = frozenset({"subscriptions", "inflight", "queued", "queued_bytes"})
COLUMNS: Final = {
    "client_id": 24, "username": 12, "connected": 6, "listener": 10, "address": 15, "subscriptions": 5,
    "inflight": 9, "queued": 8, "queued_bytes": 9,
}  # fmt: skip
"""The table's columns with their widths. The first column takes the rest of the screen's width."""
TITLES: Final = {
    "client_id": "CLIENT", "username": "USER", "connected": "ONLINE", "listener": "LISTENER", "address": "ADDRESS",
    "subscriptions": "SUBS", "inflight": "INFLIGHT", "queued": "QUEUED", "queued_bytes": "BYTES",
}  # fmt: skip
_SHORTEST: Final = 12
_HEAD: Final = 7
"""Lines above the clients, with the title of the table."""


@dataclass(slots=True)
class View:
    """The user's current choices. `mode` is ``filter`` while a filter is being typed, and ``kick`` while a kick waits
    for y.
    """

    sort: str = "queued"
    reverse: bool = True
    prefix: str = ""
    selected: str = ""
    mode: str = ""
    typed: str = ""
    message: str = ""
    problem: str = ""
    paused: bool = False
    before: Snapshot | None = None
    now: Snapshot | None = None
    kicks: list[str] = field(default_factory=list)
    """Client ids whose kick was confirmed. The caller takes them."""

    def take(self, snapshot: Snapshot) -> None:
        """Switch to a new snapshot."""
        self.problem = ""
        self.before, self.now = self.now, snapshot

    def clients(self) -> list[Mapping[str, Any]]:
        """Return the clients in the order that the user chose."""
        if self.now is None:
            return []
        return ordered(self.now.clients, self.sort, self.reverse)

    def press(self, key: str, page: int = 10) -> bool:
        """Handle a pressed key. Return False if the user quits. `page` is the number of visible clients."""
        if self.mode == "filter":
            self._type(key)
        elif self.mode == "kick":
            if key == "y":
                self.kicks.append(self.selected)
            self.message = "" if key == "y" else "nothing was done"
            self.mode = ""
        elif key == "q":
            return False
        else:
            self.message = ""
            self._command(key, page)
        return True

    def _type(self, key: str) -> None:
        if key == "enter":
            self.prefix, self.mode = self.typed, ""
        elif key == "escape":
            self.mode = ""
        elif key == "backspace":
            self.typed = self.typed[:-1]
        elif len(key) == 1 and len(self.typed) < 200:
            self.typed += key

    def _command(self, key: str, page: int) -> None:
        names = list(COLUMNS)
        if key in ("<", ">"):
            at = names.index(self.sort) + (1 if key == ">" else -1)
            self.sort = names[at % len(names)]
            self.reverse = self.sort in NUMBERS
        elif key == "r":
            self.reverse = not self.reverse
        elif key == "/":
            self.mode, self.typed = "filter", self.prefix
        elif key == " ":
            self.paused = not self.paused
        elif key == "k":
            if any(one["client_id"] == self.selected for one in self.clients()):
                self.mode = "kick"
            else:
                self.message = "select a client first, with ↓"
        else:
            steps = {"up": -1, "down": 1, "page up": -page, "page down": page}
            far = len(self.clients())
            steps |= {"home": -far, "end": far}
            self._move(steps.get(key, 0))

    def _move(self, step: int) -> None:
        ids = [one["client_id"] for one in self.clients()]
        if not step or not ids:
            return
        before = ids.index(self.selected) if self.selected in ids else -1
        self.selected = ids[max(0, min(before + step, len(ids) - 1))]


def ordered(
    clients: Sequence[Mapping[str, Any]], sort: str, reverse: bool
) -> list[Mapping[str, Any]]:
    """Return `clients` sorted by a column, then by client id. Missing values come first."""

    def key(one: Mapping[str, Any]) -> tuple[bool, Any]:
        value = one[sort]
        return value is not None, 0 if value is None else value

    return sorted(sorted(clients, key=lambda one: one["client_id"]), key=key, reverse=reverse)


def rows_for(height: int) -> int:
    """Return how many clients fit on a screen of `height` lines."""
    return max(1, height - _HEAD - 1)


def render(view: View, width: int, height: int, color: bool = False) -> list[str]:
    """Return the lines of the screen, each at most `width` columns wide. `width` is at least 2."""
    if view.now is None:
        text = view.problem or "connecting…"
        return [_styled(fit(text, width).rstrip(), RED if view.problem else "", color)]
    lines = [
        _styled(one.rstrip(), BOLD if not index else "", color)
        for index, one in enumerate(fit(line, width) for line in head(view.before, view.now))
    ]
    lines.append(_status(view, width, color))
    clients, most = view.clients(), rows_for(height)
    widths = _widths(width - 1)
    title = [
        fit(TITLES[name] + (("▼" if view.reverse else "▲") if name == view.sort else ""), size, name in NUMBERS)
        for name, size in widths.items()
    ]  # fmt: skip
    lines.append(_styled(" " + "  ".join(title).rstrip(), REVERSE, color))
    first = _first(clients, view.selected, most)
    for one in clients[first : first + most]:
        cells = [fit(cell(one, name), size, right=name in NUMBERS) for name, size in widths.items()]
        text = "  ".join(cells).rstrip()
        if one["client_id"] == view.selected:
            lines.append(_styled(f">{text}", REVERSE, color))
        else:
            lines.append(f" {text}")
    lines = lines[: max(1, height - 1)]
    lines += [""] * (height - 1 - len(lines))
    if height > 1:
        lines.append(_styled(fit(HELP, width).rstrip(), DIM, color))
    return lines


def head(before: Snapshot | None, now: Snapshot) -> list[str]:
    """Return the broker's figures in five lines."""
    seen = now.overview
    rate = rates(before, now)
    clock = time.strftime("%H:%M:%S", time.localtime(now.time))
    lines = [f"hookmq {seen['version']}  up {duration(float(seen['uptime']))}  {clock}"]
    flows = []
    for name, (messages, size) in FLOWS.items():
        flows.append(f"{name} {rate[messages]:,.1f} msg/s {octets(rate[size])}/s")
    accepted = f"connects {rate['connections_accepted']:,.1f}/s"
    refused = f"refused {rate['connections_refused']:,.1f}/s"
    lines.append("   ".join((*flows, accepted, refused)))
    lines.append(
        f"connections {seen['connections']:,}  sessions {seen['sessions']:,}  "
        f"subscriptions {seen['subscriptions']:,}  retained {seen['retained_messages']:,}  "
        f"queues {octets(seen['queue_bytes'])}"
    )
    commit = commit_quantile(before, now, 0.99)
    tail = "-" if commit is None else f"≤ {commit * 1000:g} ms"
    lines.append(f"loop lag {float(seen['loop_lag']) * 1000:.1f} ms  commit p99 {tail}")
    lost = [f"{reason} {speed:,.1f}/s ({total:,})" for reason, speed, total in drops(before, now)]
    lines.append("drops  " + ("  ".join(lost) or "none"))
    return lines


def _status(view: View, width: int, color: bool) -> str:
    if view.mode == "filter":
        return fit(f"client ids that begin with: {view.typed}_", width).rstrip()
    if view.mode == "kick":
        return _styled(fit(f"disconnect {view.selected}? y/n", width).rstrip(), BOLD, color)
    if view.problem:
        return _styled(fit(view.problem, width).rstrip(), RED, color)
    notes = [view.message] if view.message else []
    if view.paused:
        notes.append("paused")
    if view.prefix:
        notes.append(f"client ids that begin with {view.prefix}")
    if view.now is not None and view.now.more:
        notes.append(f"only the first {len(view.now.clients):,} clients")
    return fit("; ".join(notes), width).rstrip()


def cell(one: Mapping[str, Any], name: str) -> str:
    """Return the text for a client in one column."""
    value = one[name]
    if name == "queued_bytes":
        return octets(value)
    return f"{value:,}" if name in NUMBERS else shown(value, name)


def _widths(width: int) -> dict[str, int]:
    """Return each column's width. Columns that do not fit are left out."""
    first, *others = COLUMNS
    widths = {first: 0}
    used = 0
    for name in others:
        more = COLUMNS[name] + 2
        if used + more + _SHORTEST > width:
            continue
        widths[name] = COLUMNS[name]
        used += more
    widths[first] = max(1, width - used)
    return widths


def _first(clients: Sequence[Mapping[str, Any]], selected: str, most: int) -> int:
    """Return the position of the first client to show, chosen so that the selected client is visible."""
    for at, one in enumerate(clients):
        if one["client_id"] == selected:
            return max(0, at - most + 1)
    return 0


def _styled(text: str, style: str, color: bool) -> str:
    return f"{style}{text}{PLAIN}" if color and style and text else text


def octets(count: float) -> str:
    """Format a number of bytes, for example 1.5 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def duration(seconds: float) -> str:
    """Format a duration, for example 3d 04:05:06."""
    whole = int(seconds)
    days, rest = divmod(whole, 86400)
    text = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}d {text}" if days else text
