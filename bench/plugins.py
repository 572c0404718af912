"""``python -m bench.plugins``: what those plugins cost that decide who comes in, what they may do, and how much.

A part of ``python -m bench``. Three tables, of runs that are short; `bench.auth`, `bench.auth_jwt`, `bench.acl` and
`bench.ratelimit` measure each of them at length.

    connect     CONNECT, CONNACK, DISCONNECT, close, 32 at a time, to a broker of its own: so many a second, and the CPU
                time of the broker for each (all its threads)
    authorize   a decision of acl_file with 10, 1,000 and 100,000 rules: CPU time
    publish     a PUBLISH of 30 bytes to one subscriber with rate limits and without: CPU time, within one process from
                bytes to bytes, and of a broker of its own over loopback TCP
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SECONDS = 1.0
"""Measured time of a row of connects."""
PARALLEL = 32
RULES = (10, 1000, 100_000)
MESSAGES = 20_000
LIMITS = ("no plugin", "1 limit", "client, broker, bytes")


class Row(NamedTuple):
    """One figure: the table it is of, what was measured, in what unit. `void` says why it counts for nothing."""

    table: str
    name: str
    figure: str
    value: float
    unit: str
    void: str = ""


def connects(seconds: float = SECONDS) -> Iterator[Row]:
    """Connections a second."""
    from . import auth, auth_jwt

    for name, kind in (
        ("no plugin", ""),
        ("password, remembered", "8MiB"),
        ("password, argon2id", "64MiB"),
        ("JWT, HS256", "HS256"),
        ("JWT, ES256", "ES256"),
    ):
        with tempfile.TemporaryDirectory() as text:
            folder = Path(text)
            words = [b"secret"] * PARALLEL
            if kind in auth_jwt.KEYS:
                words = [auth_jwt.token(kind, number, True).encode() for number in range(PARALLEL)]
                made = auth_jwt.broker(folder, auth_jwt.config(folder))
            elif kind:
                made = auth_jwt.broker(folder, _passwords(folder, kind), "auth_password")
            else:
                made = auth_jwt.broker(folder, None)
            load = auth.Row(name, "", "", "u{}", partial(_word, words))
            with made as (pid, port):
                rate, used, codes = asyncio.run(auth.load(port, pid, load, PARALLEL, seconds))
        refused = sum(count for code, count in codes.items() if code)
        void = f"{refused} refused" if refused else "" if codes else "nobody came in"
        yield Row("connect", name, "rate", rate, "connects/s", void)
        yield Row("connect", name, "cost", used * 1e6, "us", void)


def _word(words: list[bytes], number: int) -> bytes:
    return words[number % len(words)]


def _passwords(folder: Path, memory: str) -> dict[str, Any]:
    """A user for each client; what is dear is hashed each time, what is cheap is remembered."""
    from hookmq_auth_password.hashes import Argon2, make

    dear = memory == "64MiB"
    hash = make(b"secret", "yaml", Argon2() if dear else Argon2(8 << 20, 1, 1))
    users = folder / "users.yaml"
    entries = "".join(f"  u{number}: {{hash: '{hash}'}}\n" for number in range(PARALLEL))
    users.write_text(f"version: 1\nusers:\n{entries}")
    users.chmod(0o600)
    return {"path": str(users), "cache_time": "0s" if dear else "1h"}


def decisions(sizes: tuple[int, ...] = RULES) -> Iterator[Row]:
    """CPU time of a decision."""
    from hookmq.plugin import Action, ClientInfo, Peer
    from hookmq.types import Scope
    from hookmq_acl_file.file import load

    from . import acl

    for count in sizes:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "acl.yaml")
            file.write_text(acl.everybody(count))
            index = load(file, "yaml").rules
        client = ClientInfo("c1", 5, "u1", Peer("192.0.2.1"), Scope())
        chosen = index.choose(client)
        site = f"site/{(count - 1) % 97}/dev/{count - 1}"
        for name, action, topic, allowed in (
            ("publish allowed", Action.PUBLISH, f"{site}/t", True),
            ("no rule", Action.PUBLISH, "other/t", False),
            ("subscribe", Action.SUBSCRIBE, f"{site}/+", True),
        ):
            decide = partial(index.decide, chosen, action, topic, 0, False)
            rule: Any = decide()
            void = "" if (rule is not None and rule.allow) == allowed else "the wrong answer"
            yield Row(
                "authorize", f"{count:,} rules", name, acl.cpu(decide, 1000, 3) * 1e6, "us", void
            )


def publishes(count: int = MESSAGES) -> Iterator[Row]:
    """CPU time of a PUBLISH."""
    from hookmq.testing import make_plugin
    from hookmq_ratelimit.plugin import RateLimitPlugin

    from . import ratelimit

    for name in LIMITS:
        limits = ratelimit.CASES[name]
        for qos in (0, 1):
            made = [make_plugin(RateLimitPlugin, {"limits": limits}, "ratelimit")] if limits else []
            cost = ratelimit.in_process(made, count, qos)
            yield Row("publish", name, f"QoS {qos}", cost, "us")
        for qos in (0, 1):
            # In ticks of 10 ms of the broker's CPU time: so many more.
            cost = ratelimit.wire(limits, 10 * count, qos)
            yield Row("publish", name, f"wire, QoS {qos}", cost, "us")


PARTS: tuple[Callable[[], Iterator[Row]], ...] = (connects, decisions, publishes)


def measure(say: Callable[[str], object]) -> list[Row]:
    """All rows, each told when it is there."""
    rows = []
    for part in PARTS:
        for row in part():
            rows.append(row)
            said = f"VOID: {row.void}" if row.void else f"{row.value:12,.2f} {row.unit}"
            say(f"{row.table:10} {row.name:22} {row.figure:16} {said}")
    return rows


def table(rows: list[Row]) -> str:
    """The rows as text: a table for each kind, a line for each name."""
    lines = []
    for kind in dict.fromkeys(row.table for row in rows):
        found = [row for row in rows if row.table == kind]
        columns = list(dict.fromkeys((row.figure, row.unit) for row in found))
        lines += ["", f"{kind:<24}" + "".join(f"{f'{f}, {u}':>20}" for f, u in columns)]
        for name in dict.fromkeys(row.name for row in found):
            cells = {row.figure: row for row in found if row.name == name}
            line = f"{name:<24}"
            for figure, _ in columns:
                row = cells[figure]
                digits = 0 if row.value >= 100 else 2
                line += f"{'VOID' if row.void else f'{row.value:,.{digits}f}':>20}"
            lines.append(line)
    return "\n".join(["Plugins (python -m bench.plugins)", *lines[1:]])


def to_json(rows: list[Row]) -> list[dict[str, Any]]:
    """For the file of results."""
    return [row._asdict() for row in rows]


@contextlib.contextmanager
def on_all_cores(cores: set[int]) -> Iterator[None]:
    """Neither this process nor the brokers that it starts are bound to one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def main() -> int:
    """Exit code 0; 1 when a row is void."""
    rows = measure(lambda text: print(text, file=sys.stderr, flush=True))
    print(table(rows))
    return 1 if any(row.void for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
