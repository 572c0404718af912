"""The demo's output: on a terminal, a page that is redrawn; elsewhere, one line per second."""

import os
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

COLORS: Final = {"ready": "32", "running": "32", "killed": "31"}


class NodeFigures(NamedTuple):
    """A broker, as the demo shows it. `clients` and `lanes` are as the node reports them."""

    name: str
    state: str
    lanes: Sequence[str] = ()
    clients: int = 0
    through: int = 0
    """Connections that the load balancer has given to the node."""


class Figures(NamedTuple):
    """The figures that the demo shows. A receiver has a title, and the counts of `COUNTS`."""

    phase: str
    stored: int
    nodes: Sequence[NodeFigures]
    servers: dict[str, str]
    receivers: Sequence[tuple[str, Sequence[int]]]


COUNTS: Final = ("received", "not yet", "repeated", "doubled")


class Screen:
    """Shows the figures. `say` prints a permanent line above them."""

    def __init__(self) -> None:
        self.live = sys.stdout.isatty()
        self._color = self.live and "NO_COLOR" not in os.environ
        self._drawn = 0
        self._before = (time.monotonic(), 0)

    def say(self, text: str, color: str = "") -> None:
        """Print a line above the figures."""
        self._erase()
        print(self._paint(text, color), flush=True)

    def show(self, figures: Figures) -> None:
        """Show the figures."""
        rate = self._rate(figures.stored)
        if not self.live:
            print(_line(figures, rate), flush=True)
            return
        width = shutil.get_terminal_size().columns
        lines = [line if "\033" in line else line[:width] for line in self._page(figures, rate)]
        self._erase()
        print("\n".join(lines), flush=True)
        self._drawn = len(lines)

    def table(self, receivers: Sequence[tuple[str, Sequence[int]]]) -> list[str]:
        """Return the lines of a table with the counts of all receivers. Counts that should be zero are red."""
        lines = [f"{'subscriber':21}" + "".join(f"{name:>11}" for name in COUNTS)]
        for title, counts in receivers:
            cells = [f"{count:>11,}" for count in counts]
            cells[-1] = self._paint(cells[-1], "31" if counts[-1] else "")
            lines.append(f"{title:21}" + "".join(cells))
        return lines

    def _page(self, figures: Figures, rate: float) -> list[str]:
        lines = [figures.phase, ""]
        lines.append(f"{'broker':8}{'state':14}{'clients':>8}{'through':>9}  lanes")
        for one in figures.nodes:
            state = self._paint(f"{one.state:14}", COLORS.get(one.state, "33"))
            lanes = " ".join(one.lanes)
            lines.append(f"{one.name:8}{state}{one.clients:>8}{one.through:>9}  {lanes}")
        servers = [
            f"{name} {self._paint(state, COLORS[state])}" for name, state in figures.servers.items()
        ]
        lines += ["", "NATS servers: " + ", ".join(servers), ""]
        lines.append(f"{figures.stored:,} messages acknowledged, {rate:,.0f} per second")
        return [*lines, "", *self.table(figures.receivers), "", "Ctrl-C ends the demo."]

    def _rate(self, stored: int) -> float:
        """Return the acknowledgements per second since the last call."""
        now = time.monotonic()
        then, before = self._before
        self._before = now, stored
        return (stored - before) / (now - then) if now > then else 0.0

    def _paint(self, text: str, color: str) -> str:
        return f"\033[{color}m{text}\033[0m" if self._color and color else text

    def _erase(self) -> None:
        if self._drawn:
            sys.stdout.write(f"\033[{self._drawn}A\033[J")
            self._drawn = 0


def _line(figures: Figures, rate: float) -> str:
    nodes = [
        f"{one.name} {one.state}" + (f" [{' '.join(one.lanes)}] {one.clients}" if one.lanes else "")
        for one in figures.nodes
    ]
    servers = [f"{name} {state}" for name, state in figures.servers.items() if state != "running"]
    counts = [
        f"{title} {counts[0]:,}" + (f" ({counts[1]:,} not yet)" if counts[1] else "")
        for title, counts in figures.receivers
    ]
    parts = [*nodes, *servers, f"{figures.stored:,} acknowledged ({rate:,.0f}/s)", *counts]
    return f"{time.strftime('%H:%M:%S')}  {' | '.join(parts)}"


def figures_of(name: str, status: dict[str, Any] | None, clients: int, through: int) -> NodeFigures:
    """Return the figures of a broker that was not killed. `status` is the cluster as the broker reports it, or None."""
    if status is None:
        return NodeFigures(name, "starting", through=through)
    lanes = [one["name"] for one in status["lanes"] if one["owner"] == name and one["live"]]
    return NodeFigures(name, status["state"], lanes, clients, through)
