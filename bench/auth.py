"""``python -m bench.auth``: what a password costs.

The first table is arithmetic: verifying one password, by kind of hash. The second is a whole broker with
``hookmq-auth-password`` and clients that CONNECT, wait for CONNACK, send DISCONNECT and close, so many at a time:
connects a second, the broker's CPU time for each (all its threads, not the generator's), and what was answered.

    no plugin       whoever comes is let in: what a connection costs
    remembered      right passwords that were right a moment ago
    hashed          right passwords of as many users as clients, nothing remembered
    one user        right passwords of one user, nothing remembered: who asks the same at the same time shares a hash
    wrong           wrong passwords, each another one
    unknown user    the same for users that are not there

The generator is asyncio in Python, on the same machine: where it is the slower of the two the rate is a lower bound.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from hookmq.codec import Connect, encode
from hookmq_auth_password.hashes import Argon2, make, read, verify

TICKS = os.sysconf("SC_CLK_TCK")
DISCONNECT = b"\xe0\x00"
CHEAP = "$7$101$TmYT+Q7sb5hxfltS$vqpNBjlHWe6p3pffOesT3dyO9WehVqVDkuduFdx2u7od1/yojVDLo3kMOWzn5iT8dMnpiieN5eBReI/oXGXn/A=="
"""mosquitto_passwd's default, of the password "secret"."""


class Row(NamedTuple):
    """One measurement of a broker."""

    name: str
    hash: str
    plugin: str
    user: str
    password: Callable[[int], bytes]


def right(number: int) -> bytes:
    """The right password."""
    return b"secret"


def wrong(number: int) -> bytes:
    """A wrong one, another each time."""
    return b"wrong-%d" % number


ROWS = (
    Row("no plugin", "", "", "u{}", right),
    Row("remembered", "small", "cache_time: 1h", "u{}", right),
    Row("hashed, argon2id", "argon2", "cache_time: 0", "u{}", right),
    Row("hashed, argon2id 8MiB", "small", "cache_time: 0", "u{}", right),
    Row("hashed, mosquitto", "mosquitto", "cache_time: 0", "u{}", right),
    Row("one user, argon2id", "argon2", "cache_time: 0", "u0", right),
    Row("wrong, argon2id", "argon2", "", "u0", wrong),
    Row("unknown user, argon2id", "argon2", "", "nobody", wrong),
)


def hashing() -> list[tuple[str, float]]:
    """Milliseconds of verifying a password, by kind of hash."""
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
def broker(folder: Path, row: Row, threads: int, parallel: int) -> Iterator[tuple[int, int]]:
    """A broker's process id and port."""
    text = "version: 1\nlisteners: [{name: tcp, bind: '127.0.0.1:0'}]\nauthz: {default: allow}\n"
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
        more = f", {row.plugin}" if row.plugin else ""
        config_text = f"path: {users}, format: {format}, threads: {threads}{more}"
        text += f"plugins: [{{use: auth_password, config: {{{config_text}}}}}]\n"
    else:
        text += "auth: {default: allow}\n"
    config = folder / "hookmq.yaml"
    config.write_text(text)
    process = subprocess.Popen(
        [sys.executable, "-m", "hookmq.cli", "serve", "--log-format", "json", "-c", str(config)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            told = json.loads(line)
            if told["event"] == "node.started":
                port = int(str(told["listeners"]["tcp"]).rpartition(":")[2])
                break
        else:
            raise RuntimeError("the broker did not start")
        # Its log is read all the time: a full pipe would stop it.
        drain = subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
        yield process.pid, port
    finally:
        process.terminate()
        process.wait(20)
        drain.wait(20)
        process.stderr and process.stderr.close()


def cpu(pid: int) -> float:
    """Seconds of CPU time that a process has used, all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


PATIENCE = 200
"""Times the measured time that a machine may be too busy for anybody to come in."""


async def load(
    port: int, pid: int, row: Row, parallel: int, seconds: float
) -> tuple[float, float, Counter[int]]:
    """Connects a second, CPU seconds of the broker for each, and how often each code was answered."""
    numbers = itertools.count()
    codes: Counter[int] = Counter()
    measuring = stop = False

    async def client(index: int) -> None:
        while not stop:
            number = next(numbers)
            packet = encode(
                Connect(f"c{index}", 5, True, 60, row.user.format(index), row.password(number)), 5
            )
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(packet)
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                answer = await reader.readexactly(4)
                if measuring:
                    codes[answer[3]] += 1
                writer.write(DISCONNECT)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    clients = [asyncio.create_task(client(index)) for index in range(parallel)]
    await asyncio.sleep(seconds / 4)
    measuring, before, began = True, cpu(pid), time.perf_counter()
    for _ in range(PATIENCE):
        await asyncio.sleep(seconds)
        if codes:
            break
    measuring, used, took = False, cpu(pid) - before, time.perf_counter() - began
    stop = True
    await asyncio.gather(*clients)
    done = sum(codes.values())
    return done / took, used / max(1, done), codes


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.auth", description="What a password costs."
    )
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="measured time of a row (%(default)s)"
    )
    parser.add_argument(
        "--parallel", type=int, default=32, help="connections at a time (%(default)s)"
    )
    parser.add_argument("--threads", type=int, default=2, help="of the plugin (%(default)s)")
    options = parser.parse_args()
    print(f"{'verifying one password':<40}{'ms':>10}")
    for name, milliseconds in hashing():
        print(f"{name:<40}{milliseconds:>10.2f}")
    print(f"\n{'a broker':<26}{'connects/s':>12}{'CPU each, ms':>14}  answers")
    for row in ROWS:
        with (
            tempfile.TemporaryDirectory() as folder,
            broker(Path(folder), row, options.threads, options.parallel) as (pid, port),
        ):
            rate, used, codes = asyncio.run(load(port, pid, row, options.parallel, options.seconds))
        told = ", ".join(f"0x{code:02X} {count}" for code, count in sorted(codes.items()))
        print(f"{row.name:<26}{rate:>12,.0f}{used * 1000:>14.3f}  {told}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
