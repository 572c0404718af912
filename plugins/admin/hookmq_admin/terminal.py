"""Measure text, choose colors, and read keys in a terminal."""

import os
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Final
from unicodedata import combining, east_asian_width

from hookmq_admin.tables import shown

KEYS: Final = {
    "\x1b[A": "up", "\x1bOA": "up", "\x1b[B": "down", "\x1bOB": "down", "\x1b[5~": "page up", "\x1b[6~": "page down",
    "\x1b[H": "home", "\x1bOH": "home", "\x1b[1~": "home", "\x1b[F": "end", "\x1bOF": "end", "\x1b[4~": "end",
    "\x1b": "escape", "\r": "enter", "\n": "enter", "\x7f": "backspace", "\b": "backspace",
}  # fmt: skip
"""The names of keys, by the characters that a terminal sends for them."""
BOLD: Final = "\x1b[1m"
REVERSE: Final = "\x1b[7m"
RED: Final = "\x1b[31m"
DIM: Final = "\x1b[2m"
PLAIN: Final = "\x1b[0m"


def colored(stream: IO[str]) -> bool:
    """Return whether to use colors. `stream` must be a terminal, TERM must not be "dumb", and NO_COLOR must not be set
    in the environment.
    """
    return interactive(stream) and not os.environ.get("NO_COLOR")


def interactive(stream: IO[str]) -> bool:
    """Return whether `stream` is a terminal whose cursor can be moved."""
    return stream.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")


def width_of(text: str) -> int:
    """Return how many columns `text` takes up."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(one) else 2 if east_asian_width(one) in "WF" else 1 for one in text)


def fit(text: str, width: int, right: bool = False) -> str:
    """Return `text`, without control characters, in exactly `width` columns. Short text is padded, and long text ends
    with an ellipsis.
    """
    text = shown(text)
    taken = width_of(text)
    if taken > width:
        kept = ""
        taken = 0
        for one in text:
            more = width_of(one)
            if taken + more > width - 1:
                break
            kept += one
            taken += more
        text = kept + "…" if width else ""
        taken += 1 if width else 0
    space = " " * (width - taken)
    return space + text if right else text + space


def split_keys(text: str) -> Iterator[str]:
    """Split a terminal's input into keys. Yield names such as ``up``, or single characters."""
    at = 0
    while at < len(text):
        for size in (4, 3, 1):
            part = text[at : at + size]
            if len(part) == size and part in KEYS:
                if part == "\x1b" and size < len(text) - at and text[at + 1] in "[O":
                    continue  # an unknown sequence
                yield KEYS[part]
                at += size
                break
        else:
            if text[at] == "\x1b":
                at += 2
                while at < len(text) and not "@" <= text[at] <= "~":
                    at += 1
                at += 1
                continue
            if text[at].isprintable():
                yield text[at]
            at += 1


@contextmanager
def screen() -> Iterator[int]:
    """Take over the whole terminal, with echo turned off, until the block ends. Yield the file descriptor to read keys
    from.
    """
    source = sys.stdin.fileno()
    before = termios.tcgetattr(source)
    try:
        tty.setcbreak(source)
        changed = termios.tcgetattr(source)
        changed[6][termios.VSUSP] = b"\0"  # a stopped program would leave the terminal without echo
        termios.tcsetattr(source, termios.TCSANOW, changed)
        sys.stdout.write("\x1b[?1049h\x1b[?25l")
        sys.stdout.flush()
        yield source
    finally:
        termios.tcsetattr(source, termios.TCSADRAIN, before)
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        sys.stdout.flush()
