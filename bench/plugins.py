"""``python -m bench.plugins``: measure the cost of plugins that authenticate, authorize and limit clients.

``python -m bench`` includes these three tables of short runs. `bench.auth`, `bench.auth_jwt`, `bench.acl` and
`bench.ratelimit` measure each plugin in more detail.

    connect     clients send CONNECT, wait for CONNACK, send DISCONNECT and close, 32 at a time: connects a second,
                and the broker's CPU time for each
    authorize   acl_file decides with 10, 1,000 and 100,000 rules: CPU time of a decision
    publish     a 30-byte PUBLISH goes to one subscriber, with and without rate limits: CPU time from input bytes to
                output bytes in one process, and a broker's CPU time over loopback TCP
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

from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import Connect

from . import launch
from .connects import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SECONDS = 1.0
"""The measured time for each row of connects, in seconds."""
PARALLEL = 32
RULES = (10, 1000, 100_000)
MESSAGES = 20_000
LIMITS = ("no plugin", "1 limit", "client, broker, bytes")


class Row(NamedTuple):
    """One figure in a table. If the figure does not count, `void` is the reason."""

    table: str
    name: str
    figure: str
    value: float
    unit: str
    void: str = ""


def connects(seconds: float = SECONDS) -> Iterator[Row]:
    """Measure connects per second with each kind of authentication, and yield the rows."""
    from . import auth_jwt

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
            settings: dict[str, Any] = {"log": {"level": "error"}, "auth": {"default": "allow"}}
            if kind:
                settings["auth"] = {"default": "deny"}
                use = "auth_password"
                if kind in auth_jwt.KEYS:
                    words = [auth_jwt.token(kind, n, True).encode() for n in range(PARALLEL)]
                    use, config = "auth_jwt", auth_jwt.config(folder)
                else:
                    config = _passwords(folder, kind)
                settings["plugins"] = [{"use": use, "config": config}]

            def packet(client: int, number: int, words: list[bytes] = words) -> bytes:
                word = words[number % len(words)]
                return encode(Connect(f"c{client}", 5, True, 60, f"u{client}", word), 5)

            with launch.hookmq(folder, **settings) as running:
                found = asyncio.run(load(running, packet, PARALLEL, seconds))
        void = f"{found.refused} refused" if found.refused else "" if found.codes else "no connect"
        yield Row("connect", name, "rate", found.rate, "connects/s", void)
        yield Row("connect", name, "cost", found.cpu * 1e6, "us", void)


def _passwords(folder: Path, memory: str) -> dict[str, Any]:
    """Return a configuration with users. Expensive passwords are hashed each time; cheap ones are cached."""
    from hookmq_toolkit.passwords.hashes import Argon2, make

    dear = memory == "64MiB"
    hash = make(b"secret", "yaml", Argon2() if dear else Argon2(8 << 20, 1, 1))
    users = folder / "users.yaml"
    entries = "".join(f"  u{number}: {{hash: '{hash}'}}\n" for number in range(PARALLEL))
    users.write_text(f"version: 1\nusers:\n{entries}")
    users.chmod(0o600)
    return {"path": str(users), "cache_time": "0s" if dear else "1h"}


def decisions(sizes: tuple[int, ...] = RULES) -> Iterator[Row]:
    """Measure how much CPU time a decision takes, and yield the rows."""
    from hookmq.model.client import Scope
    from hookmq.plugin import Action, ClientInfo, Peer
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
    """Measure how much CPU time a PUBLISH takes, and yield the rows."""
    from hookmq_ratelimit.plugin import RateLimitPlugin
    from hookmq_testing import make_plugin

    from . import ratelimit

    for name in LIMITS:
        limits = ratelimit.CASES[name]
        for qos in (0, 1):
            made = [make_plugin(RateLimitPlugin, {"limits": limits}, "ratelimit")] if limits else []
            cost = ratelimit.in_process(made, count, qos)
            yield Row("publish", name, f"QoS {qos}", cost, "us")
        for qos in (0, 1):
            cost = ratelimit.wire(limits, qos)
            yield Row("publish", name, f"wire, QoS {qos}", cost, "us")


PARTS: tuple[Callable[[], Iterator[Row]], ...] = (connects, decisions, publishes)


def measure(say: Callable[[str], object]) -> list[Row]:
    """Measure and return all rows. Each row is reported as soon as it has been measured."""
    rows = []
    for part in PARTS:
        for row in part():
            rows.append(row)
            said = f"VOID: {row.void}" if row.void else f"{row.value:12,.2f} {row.unit}"
            say(f"{row.table:10} {row.name:22} {row.figure:16} {said}")
    return rows


def table(rows: list[Row]) -> str:
    """Format the rows as text, with a table for each kind and a line for each name."""
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
    """Return the rows for the results file."""
    return [row._asdict() for row in rows]


@contextlib.contextmanager
def on_all_cores(cores: set[int]) -> Iterator[None]:
    """Let this process and the brokers it starts use all of `cores` while the block runs."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def main() -> int:
    """Print the tables. Return 0, or 1 if a row is void."""
    rows = measure(lambda text: print(text, file=sys.stderr, flush=True))
    print(table(rows))
    return 1 if any(row.void for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
