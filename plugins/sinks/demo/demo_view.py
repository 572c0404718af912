"""The demo's output: on a terminal, a page that is redrawn; elsewhere, one line per second."""

import os
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

COLORS: Final = {"active": "32", "retrying": "33", "failed": "31"}
KEYS: Final = "p stops or starts PostgreSQL   r stops or starts Redis   q ends the demo"


class View:
    """Shows the figures. `say` prints a permanent line above them."""

    def __init__(self) -> None:
        self.live = sys.stdout.isatty()
        self._color = self.live and "NO_COLOR" not in os.environ
        self._drawn = 0
        self._before: dict[str, tuple[float, float]] = {}

    def paint(self, text: str, color: str) -> str:
        """Return the text in `color` if the output is a terminal."""
        return f"\033[{color}m{text}\033[0m" if self._color and color else text

    def say(self, text: str, color: str = "") -> None:
        """Print a line above the figures."""
        self._erase()
        print(self.paint(text, color), flush=True)

    def _erase(self) -> None:
        if self._drawn:
            sys.stdout.write(f"\033[{self._drawn}A\033[J")
            self._drawn = 0

    def show(self, head: str, sinks: dict[str, Any], rows: Sequence[Sequence[Any]]) -> None:
        """Show the sinks, as reported by the admin API, and the newest rows in PostgreSQL."""
        if not self.live:
            told = [
                f"{name}: {line}"
                for name, line in ((one["name"], _line(one)) for one in sinks.values())
            ]
            print(f"{time.strftime('%H:%M:%S')}  {head} | " + " | ".join(told), flush=True)
            return
        lines = [
            head,
            "",
            f"{'sink':10}{'state':11}{'waiting':>9}{'behind':>8}{'written':>11}{'per second':>12}  reason",
        ]
        width = shutil.get_terminal_size().columns
        for one in sinks.values():
            state = self.paint(f"{one['state']:11}", COLORS.get(one["state"], ""))
            lines.append(
                f"{one['name']:10}{state}{one['lag']:>9,}{_behind(one):>8}{one['counts']['written']:>11,.0f}"
                f"{self._rate(one):>12,.0f}  {one['reason'][: max(0, width - 64)]}"
            )
        lines += ["", "newest rows of PostgreSQL"]
        lines += [
            f"  {at:%H:%M:%S}  {machine:10} {celsius:6.2f} °C" for at, machine, celsius in rows
        ] or ["  -"]
        if sys.stdin.isatty():
            lines += ["", self.paint(KEYS, "1")]
        text = "\n".join(line if "\033" in line else line[:width] for line in lines)
        self._erase()
        print(text, flush=True)
        self._drawn = len(lines)

    def _rate(self, one: dict[str, Any]) -> float:
        now, written = time.monotonic(), float(one["counts"]["written"])
        before = self._before.get(one["name"], (now, written))
        self._before[one["name"]] = (now, written)
        return (written - before[1]) / (now - before[0]) if now > before[0] else 0.0


def _behind(one: dict[str, Any]) -> str:
    return "-" if one["lag_seconds"] is None else f"{one['lag_seconds']:.0f} s"


def _line(one: dict[str, Any]) -> str:
    reason = f" ({one['reason']})" if one["reason"] else ""
    return (
        f"{one['state']}{reason}, {one['counts']['written']:,.0f} written, {one['lag']:,} waiting"
    )
