"""``python -m bench.auth``: measure the cost of checking a password.

The first table shows how long verifying one password takes with each kind of hash. The second measures a whole broker
that runs ``hookmq-auth-password``. Clients send CONNECT, wait for CONNACK, send DISCONNECT and close. The table shows
connects per second, the broker's CPU time per connect, and the reason codes.

    no plugin       every client is accepted; only the connection itself costs time
    remembered      correct passwords that were verified recently
    hashed          correct passwords, a different user for each client, nothing cached
    one user        correct passwords for a single user, nothing cached; simultaneous checks share a hash
    wrong           wrong passwords, each a different one
    unknown user    different passwords for users that do not exist

The load generator runs on asyncio on the same machine. If it is slower than the broker, the rate is a lower bound.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import Connect
from hookmq_toolkit.passwords.hashes import Argon2, make, read, verify

from . import connects, launch

CHEAP = "$7$101$TmYT+Q7sb5hxfltS$vqpNBjlHWe6p3pffOesT3dyO9WehVqVDkuduFdx2u7od1/yojVDLo3kMOWzn5iT8dMnpiieN5eBReI/oXGXn/A=="
"""A hash in mosquitto_passwd's default format, for the password "secret"."""


class Row(NamedTuple):
    """One row of the second table: the stored hash, the cache setting, and the clients' users and passwords."""

    name: str
    hash: str
    cache: str
    user: str
    password: Callable[[int], bytes]


def right(number: int) -> bytes:
    """Return the correct password as a client sends it."""
    return b"secret"


def wrong(number: int) -> bytes:
    """Return a wrong password. Every number produces a different one."""
    return b"wrong-%d" % number


ROWS = (
    Row("no plugin", "", "", "u{}", right),
    Row("remembered", "small", "1h", "u{}", right),
    Row("hashed, argon2id", "argon2", "0s", "u{}", right),
    Row("hashed, argon2id 8MiB", "small", "0s", "u{}", right),
    Row("hashed, mosquitto", "mosquitto", "0s", "u{}", right),
    Row("one user, argon2id", "argon2", "0s", "u0", right),
    Row("wrong, argon2id", "argon2", "", "u0", wrong),
    Row("unknown user, argon2id", "argon2", "", "nobody", wrong),
)


def hashing() -> list[tuple[str, float]]:
    """Measure how many milliseconds verifying a password takes with each kind of hash."""
    from passlib import hash as passlib  # type: ignore[import-untyped]

    texts = [
        ("argon2id 64MiB, 3 passes (default)", make(b"secret", "yaml", Argon2()), "yaml"),
        (
            "argon2id 19MiB, 2 passes, 1 lane",
            make(b"secret", "yaml", Argon2(19 << 20, 2, 1)),
            "yaml",
        ),
        ("argon2id 8MiB, 1 pass, 1 lane", make(b"secret", "yaml", Argon2(8 << 20, 1, 1)), "yaml"),
        ("bcrypt 12", passlib.bcrypt.using(rounds=12).hash("secret"), "yaml"),
        ("scrypt ln=16", passlib.scrypt.using(rounds=16).hash("secret"), "yaml"),
        (
            "pbkdf2-sha512 210,000",
            passlib.pbkdf2_sha512.using(rounds=210_000).hash("secret"),
            "yaml",
        ),
        ("sha512-crypt 5,000", passlib.sha512_crypt.using(rounds=5000).hash("secret"), "yaml"),
        ("mosquitto $7$ 101", CHEAP, "mosquitto"),
    ]
    found = []
    for name, text, format in texts:
        hash = read(text, format)  # type: ignore[arg-type]
        assert verify(hash, b"secret"), name
        times: list[float] = []
        while sum(times) < 0.5 and len(times) < 200:
            began = time.perf_counter()
            verify(hash, b"secret")
            times.append(time.perf_counter() - began)
        found.append((name, sorted(times)[len(times) // 2] * 1000))
    return found


@contextlib.contextmanager
def broker(folder: Path, row: Row, threads: int, parallel: int) -> Iterator[launch.Broker]:
    """Run the broker that a row measures."""
    settings: dict[str, Any] = {
        "authz": {"default": "allow"},
        "log": {"level": "info", "format": "json"},
    }
    if row.hash:
        users = folder / "users"
        format = "mosquitto" if row.hash == "mosquitto" else "yaml"
        cost = Argon2(8 << 20, 1, 1) if row.hash == "small" else Argon2()
        hash = CHEAP if format == "mosquitto" else make(b"secret", "yaml", cost)
        names = [f"u{number}" for number in range(parallel)]
        if format == "mosquitto":
            users.write_text("".join(f"{name}:{hash}\n" for name in names))
        else:
            entries = "".join(f"  {name}: {{hash: '{hash}'}}\n" for name in names)
            users.write_text(f"version: 1\nusers:\n{entries}")
        users.chmod(0o600)
        config = {"path": str(users), "format": format, "threads": threads}
        if row.cache:
            config["cache_time"] = row.cache
        settings["plugins"] = [{"use": "auth_password", "config": config}]
    else:
        settings["auth"] = {"default": "allow"}
    with launch.hookmq(folder, **settings) as running:
        yield running


def main() -> int:
    """Print both tables and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.auth", description="Measure the cost of a password."
    )
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="measured time of a row (%(default)s)"
    )
    parser.add_argument(
        "--parallel", type=int, default=32, help="connections at a time (%(default)s)"
    )
    parser.add_argument(
        "--threads", type=int, default=2, help="threads of the plugin (%(default)s)"
    )
    options = parser.parse_args()
    print(f"{'verifying one password':<40}{'ms':>10}")
    for name, milliseconds in hashing():
        print(f"{name:<40}{milliseconds:>10.2f}")
    print(f"\n{'a broker':<26}{'connects/s':>12}{'CPU each, ms':>14}  answers")
    for row in ROWS:
        with (
            tempfile.TemporaryDirectory() as folder,
            broker(Path(folder), row, options.threads, options.parallel) as running,
        ):

            def packet(client: int, number: int, row: Row = row) -> bytes:
                user, password = row.user.format(client), row.password(number)
                return encode(Connect(f"c{client}", 5, True, 60, user, password), 5)

            found = asyncio.run(connects.load(running, packet, options.parallel, options.seconds))
        codes = ", ".join(f"0x{code:02X} {count}" for code, count in sorted(found.codes.items()))
        print(f"{row.name:<26}{found.rate:>12,.0f}{found.cpu * 1000:>14.3f}  {codes}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
