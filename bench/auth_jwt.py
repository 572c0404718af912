"""``python -m bench.auth_jwt``: what a token costs.

The first table is the verification alone, in this process: parsing, signature, claims, permissions, for tokens with and
without an ``acl`` claim. The second is a whole broker on loopback: CONNECT, CONNACK, close, a number of connections at a
time, each with a token of its own; beside it the same without a plugin. CPU is the broker's process, all its threads. The
rate says what both processes together managed on this machine: the client is Python as well.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hookmq.codec import Connect, encode
from hookmq.plugin import Context
from hookmq_auth_jwt.config import JwtConfig, KeyConfig
from hookmq_auth_jwt.plugin import AuthJwtPlugin

from bench.launch import free_port

SECRET = "0123456789abcdef" * 4
KEYS: dict[str, Any] = {
    "HS256": SECRET,
    "RS256": rsa.generate_private_key(65537, 2048),
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}
ACL = {"publish": ["dev/%c/#"], "subscribe": ["dev/%c/#", "all/#"], "deny": ["dev/+/secret"]}
CONNACK = 4


def token(algorithm: str, number: int, acl: bool) -> str:
    """A token of a client."""
    claims: dict[str, Any] = {
        "iss": "https://idp.example/", "aud": "mqtt", "sub": f"client-{number}", "iat": int(time.time()),
        "exp": int(time.time()) + 3600,
    }  # fmt: skip
    if acl:
        claims["acl"] = ACL
    return jwt.encode(claims, KEYS[algorithm], algorithm, {"kid": algorithm})


def config(folder: Path) -> dict[str, Any]:
    """The plugin's configuration, with every key."""
    keys: list[dict[str, Any]] = [{"secret": SECRET, "kid": "HS256"}]
    for name in ("RS256", "ES256", "EdDSA"):
        path = folder / f"{name}.pem"
        public = KEYS[name].public_key()
        path.write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
        keys.append({"pem": str(path), "kid": name})
    return {"keys": keys, "issuer": "https://idp.example/", "audience": "mqtt"}


def verification(folder: Path, count: int) -> None:
    """Print the first table."""
    made = config(folder)
    made["keys"] = tuple(KeyConfig(**one) for one in made["keys"])
    verifier = AuthJwtPlugin(JwtConfig(**made), Context("bench")).verifier
    print("verification        us a token   with acl claim")
    for algorithm in KEYS:
        cells = []
        for acl in (False, True):
            data = [token(algorithm, number, acl).encode() for number in range(min(count, 50))]
            best = float("inf")
            for _ in range(3):
                began = time.perf_counter()
                for one in itertools.islice(itertools.cycle(data), count):
                    verifier.verify(one, "c", None, 0.0, time.time())
                best = min(best, (time.perf_counter() - began) / count)
            cells.append(best * 1e6)
        print(f"{algorithm:<18} {cells[0]:>11.1f} {cells[1]:>15.1f}", flush=True)


@contextlib.contextmanager
def broker(
    folder: Path, plugin: dict[str, Any] | None, use: str = "auth_jwt"
) -> Iterator[tuple[int, int]]:
    """A broker with the plugin `use`, or none: its process id and its port."""
    port = free_port()
    settings: dict[str, Any] = {
        "version": 1,
        "listeners": [{"name": "tcp", "bind": f"127.0.0.1:{port}"}],
        "log": {"level": "error"},
        "auth": {"default": "allow" if plugin is None else "deny"},
    }
    if plugin is not None:
        settings["plugins"] = [{"use": use, "config": plugin}]
    path = folder / "hookmq.json"
    path.write_text(json.dumps(settings))
    process = subprocess.Popen([sys.executable, "-m", "hookmq.cli", "serve", "-c", str(path)])
    try:
        while process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.02)
        yield process.pid, port
    finally:
        process.terminate()
        process.wait()


async def storm(port: int, packets: list[bytes], at_a_time: int) -> float:
    """Connect with every packet; seconds."""
    left = iter(packets)

    async def one() -> None:
        for packet in left:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(packet)
            answer = await reader.readexactly(CONNACK)
            if answer[3]:
                raise SystemExit(f"refused: {answer[3]}")
            writer.transport.abort()

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(at_a_time)))
    return time.perf_counter() - began


def connecting(folder: Path, count: int, at_a_time: int) -> None:
    """Print the second table."""
    print("\nconnecting          a second   broker CPU us each   more than without")
    base = 0.0
    for algorithm in (None, *KEYS):
        packets = [
            encode(
                Connect(
                    f"client-{number}", 4, True, 600, "user",
                    b"secret" if algorithm is None else token(algorithm, number, True).encode(),
                ),
                4,
            )
            for number in range(count)
        ]  # fmt: skip
        plugin = None if algorithm is None else config(folder)
        with broker(folder, plugin) as (pid, port):
            clock = _clock(pid)
            asyncio.run(storm(port, packets[: count // 10], at_a_time))
            before = time.clock_gettime(clock)
            seconds = asyncio.run(storm(port, packets, at_a_time))
            cost = (time.clock_gettime(clock) - before) / count * 1e6
        base = base or cost
        name = algorithm or "without"
        print(f"{name:<18} {count / seconds:>9.0f} {cost:>20.0f} {cost - base:>19.0f}", flush=True)


def _clock(pid: int) -> int:
    """The CPU clock of a process, as clock_getcpuclockid makes it."""
    return (~pid << 3) | 2


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=2000, help="tokens a row of the first table")
    parser.add_argument("--connections", type=int, default=3000, help="connections a row")
    parser.add_argument("--at-a-time", type=int, default=32, help="connections at a time")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        verification(Path(folder), arguments.tokens)
        connecting(Path(folder), arguments.connections, arguments.at_a_time)


if __name__ == "__main__":
    main()
